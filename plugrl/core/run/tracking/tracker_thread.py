"""Runs each tracker in a thread of its own, so that it can neither slow down nor end a run."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from plugrl.core.plugins.user_code.error_location import error_message
from plugrl.core.run.tracking.tracker import TrackedRun, Tracker

log = logging.getLogger("plugrl.run")

#: The number of queued calls beyond which the run waits for the tracker.
_WAITING = 10_000
#: After a suspension every call looks too slow, so it gets this many seconds more.
_GRACE = 0.5

Call = tuple[str, tuple[Any, ...]]


class TrackerThread:
    """Passes calls to a tracker, in order, until it fails.

    Args:
        tracker: the tracker.
        name: the name of the tracker in messages.
        timeout: seconds that one call may take.
        on_failure: called once, with the name, when the tracker is switched off.
    """

    def __init__(
        self, tracker: Tracker, name: str, timeout: float, on_failure: Callable[[str], None]
    ) -> None:
        self.name = name
        self._tracker = tracker
        self._timeout = timeout
        self._on_failure = on_failure
        self._missed: Callable[[int], list[Call]] = lambda held: []
        self._calls: queue.Queue[Call | None] = queue.Queue(_WAITING)
        self._given = self._handled = self._flushed = 0
        self._flush = threading.Event()
        self._now: tuple[str, float] | None = None
        self._lock = threading.Lock()
        self.failed = False
        self._thread = threading.Thread(target=self._work, name=f"plugrl-{name}", daemon=True)

    @property
    def hangs(self) -> bool:
        """Whether a call that was given up is still running."""
        return self.failed and self._thread.is_alive()

    def start(self, run: TrackedRun, missed: Callable[[int], list[Call]]) -> None:
        """Start the tracker; ``missed`` returns the calls after the step that it has stored."""
        self._missed = missed
        self._put(("start", (run,)))
        self._thread.start()

    def put(self, method: str, *arguments: Any) -> None:
        """Queue a call; this only blocks if the tracker is far behind."""
        if not self.failed and not self._is_too_slow():
            self._put((method, arguments))

    def _put(self, call: Call | None) -> None:
        self._given += 1
        while not self.failed:
            try:
                self._calls.put(call, timeout=0.1)
                return
            except queue.Full:
                self._is_too_slow()

    def drain(self, until: float) -> None:
        """Wait until all queued calls are done and flushed, or until a monotonic time."""
        while not self.failed and self._flushed < self._given:
            if self._is_too_slow() or time.monotonic() > until:
                return
            self._flush.wait(0.1)
            self._flush.clear()

    def close(self, until: float) -> None:
        """Finish all queued calls and end the thread, or give up at a monotonic time."""
        self._put(None)
        while not self.failed and self._thread.is_alive():
            self._thread.join(0.1)
            if self._thread.is_alive() and not self._is_too_slow() and time.monotonic() > until:
                self.fail(f"was not done {self._timeout:g} s after the end of the run")

    def _is_too_slow(self) -> bool:
        """Give up a call that takes too long."""
        now = self._now
        if now is None or time.monotonic() - now[1] <= self._timeout:
            return False
        time.sleep(_GRACE)
        if self._now is not now:
            return False
        self.fail(f"did not come back from {now[0]}() within {self._timeout:g} s")
        return True

    def fail(self, what: str, error: BaseException | None = None) -> None:
        """Switch the tracker off, with one warning."""
        with self._lock:
            if self.failed:
                return
            self.failed = True
        remedy = self._tracker.remedy or "metrics.jsonl and samples/ of the run folder are complete"
        log.warning("the tracker %s %s and is left out from now on; %s", self.name, what, remedy)
        if error is not None:
            log.debug("traceback of the tracker %s", self.name, exc_info=error)
        self._on_failure(self.name)

    # -- the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        while not self.failed:
            call = self._next()
            if call is None:
                return
            if not self._call(*call):
                return

    def _next(self) -> Call | None:
        if self._calls.empty():
            if not self._call("flush", ()):
                return None
            self._flushed = self._handled
            self._flush.set()
        call = self._calls.get()
        self._handled += 1
        return call

    def _call(self, method: str, arguments: tuple[Any, ...]) -> bool:
        self._now = (method, time.monotonic())
        try:
            value = getattr(self._tracker, method)(*arguments)
        except BaseException as error:
            text = " ".join(error_message(error).split())
            self.fail(f"failed in {method}(): {type(error).__name__}: {text}".rstrip(": "), error)
            return False
        finally:
            self._now = None
        if method == "start" and isinstance(value, int) and arguments[0].resumed:
            return all(self.failed or self._call(*call) for call in self._missed(value))
        return True
