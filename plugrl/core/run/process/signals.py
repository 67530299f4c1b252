"""SIGINT and SIGTERM: the first asks the run to stop, the second ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from plugrl.core.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, RunTerminated

_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


#: What came while a run was made.
_early: list[signal.Signals] = []


class SignalWatch:
    """Counts stop signals while a run is active.

    Python runs signal handlers only between bytecodes of the main thread. A thread that reads
    the wake-up descriptor sees them also while the main thread sits in a long call.

    Args:
        on_first: called with the signal when a stop is asked for.
        on_second: called with the signal when the process has to end now.
    """

    def __init__(
        self,
        on_first: Callable[[signal.Signals], None],
        on_second: Callable[[signal.Signals], None],
    ) -> None:
        self.requested: signal.Signals | None = None
        self._on_first = on_first
        self._on_second = on_second
        self._handled = 0
        self._read = 0
        self._first_signal = threading.Lock()
        self._previous: dict[signal.Signals, Any] = {}
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._old_descriptor = -1

    def install(self) -> None:
        """Take the signals over; outside the main thread Python does not allow it: no effect."""
        if threading.current_thread() is not threading.main_thread():
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._sockets = (reader, writer)
        self._old_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in _CODES:
            self._previous[number] = signal.signal(number, self._handle)
        threading.Thread(
            target=self._watch, args=(reader,), name="plugrl-signals", daemon=True
        ).start()
        early = _early.copy()
        _early.clear()
        for number in early:
            signal.raise_signal(number)

    def uninstall(self) -> None:
        """Give the signals back to whoever had them before."""
        if self._sockets is None:
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._old_descriptor)
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._sockets = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._handled += 1
        self._note(signal.Signals(number), self._handled)

    def _watch(self, reader: socket.socket) -> None:
        while True:
            try:
                received = reader.recv(16)
            except OSError:
                return
            if not received:
                return
            for number in received:
                if number in _CODES:
                    self._read += 1
                    self._note(signal.Signals(number), self._read)

    def _note(self, number: signal.Signals, count: int) -> None:
        if count >= 2:
            self._on_second(number)
        elif self._first_signal.acquire(blocking=False):
            # Never released: handler and thread both see the first signal, one speaks.
            self.requested = number
            self._on_first(number)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Keep stop signals for the run that is made and started within.

    Else one that comes when the folder of the run is there, but nobody to end it, leaves a run that
    seems to have been killed. What no run has taken counts at the end as if it came then.
    """

    def keep(number: int, frame: FrameType | None) -> None:
        _early.append(signal.Signals(number))

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, keep) for number in _CODES}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        late = _early.copy()
        _early.clear()
        for number in late:
            signal.raise_signal(number)


@contextlib.contextmanager
def raise_on_sigterm(reason: str) -> Iterator[None]:
    """Where no run is active: raise ``RunTerminated`` at SIGTERM, so that everything is closed.

    Outside the main thread Python does not allow it: no effect.
    """

    def end(*_: object) -> None:
        raise RunTerminated(reason)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(number: signal.Signals) -> int:
    """Return the exit code of a run that this signal ended."""
    return _CODES[number]


def write_stderr(text: str) -> None:
    """Write a line to standard error past Python's buffers, whose locks may be held."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "replace") + b"\n")


def exit_soon(code: int, seconds: float = 5.0) -> None:
    """End the process within ``seconds`` even when the last words block on a full pipe."""

    def end() -> None:
        threading.Event().wait(seconds)
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()
