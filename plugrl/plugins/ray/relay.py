"""The actor that keeps a worker process on its machine, and passes messages on.

The process is the one that runs on the driver's machine otherwise, with its own interpreter and
main thread. So it is known which attempt ended it and how, and code that blocks holds up no actor.
"""

from __future__ import annotations

from multiprocessing.connection import wait

from plugrl.core.text.rollout.processes.handle import ProcessHandle
from plugrl.plugins.ray.cluster import packages
from plugrl.plugins.ray.files import Files, provide

#: Bytes of messages that one answer brings; a message may be larger.
_MOST = 8 * 2**20


class WorkerRelay:
    """One worker process.

    Args:
        name: how messages call it.
        files: what the process needs and this machine may lack.
    """

    def __init__(self, name: str, files: Files) -> None:
        self._handle = ProcessHandle(name, provide(files))
        self._ended = ""

    def place(self) -> dict[str, str]:
        """Where it is: address of the machine, process, and what is installed there."""
        import ray

        return {
            "node": ray.util.get_node_ip_address(),
            "pid": str(self._handle.pid),
            "versions": ", ".join(f"{name} {each}" for name, each in packages(["ray"]).items()),
        }

    def send(self, data: bytes) -> None:
        """Pass a message on to the process; that it is gone, :meth:`receive` says."""
        try:
            self._handle.connection.send_bytes(data)
        except (OSError, ValueError):
            return

    def receive(self, seconds: float) -> tuple[list[bytes], int, int, str]:
        """What the process has said since the last call, waiting for it for so long.

        Returns:
            The messages, the number of signs of life, the attempt whose code runs, and how the
            process ended, if it did.
        """
        messages: list[bytes] = []
        if not self._ended:
            connection = self._handle.connection
            try:
                patience = seconds
                while sum(map(len, messages)) < _MOST and wait([connection], patience):
                    messages.append(connection.recv_bytes())
                    patience = 0
            except (EOFError, OSError):
                running = self._handle.running_attempt
                self._ended = self._handle.end()
                return messages, 0, running, self._ended
        return messages, self._handle.beats, self._handle.running_attempt, self._ended
