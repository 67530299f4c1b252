"""The driver's end of a process that an actor keeps on another machine."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from multiprocessing.connection import Connection
from typing import Any

from plugrl.core.run.process.cluster import settings
from plugrl.core.text.rollout.processes.process import IDLE
from plugrl.plugins.ray import cluster
from plugrl.plugins.ray.errors import reason

#: The thread of an actor that waits for what its process says.
OUT = "out"
#: Seconds after which an actor answers although its process has said nothing.
_PULSE = 1.0
#: Seconds without any answer after which an actor is given up: its machine may have stopped.
_SILENCE = 60.0
#: Seconds for the news of an end to arrive.
_PATIENCE = 2.0


class Channel:
    """Messages to and from one process.

    What the actor passes on is written to a local socket by a thread, so that actors are waited for
    like processes of this machine.

    Args:
        actor: a ``Relay``, which may not have started yet.

    Attributes:
        connection: where messages are read; its end says that the process is gone.
        socket: below the connection.
        place: where the process is; empty before it runs.
        beats: signs of life that the process has given.
        running: the attempt whose code ran when the actor last said so; -1: none.
        lost: whether the actor was lost, and not the process alone.
    """

    def __init__(self, actor: Any) -> None:
        self.socket, there = socket.socketpair()
        self.connection = Connection(os.dup(self.socket.fileno()))
        self.place: dict[str, str] = {}
        self.beats, self.running = 0, IDLE
        self.lost = False
        self._how = ""
        self._ray = cluster.load_ray()
        self._actor = actor
        self._thread = threading.Thread(
            target=self._pass_on, args=(Connection(there.detach()),), daemon=True
        )
        self._thread.start()

    def send(self, data: bytes) -> None:
        """Send a message.

        Raises:
            BrokenPipeError: the process is gone.
        """
        if not self._thread.is_alive():
            raise BrokenPipeError
        self._actor.send.remote(data)

    def end(self) -> str:
        """End the process if it has not ended, and say how it did."""
        self._thread.join(_PATIENCE)
        self.kill()
        self._thread.join()
        self.close()
        return self._how or "was ended by this run"

    def kill(self) -> None:
        """End the process without waiting."""
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)

    def close(self) -> None:
        """Read no more."""
        with contextlib.suppress(OSError):
            self.connection.close()
        self.socket.close()

    def _pass_on(self, there: Connection) -> None:
        """Write what the actor passes on to the local socket, until its end."""
        get = self._ray.get
        receive = self._actor.receive.options(concurrency_group=OUT)
        try:
            self.place = get(self._actor.place.remote(), timeout=settings().start_timeout)
            while not self._how:
                answer = get(receive.remote(_PULSE), timeout=_PULSE + _SILENCE)
                messages, self.beats, self.running, self._how = answer
                for message in messages:
                    there.send_bytes(message)
        except self._ray.exceptions.RayError as error:
            self._how, self.beats = reason(error), 0
            # For want of memory Ray ends actors of its choice: code that ran may have taken it.
            lacked = isinstance(error, self._ray.exceptions.OutOfMemoryError)
            self.lost = not lacked or self.running == IDLE
        except (OSError, SystemExit):  # the run has closed its end, or left the cluster
            return
        finally:
            there.close()
