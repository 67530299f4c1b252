"""``Box``: runs untrusted Python programs and reports the outcome of each."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from typing import Any

from plugrl.core.errors import RunError
from plugrl.core.sandbox.inside.value_codec import parse_json
from plugrl.core.sandbox.jobs import ProgramJob, ProgramLimits, ProgramOutcome, Runner
from plugrl.core.sandbox.servers import ServerGoneError, Wrap, server_command, servers

#: For each mode of a job: the mode of the process, and which fields of the job each process gets.
#: The first process is that of the program. It never gets the expected results or the tests, so a
#: program cannot read them off its own memory; ``trusted_tests`` gives this up on request.
_PARTS: Mapping[str, tuple[str, tuple[Mapping[str, str], ...]]] = {
    "script": ("script", ({"program": "program", "stdin": "stdin"},)),
    "function": (
        "function", ({"program": "program", "name": "name", "arguments": "arguments"},)
    ),
    "tests": ("questions", ({"program": "program"}, {"program": "code"})),
    "trusted_tests": ("asserts", ({"program": "program", "code": "code"},)),
}  # fmt: skip


class Box(Runner):
    """Runs programs, each in a process and a folder of its own; safe to use from many threads.

    Args:
        limits: what each program may use.
        kernel: whether the kernel refuses system calls and files. If not, or where it cannot, the
            interpreter refuses them, which native code can bypass.
        wrap: changes the command that starts the process that runs programs.
    """

    def __init__(
        self, limits: ProgramLimits | None = None, *, kernel: bool = True, wrap: Wrap | None = None
    ) -> None:
        self.limits = limits or ProgramLimits()
        self._kernel = kernel
        words = server_command(packages=self.limits.packages)
        self._servers = servers(wrap(words) if wrap else words, own_root=kernel)

    def run(self, job: ProgramJob) -> ProgramOutcome:
        """Run a job and return its outcome.

        Raises:
            RunError: no process or folder can be made for it.
        """
        size, most = len(job.program.encode("utf-8", "replace")), self.limits.file_kb << 10
        if size > most:
            return ProgramOutcome("files", errors=f"the program has {size} of {most} bytes")
        # Checked here, since the process of a program writes it before its own limits apply.
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
            # The server ended twice with this program: whatever the program did, it has failed.
            return ProgramOutcome("killed", errors="the process that runs programs ended")
        # No status means that the process died before it had dropped its rights: the program never
        # ran, so this is a failure of the machine and no verdict.
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
        """Whether programs have a root file system of their own, whose size the kernel limits."""
        return bool(self._servers.hello["own_root"])


def _outcome(answer: Mapping[str, Any], *, is_call: bool) -> ProgramOutcome:
    verdict, errors, value = answer["verdict"], answer["errors"], None
    if is_call and verdict == "done":
        try:
            value = parse_json(answer["result"])
        except ValueError as error:
            # The program can write anything to the descriptor of its result.
            verdict = "raised"
            errors = f"{errors}\nthe result is no data: {error}".strip()
    return ProgramOutcome(
        verdict, answer["output"], errors, value, tuple(answer["kernel"]), tuple(answer["refused"])
    )
