"""``Box``: runs Python programs that nobody has read, and says what came of each."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from typing import Any

from plugrl.core.errors import RunError
from plugrl.core.sandbox.inside.value_codec import parse_json
from plugrl.core.sandbox.jobs import ProgramJob, ProgramLimits, ProgramOutcome, Runner
from plugrl.core.sandbox.servers import ServerGoneError, Wrap, server_command, servers

#: How a program, or its tests, is run, and what of a job each of the processes is told. The first
#: one is that of the program: what is expected of it is not among this.
_PARTS: Mapping[str, tuple[str, tuple[Mapping[str, str], ...]]] = {
    "script": ("script", ({"program": "program", "stdin": "stdin"},)),
    "function": (
        "function", ({"program": "program", "name": "name", "arguments": "arguments"},)
    ),
    "tests": ("questions", ({"program": "program"}, {"program": "code"})),
    "trusted_tests": ("asserts", ({"program": "program", "code": "code"},)),
}  # fmt: skip


class Box(Runner):
    """Runs programs, each in a process and a folder of its own; it may be used from many threads.

    Args:
        limits: what each program may use.
        kernel: whether the kernel is asked to refuse calls and files; if not, as where it cannot,
            the interpreter refuses them, which native code gets around.
        wrap: changes the command that starts the process which runs programs.
    """

    def __init__(
        self, limits: ProgramLimits | None = None, *, kernel: bool = True, wrap: Wrap | None = None
    ) -> None:
        self.limits = limits or ProgramLimits()
        self._kernel = kernel
        words = server_command(packages=self.limits.packages)
        self._servers = servers(wrap(words) if wrap else words, own_root=kernel)

    def run(self, job: ProgramJob) -> ProgramOutcome:
        """What came of a job.

        Raises:
            RunError: no process or folder can be made for it.
        """
        size, most = len(job.program.encode("utf-8", "replace")), self.limits.file_kb << 10
        if size > most:
            return ProgramOutcome("files", errors=f"the program has {size} of {most} bytes")
        mode, parts = _PARTS[job.mode]
        told = [{key: getattr(job, name) for key, name in part.items()} for part in parts]
        try:
            answer = self._servers.ask(
                {
                    "mode": mode,
                    "kernel": self._kernel,
                    "folder": tempfile.gettempdir(),
                    "limits": self._limit_fields(),
                },
                [json.dumps(each).encode() for each in told],
            )
        except ServerGoneError:
            # Twice, with this program: whatever it did, it has failed.
            return ProgramOutcome("killed", errors="the process that runs programs ended")
        if answer["kernel"] is None:
            raise RunError(f"a box could not be set up: {answer['errors'][-300:]}")
        return _outcome(answer, is_call=job.mode == "function")

    def _limit_fields(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "seconds": limits.seconds,
            "wall_seconds": limits.wall_seconds,
            "memory_bytes": limits.memory_mb << 20,
            "file_bytes": limits.file_kb << 10,
            "all_bytes": limits.file_kb << 14,
            "files": limits.files,
            "output_bytes": limits.output_kb << 10,
        }

    def kernel_protections(self) -> tuple[str, ...]:
        """What the kernel of this machine enforces: ``files``, ``calls``, both or neither."""
        return self.script("").kernel

    def has_own_root(self) -> bool:
        """Whether programs have a root of their own, in which the kernel counts what they write."""
        return bool(self._servers.hello["own_root"])


def _outcome(answer: Mapping[str, Any], *, is_call: bool) -> ProgramOutcome:
    verdict, errors, value = answer["verdict"], answer["errors"], None
    if is_call and verdict == "done":
        try:
            value = parse_json(answer["result"])
        except ValueError as error:
            # A program may write to where its result is expected whatever it wants to.
            verdict = "raised"
            errors = f"{errors}\nthe result is no data: {error}".strip()
    return ProgramOutcome(
        verdict, answer["output"], errors, value, tuple(answer["kernel"]), tuple(answer["refused"])
    )
