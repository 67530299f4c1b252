"""``Executor``: where the worker processes of a run live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from socket import socket
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from plugrl.core.component import Component
from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import UsageError
from plugrl.core.text.rollout.processes.handle import ProcessHandle, WorkerHandle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.rollout.processes.messages import Setup


class Channel(Protocol):
    """The driver's end of a process in another place; it is written and read as messages."""

    @property
    def connection(self) -> Connection:
        """Where messages are read; its end says that the process is gone."""

    @property
    def socket(self) -> socket:
        """Below the connection; its time limits are those of reading."""

    def send(self, data: bytes) -> None:
        """Send a message; raises ``BrokenPipeError`` when the process is gone."""

    def end(self) -> str:
        """End the process if it has not ended, and say how it did."""

    def kill(self) -> None:
        """End the process without waiting."""


@dataclass
class ExecutorConfig:
    """How many worker processes there are."""

    workers: int = described(
        2, "processes that run the worker and its evaluator", at_least=1, at_most=10**4
    )


class Executor(Component, ABC):
    """Starts the processes that run a rollout worker, on other machines for example.

    What the processes do, in which order they are asked and what happens when one dies is the same
    wherever they live, and so are the numbers in ``sync``.
    """

    Config: ClassVar[type] = ExecutorConfig

    @classmethod
    def unplaced(cls, check: Preflight, key: str) -> Iterable[Finding]:
        """Why the processes of the component at ``check.path`` do not fit, before a run begins.

        Args:
            check: of a component whose processes are in such places.
            key: of its section; says how many there are.
        """
        return ()

    @property
    def workers(self) -> int:
        """How many processes are used."""
        count: int = self.config.workers
        return count

    def prepare(self, setup: Setup) -> None:
        """Make sure that the processes of a setup can be started, before the first is.

        Raises:
            PlugrlError: they do not fit, or a machine lacks a package or has another version.
        """

    @abstractmethod
    def start(self, name: str) -> WorkerHandle:
        """Start a process without waiting for it; ``name`` is what messages call it."""

    def channel(self, start: Callable[[Mapping[str, str]], Any]) -> Channel:
        """Have another process started in such a place, for example that of an environment.

        Args:
            start: importable there; given where folders of the driver's machine are, it gives
                something with ``connection``, ``pid`` and ``end()``, as a ``ProcessHandle``.

        Raises:
            PlugrlError: there are no other places.
        """
        raise UsageError(f"executor {type(self).__name__} runs rollout workers alone; name another")

    def is_outdated(self, handle: WorkerHandle) -> bool:
        """Whether an idle process should be started anew elsewhere."""
        return False

    def close(self) -> None:
        """Free what the processes shared; they have ended."""


class LocalExecutor(Executor):
    """Processes of this machine."""

    def start(self, name: str) -> WorkerHandle:
        """Start a process; see the base class."""
        return ProcessHandle(name)
