"""Sandboxes: where programs run that a model wrote and nobody has read."""

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
    """Runs programs where they can do no harm; subclass it for another place to run them.

    It is used from several threads at once. Whatever a program does is its outcome and no error;
    what is expected of a program is never told to it, nor to the sandbox, but for test code.
    """

    @abstractmethod
    def run(self, job: ProgramJob, limits: ProgramLimits) -> ProgramOutcome:
        """What came of a program.

        Raises:
            RunError: no program can be run; it ends the attempt without a reward.
        """

    def fault(self) -> str | None:
        """Why programs are not confined here, on one line; None: they are.

        Evaluators refuse to run then, unless they are told ``unsafe: true``.
        """
        return None


class LocalSandbox(Sandbox):
    """Programs run on this machine, confined by its kernel; ``command`` puts them elsewhere.

    Linux refuses all system calls but those of a list (seccomp) and all files but Python's
    (Landlock). Where namespaces are allowed, programs have a root, processes and a network of their
    own, and a folder in memory whose bytes and inodes the kernel counts.
    """

    def command(self, words: Sequence[str]) -> Sequence[str]:
        """The command that starts the process which runs programs.

        Args:
            words: what starts it here: Python, options and a program of plugrl, which reads its
                standard input and writes to its standard output.

        Returns:
            these words, or a command that runs them somewhere else, such as in a container.
        """
        return words

    def run(self, job: ProgramJob, limits: ProgramLimits) -> ProgramOutcome:
        """What came of a program, in a process and a folder of its own.

        Raises:
            RunError: no process can be made.
        """
        return Box(limits, wrap=self.command).run(job)

    def fault(self) -> str | None:
        """What the kernel lacks."""
        enforced = _kernel_protections(tuple(self.command(("python",))), self)
        lacking = [text for name, text in _MEANS.items() if name not in enforced]
        if not lacking:
            return None
        return (
            f"here nothing limits {' and '.join(lacking)}; run where the kernel and the container "
            "allow it"
        )


#: What the kernel confines of a program, and by what.
_MEANS = {
    "files": "which files programs open (Landlock, Linux 5.13 or later)",
    "calls": "which system calls programs make (seccomp)",
}
_found: dict[tuple[str, ...], tuple[str, ...]] = {}


def _kernel_protections(key: tuple[str, ...], sandbox: LocalSandbox) -> tuple[str, ...]:
    """What the kernel enforces where a sandbox runs programs, looked up once in a process."""
    if key not in _found:
        _found[key] = Box(wrap=sandbox.command).kernel_protections()
    return _found[key]


class Programs(Runner):
    """The programs of one user of a sandbox: all with the same limits.

    Args:
        sandbox: where they run.
        limits: what each may use.
    """

    def __init__(self, sandbox: Sandbox, limits: ProgramLimits) -> None:
        self._sandbox = sandbox
        self.limits = limits

    def run(self, job: ProgramJob) -> ProgramOutcome:
        """What came of a job.

        Raises:
            RunError: no program can be run.
            ContractError: the sandbox answered with something else.
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
    """The sandbox of a section, resolved in this process.

    Raises:
        PlugrlError: there is no such sandbox, or it cannot be loaded.
    """
    sandbox: Sandbox = make_component("sandbox", section)
    return sandbox


def make_confined_sandbox(section: Mapping[str, Any], *, unsafe: bool) -> Sandbox:
    """The sandbox of a section, in which programs are confined.

    Args:
        section: what picks it.
        unsafe: whether it is taken also where it cannot confine them.

    Raises:
        ConfigError: it cannot confine them; the text says why, and the remedy.
        PlugrlError: as :func:`make_sandbox`.
    """
    sandbox = make_sandbox(section)
    fault = None if unsafe else sandbox.fault()
    if fault is not None:
        raise ConfigError(with_remedy(fault))
    return sandbox


def with_remedy(fault: str) -> str:
    """A fault of a sandbox, with what else can be done about it."""
    return f"{fault}; to let programs do what they want, set unsafe: true"
