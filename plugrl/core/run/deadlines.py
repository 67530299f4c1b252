"""Deadlines of phases: a step that hangs is ended, and the stacks show where it hung."""

from __future__ import annotations

import contextlib
import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_TICK = 1.0
#: A longer gap between two ticks means that the process was suspended (a laptop that sleeps, a
#: debugger): that time counts against no deadline.
_SUSPENDED = 5.0
#: The longest timeout, in seconds, that faulthandler accepts on every platform.
_LONGEST = 1e6


@dataclass(eq=False, slots=True)
class PhaseDeadline:
    """An active phase and when it has to end."""

    name: str
    seconds: float
    until: float


class Deadlines:
    """Watches the active phases from a thread of its own.

    Entering and leaving a phase costs microseconds. A call that never releases the interpreter
    lock (GIL) stops the watching thread too; faulthandler, which does not need the lock, then
    prints the stacks and ends the process some seconds later.

    Args:
        on_expired: called in the watching thread with the phase; it should end the process.
        grace: seconds after the deadline at which the fallback ends the process.
    """

    def __init__(self, on_expired: Callable[[PhaseDeadline], None], *, grace: float = 30.0) -> None:
        self._grace = grace
        self._on_expired = on_expired
        self._active: list[PhaseDeadline] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._idle = True
        self._closed = False
        self._suspended = 0.0
        self._armed = False
        self._expiry = 0.0

    def _clock(self) -> float:
        # Monotonic time without suspensions: what deadlines are measured in.
        return time.monotonic() - self._suspended

    @contextlib.contextmanager
    def phase(self, name: str, seconds: float) -> Iterator[None]:
        """Watch the body of the ``with`` statement."""
        phase = PhaseDeadline(name, seconds, self._clock() + seconds)
        with self._changed:
            self._active.append(phase)
            # Armed here rather than in the thread: the very next call may hold the interpreter lock
            # forever, and then the thread never runs.
            self._arm()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="plugrl-deadlines", daemon=True
                )
                self._thread.start()
            elif self._idle:
                self._changed.notify()
        try:
            yield
        finally:
            # The thread is not woken: it finds out at its next tick, and steps stay cheap.
            with self._changed:
                self._active.remove(phase)

    @contextlib.contextmanager
    def suspension(self) -> Iterator[None]:
        """The process is suspended in the body: faulthandler's clock would go on meanwhile."""
        with self._changed:
            self._disarm()
            start = time.monotonic()
            yield
            self._suspended += time.monotonic() - start
            if self._active:
                self._arm()

    def close(self) -> None:
        """Stop watching."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * _TICK)

    def _watch(self) -> None:
        try:
            while True:
                with self._changed:
                    if self._closed:
                        return
                    self._idle = not self._active
                    if self._idle:
                        self._disarm()
                    else:
                        self._arm()
                    self._wait()
                    late = [p for p in self._active if self._clock() >= p.until]
                if late:
                    # The innermost one: phases nest, and it names the hanging call best.
                    self._on_expired(late[-1])
                    return
        finally:
            self._disarm()

    def _seconds_left(self) -> float:
        return max(0.0, min(p.until for p in self._active) - self._clock())

    def _arm(self) -> None:
        seconds = min(self._seconds_left() + self._grace, _LONGEST)
        # Arming starts a thread, which is too slow for every phase: keep a timer that expires at
        # about the right time. One that an earlier phase left behind serves the next phase too; the
        # watching thread cancels the last one.
        expiry = time.monotonic() + seconds
        if self._armed and expiry - self._grace / 2 <= self._expiry <= expiry:
            return
        # Standard error may be closed or replaced; then only the thread watches.
        with contextlib.suppress(ValueError, OSError, RuntimeError):
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)
            self._armed = True
            self._expiry = expiry

    def _disarm(self) -> None:
        if self._armed:
            faulthandler.cancel_dump_traceback_later()
            self._armed = False

    def _wait(self) -> None:
        if self._idle:
            self._changed.wait()
            self._idle = False
            return
        pause = min(max(self._seconds_left(), 0.01), _TICK)
        start = self._clock()
        self._changed.wait(pause)
        gap = self._clock() - start - pause
        if gap > _SUSPENDED:
            self._suspended += gap
