"""Sandboxes: where untrusted programs, such as those a model wrote, are run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from plugrl.core.component import Component
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.factory import make_component
from plugrl.core.sandbox.box import Box
from plugrl.core.sandbox.jobs import ProgramJob, ProgramLimits, ProgramOutcome, Runner, Verdict


class Sandbox(Component, ABC):
    """Runs programs where they can do no harm; subclass it to run them in another place.

    It is used from several threads at once. Whatever a program does is its outcome, not an error.
    Neither the program nor the sandbox knows the expected results, except for test code.
    """

    @abstractmethod
    def run(self, job: ProgramJob, limits: ProgramLimits) -> ProgramOutcome:
        """Run a program and return its outcome.

        Raises:
            RunError: no program can be run; the attempt ends without a reward.
        """

    def fault(self) -> str | None:
        """Why programs are not confined here, in one line; None: they are.

        Evaluators then refuse to run unless ``unsafe: true`` is set.
        """
        return None


class LocalSandbox(Sandbox):
    """Runs programs on this machine, confined by its kernel; override ``command`` to run elsewhere.

    Linux denies all system calls but an allowed list (seccomp) and all files but Python's
    (Landlock). Where namespaces are allowed, programs also get a root, processes and a network of
    their own, and a folder in memory whose bytes and inodes the kernel limits.
    """

    def command(self, words: Sequence[str]) -> Sequence[str]:
        """The command that starts the process that runs programs.

        Args:
            words: the command that starts it here: Python, options and a program of plugrl that
                reads standard input and writes to standard output.

        Returns:
            these words, or a command that runs them somewhere else, such as in a container.
        """
        return words

    def run(self, job: ProgramJob, limits: ProgramLimits) -> ProgramOutcome:
        """Run a program in a process and a folder of its own and return its outcome.

        Raises:
            RunError: no process can be started.
        """
        return Box(limits, wrap=self.command).run(job)

    def fault(self) -> str | None:
        """The protections that the kernel lacks, in one line; None: it has all."""
        enforced = _kernel_protections(tuple(self.command(("python",))), self)
        lacking = [text for name, text in _MEANS.items() if name not in enforced]
        if not lacking:
            return None
        return (
            f"here nothing limits {' and '.join(lacking)}; run where the kernel and the container "
            "allow it"
        )


#: The protections that a sandbox needs from the kernel, as messages describe them.
_MEANS = {
    "files": "which files programs open (Landlock, Linux 5.13 or later)",
    "calls": "which system calls programs make (seccomp)",
}
_found: dict[tuple[str, ...], tuple[str, ...]] = {}


def _kernel_protections(key: tuple[str, ...], sandbox: LocalSandbox) -> tuple[str, ...]:
    """The protections in force where a sandbox runs programs, probed once per process."""
    if key not in _found:
        _found[key] = Box(wrap=sandbox.command).kernel_protections()
    return _found[key]


class Programs(Runner):
    """Runs programs in a sandbox, all with the same limits.

    Args:
        sandbox: where they run.
        limits: what each program may use.
    """

    def __init__(self, sandbox: Sandbox, limits: ProgramLimits) -> None:
        self._sandbox = sandbox
        self.limits = limits

    def run(self, job: ProgramJob) -> ProgramOutcome:
        """Run a job and return its outcome.

        Raises:
            RunError: no program can be run.
            ContractError: the sandbox returned something other than an outcome.
        """
        outcome: Any = self._sandbox.run(job, self.limits)
        if not isinstance(outcome, ProgramOutcome) or outcome.verdict not in get_args(Verdict):
            shown = getattr(outcome, "verdict", type(outcome).__name__)
            raise ContractError(
                f"sandbox {type(self._sandbox).__name__} answered {shown!r}; a ProgramOutcome with "
                f"one of {', '.join(get_args(Verdict))} is expected"
            )
        return outcome


def make_sandbox(section: Mapping[str, Any]) -> Sandbox:
    """Build the sandbox that a section names.

    Raises:
        PlugrlError: there is no such sandbox, or it cannot be loaded.
    """
    sandbox: Sandbox = make_component("sandbox", section)
    return sandbox


def make_confined_sandbox(section: Mapping[str, Any], *, unsafe: bool) -> Sandbox:
    """Build the sandbox that a section names and check that it confines programs.

    Args:
        section: names the sandbox, with its options.
        unsafe: accept a sandbox that cannot confine programs.

    Raises:
        ConfigError: it cannot confine programs; the message says why, with the remedy.
        PlugrlError: as :func:`make_sandbox`.
    """
    sandbox = make_sandbox(section)
    fault = None if unsafe else sandbox.fault()
    if fault is not None:
        raise ConfigError(with_remedy(fault))
    return sandbox


def with_remedy(fault: str) -> str:
    """The message about the ``fault`` of a sandbox, with the option that accepts it."""
    return f"{fault}; to let programs do what they want, set unsafe: true"
