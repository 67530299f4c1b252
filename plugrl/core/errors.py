"""Every error that plugrl raises on purpose, with the exit code it ends a command with.

A message is one line: what is wrong, where, and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence

from plugrl.core.wording import bounded_message

EXIT_DONE = 0
EXIT_RUN_FAILED = 1
EXIT_USAGE = 2
EXIT_PLUGIN = 3
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class PlugrlError(Exception):
    """Base of all errors that a command answers with one line instead of a traceback."""

    exit_code = EXIT_RUN_FAILED

    def __init__(self, message: str = "") -> None:
        # Bounded, because it quotes what others wrote.
        super().__init__(bounded_message(str(message)))


class RunError(PlugrlError):
    """The run itself failed: a guard, a deadline, a worker, a full disk."""


class NonFiniteError(RunError):
    """A loss, gradient, reward or log-probability is NaN or infinite."""


class ContractError(RunError, ValueError):
    """A component answered something that its contract excludes."""


class EngineLost(RunError):
    """What an engine answered with is gone, such as the server that it had started.

    Engines on a cluster are replaced, and asked again what they had not answered.

    Args:
        message: what happened, in a line.
        how: the same as a predicate, such as ``lost its server, which was ended by SIGKILL``.
    """

    def __init__(self, message: str, how: str = "") -> None:
        super().__init__(message)
        self.how = how or message


class UsageError(PlugrlError):
    """The command or the Python call is wrong, or names something that does not exist."""

    exit_code = EXIT_USAGE


class ConfigError(PlugrlError):
    """The configuration is wrong.

    Its text is the whole report: one line, or a summary with one indented line for each fault.
    ``faults`` holds the faults alone.
    """

    exit_code = EXIT_USAGE

    def __init__(self, message: str, faults: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(map(bounded_message, faults)) or (super().__str__(),)

    def __str__(self) -> str:
        summary = super().__str__()
        if self.faults == (summary,):
            return summary
        return "\n  ".join((summary, *self.faults))

    def at(self, where: str) -> ConfigError:
        """The same faults, after the words that say where they are."""
        if len(self.faults) == 1:
            return ConfigError(f"{where}: {self.faults[0]}")
        return ConfigError(f"{where}: {len(self.faults)} faults", self.faults)


class UnknownComponentError(ConfigError):
    """No installed package, file or hook provides a component of this name."""


class AmbiguousComponentError(ConfigError):
    """Two installed distributions provide one bare name; the message spells both out."""


class PluginError(PlugrlError):
    """A plugin that the configuration asks for cannot be used."""

    exit_code = EXIT_PLUGIN


class MissingNameError(PluginError):
    """A user's file was imported, but has nothing of the name that the configuration gives."""


class StopRun(Exception):
    """Raised by a hook or a trainer to end the run cleanly (exit code 0)."""


class RunInterrupted(PlugrlError):
    """The run was stopped by Ctrl-C; it can be resumed."""

    exit_code = EXIT_INTERRUPTED


class RunTerminated(PlugrlError):
    """The run was stopped by SIGTERM; it can be resumed."""

    exit_code = EXIT_TERMINATED


class PlugrlWarning(UserWarning):
    """Base of plugrl's warnings."""


class PlugrlDeprecationWarning(PlugrlWarning, DeprecationWarning):
    """Something goes away: warned for two minor versions, then an error, then gone."""
