"""The actor of one rank, which says where it is before it imports torch, which takes seconds."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from plugrl.core.run.process.heap import rare_collections

if TYPE_CHECKING:
    from plugrl.plugins.distributed.rank import RankWorker


class RankActor:
    """A rank, of which the first call imports what it computes with."""

    def __init__(self) -> None:
        self._worker: RankWorker | None = None
        # It listens from now on, so that nobody else gets its port before the ranks join.
        self._server = open_server()

    def place(self) -> tuple[str, int, int]:
        """The address of this machine, a port that is this rank's, and the process's number."""
        return (*self._server.getsockname()[:2], os.getpid())

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the rank; dicts of tensors are packed on their way."""
        if self._worker is None:
            with rare_collections():
                from plugrl.plugins.distributed.rank import RankWorker

                self._worker = RankWorker(self._server)
        return self._worker.call(method, *args)


def open_server() -> socket.socket:
    """A socket that listens at the address by which other machines reach this one."""
    return socket.create_server((_own_address(), 0))


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: it only chooses the interface.
            probe.connect(("10.255.255.255", 1))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
