"""SIGINT and SIGTERM: the first one requests a stop, the second one ends the process at once.

SIGTSTP, which a terminal sends for Ctrl-Z, suspends the process, as soon as no call holds the
interpreter lock (GIL), and no deadline counts that time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

from plugrl.core.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, RunTerminated

_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


#: Signals that arrived while a run was being created; see :func:`defer_signals`.
_early: list[signal.Signals] = []
#: Those whose handlers are set.
_installed: set[SignalWatch] = set()


class SignalWatch:
    """Counts stop signals while a run is active.

    Python runs signal handlers only between two bytecodes of the main thread. A thread that reads
    the wake-up descriptor sees signals even while the main thread is inside a long C call.

    Args:
        on_first: called with the first signal, which requests a stop.
        on_second: called with the second signal, which ends the process.
        suspension: a context in which the process is suspended by SIGTSTP.
    """

    def __init__(
        self,
        on_first: Callable[[signal.Signals], None],
        on_second: Callable[[signal.Signals], None],
        suspension: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.requested: signal.Signals | None = None
        self._on_first = on_first
        self._on_second = on_second
        self._suspension = suspension
        self._handled = 0
        self._read = 0
        self._first_signal = threading.Lock()
        self._previous: dict[signal.Signals, Any] = {}
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._old_descriptor = -1

    def install(self) -> None:
        """Install the handlers; no effect outside the main thread, which Python does not allow."""
        if threading.current_thread() is not threading.main_thread():
            return
        reader, writer = socket.socketpair()
        # The C-level handler writes here and must never block.
        writer.setblocking(False)
        self._sockets = (reader, writer)
        self._old_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in _CODES:
            self._previous[number] = signal.signal(number, self._handle)
        # Whoever ignores it, or has a handler, keeps it.
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            self._previous[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._handle_suspension)
        _installed.add(self)
        threading.Thread(
            target=self._watch, args=(reader,), name="plugrl-signals", daemon=True
        ).start()
        # Deliver what defer_signals held back while the run was created.
        early = _early.copy()
        _early.clear()
        for number in early:
            signal.raise_signal(number)

    def uninstall(self) -> None:
        """Restore the previous handlers, and end the thread."""
        if self._sockets is None:
            return
        self.restore_handlers()
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._sockets = None

    def restore_handlers(self) -> None:
        """Handle signals as before; without it a forked process would tell its parent of them."""
        _installed.discard(self)
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._old_descriptor)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._handled += 1
        self._note(signal.Signals(number), self._handled)

    def _handle_suspension(self, number: int, frame: FrameType | None) -> None:
        # The thread sees to it, unless somebody else, such as asyncio, has taken its descriptor.
        assert self._sockets is not None
        own = self._sockets[1].fileno()
        current = signal.set_wakeup_fd(own, warn_on_full_buffer=False)
        if current != own:
            signal.set_wakeup_fd(current)
            self._suspend()

    def _suspend(self) -> None:
        with self._suspension():
            # It has no handler, so that the process stops, unless no shell could let it go on: then
            # the kernel drops it, as SIGTSTP. To this thread, so that no other is stopped first.
            signal.pthread_kill(threading.get_ident(), signal.SIGTTOU)

    def _watch(self, reader: socket.socket) -> None:
        while True:
            try:
                received = reader.recv(4096)
            except OSError:
                return
            if not received:
                return
            self._note_all(received)
            if signal.SIGTSTP in received:
                self._suspend()
                # Whatever came until the process went on asks for no other suspension.
                with contextlib.suppress(OSError):
                    self._note_all(reader.recv(4096, socket.MSG_DONTWAIT))

    def _note_all(self, received: bytes) -> None:
        for number in received:
            if number in _CODES:
                self._read += 1
                self._note(signal.Signals(number), self._read)

    def _note(self, number: signal.Signals, count: int) -> None:
        if count >= 2:
            self._on_second(number)
        elif self._first_signal.acquire(blocking=False):
            # Never released. Handler and thread both see the first signal; whichever takes this
            # lock reports it. They count separately, so neither mistakes it for a second one.
            self.requested = number
            self._on_first(number)


def _restore_handlers_in_child() -> None:
    for watch in _installed.copy():
        watch.restore_handlers()


os.register_at_fork(after_in_child=_restore_handlers_in_child)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Hold back stop signals until the run that the body creates can handle them.

    Without this, a signal that arrives after the run folder exists but before the run handles
    signals would leave a folder that looks like that of a killed run. Signals that no run has taken
    are raised again at the end.
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
    """Raise ``RunTerminated`` on SIGTERM in the body, so that resources are closed.

    For work outside a run, which handles signals itself. No effect outside the main thread, which
    Python does not allow.
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


#: Whether the last line of the terminal is a status line, which would be glued to what is written.
_status_line = False


def mark_status_line(is_there: bool) -> None:
    """Say whether a status line stands on the terminal, for :func:`write_stderr`."""
    global _status_line
    _status_line = is_there


def write_stderr(text: str) -> None:
    """Write a line to standard error, bypassing Python's buffers, whose locks may be held."""
    erased = b"\r\x1b[2K" if _status_line else b""
    with contextlib.suppress(OSError):
        os.write(2, erased + text.encode("utf-8", "replace") + b"\n")


def exit_soon(code: int, seconds: float = 5.0) -> None:
    """End the process within ``seconds``, even if its last output blocks on a full pipe."""

    def end() -> None:
        threading.Event().wait(seconds)
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()
