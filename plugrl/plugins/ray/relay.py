"""The actor that keeps a process on its machine, and passes messages on.

The process is the one that runs on the driver's machine otherwise, with its own interpreter and
main thread. So it is known which attempt ended it and how, and code that blocks holds up no actor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Protocol

from plugrl.plugins.ray.cluster import described_packages
from plugrl.plugins.ray.files import Files, provide

#: Bytes of messages that one answer brings; a message may be larger.
_MOST = 8 * 2**20


class Process(Protocol):
    """A process of the actor's machine; one of a rollout worker also has beats and attempts."""

    @property
    def connection(self) -> Connection:
        """To the process."""

    @property
    def pid(self) -> int:
        """Its number."""

    def end(self) -> str:
        """Wait for its end, and say how it came."""


class Relay:
    """One process, and its messages.

    Args:
        start: starts the process, given where folders of the driver's machine are on this one.
        files: what the process needs and this machine may lack.
        paths: where the driver finds modules; those that are there are searched last.
    """

    def __init__(
        self, start: Callable[[Mapping[str, str]], Process], files: Files, paths: Sequence[str]
    ) -> None:
        sys.path += [path for path in paths if path not in sys.path and os.path.exists(path)]
        self._process = start(provide(files))
        # The process ends when its connection does, unless its code lets no other code of it run,
        # as long as it takes memory for example; and it may have started others.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$0"', str(self._process.pid)],
            stdin=subprocess.PIPE,
            process_group=0,
        )
        self._ended = ""

    def place(self) -> dict[str, str]:
        """Where it is: address of the machine, process, and what is installed there."""
        import ray

        return {
            "node": str(ray.util.get_node_ip_address()),  # type: ignore[no-untyped-call]
            "pid": str(self._process.pid),
            "versions": described_packages(),
        }

    def send(self, data: bytes) -> None:
        """Pass a message on to the process; that it is gone, :meth:`receive` says."""
        try:
            self._process.connection.send_bytes(data)
        except (OSError, ValueError):
            return

    def receive(self, seconds: float) -> tuple[list[bytes], int, int, str]:
        """What the process has said since the last call, waiting for it for so long.

        Returns:
            The messages, the number of signs of life, the attempt whose code runs, and how the
            process ended, if it did.
        """
        messages: list[bytes] = []
        process, running = self._process, -1
        if not self._ended:
            running = getattr(process, "running_attempt", -1)
            try:
                patience = seconds
                while sum(map(len, messages)) < _MOST and wait([process.connection], patience):
                    messages.append(process.connection.recv_bytes())
                    patience = 0
                running = getattr(process, "running_attempt", -1)
            except (EOFError, OSError):
                running = getattr(process, "running_attempt", -1)
                self._ended = process.end() or "ended"
                self._guard.kill()
        return messages, 0 if self._ended else getattr(process, "beats", 0), running, self._ended
