"""``Box``: runs Python programs that nobody has read, and says what came of each."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plugrl.core.errors import RunError
from plugrl.core.sandbox.inside.values import parsed
from plugrl.core.sandbox.limits import Limits, Outcome
from plugrl.core.sandbox.servers import ServerGoneError, Wrap, command, servers


class Box:
    """Runs programs, each in a process and a folder of its own; it may be used from many threads.

    Args:
        limits: what each program may use.
        kernel: whether the kernel is asked to refuse calls and files; if not, as where it cannot,
            the interpreter refuses them, which native code gets around.
        wrap: changes the command that starts the process which runs programs.
    """

    def __init__(
        self, limits: Limits | None = None, *, kernel: bool = True, wrap: Wrap | None = None
    ) -> None:
        self.limits = limits or Limits()
        self._kernel = kernel
        words = command(packages=self.limits.packages)
        self._servers = servers(wrap(words) if wrap else words, own_root=kernel)

    def script(self, program: str, stdin: str = "") -> Outcome:
        """Run ``program`` as a script that reads ``stdin``."""
        return self._run("script", {"program": program, "stdin": stdin})

    def asserts(self, program: str, code: str, *, inside: bool = False) -> Outcome:
        """Run ``program``, and test code that calls its functions; ``done``: it came to its end.

        Args:
            program: what is tested.
            code: the tests. They run in a process of their own, in which the program's functions
                are stand-ins, so that values are compared and no objects of the program.
            inside: whether they run among the names of the program instead, which can then
                deceive them.
        """
        if inside:
            return self._run("asserts", {"program": program, "code": code})
        return self._run("questions", {"program": program}, {"program": code})

    def call(self, program: str, name: str, arguments: list[Any]) -> Outcome:
        """Run ``program``, then its function ``name``, or that method of its ``Solution``."""
        given = {"program": program, "name": name, "arguments": arguments}
        outcome = self._run("function", given)
        if outcome.verdict != "done":
            return replace(outcome, value=None)
        try:
            return replace(outcome, value=parsed(str(outcome.value)))
        except ValueError as error:
            errors = f"{outcome.errors}\nthe result is no data: {error}".strip()
            return replace(outcome, verdict="raised", errors=errors, value=None)

    def confines(self) -> tuple[str, ...]:
        """What the kernel of this machine enforces: ``files``, ``calls``, both or neither."""
        return self.script("").kernel

    def has_own_root(self) -> bool:
        """Whether programs have a root of their own, in which the kernel counts what they write."""
        return bool(self._servers.hello["own_root"])

    def _run(self, mode: str, *given: Mapping[str, Any]) -> Outcome:
        limits = self.limits
        job = {
            "mode": mode,
            "kernel": self._kernel,
            "folder": tempfile.gettempdir(),
            "limits": {
                "seconds": limits.seconds,
                "wall_seconds": limits.wall_seconds,
                "memory_bytes": limits.memory_mb << 20,
                "file_bytes": limits.file_kb << 10,
                "all_bytes": limits.file_kb << 14,
                "files": limits.files,
                "output_bytes": limits.output_kb << 10,
            },
        }
        try:
            answer = self._servers.ask(job, [json.dumps(each).encode() for each in given])
        except ServerGoneError:
            # Twice, with this program: whatever it did, it has failed.
            return Outcome("killed", errors="the process that runs programs ended")
        if answer["kernel"] is None:
            raise RunError(f"a box could not be set up: {answer['errors'][-300:]}")
        return Outcome(
            answer["verdict"],
            answer["output"],
            answer["errors"],
            answer["result"],
            tuple(answer["kernel"]),
            tuple(answer["refused"]),
        )
