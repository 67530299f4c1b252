"""Calls to a service behind a network: each ends within a bounded time, and says what failed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from plugrl.core.errors import PlugrlError, RunError
from plugrl.core.plugins.user_code.error_location import one_line

Value = TypeVar("Value")
Given = TypeVar("Given")
#: Seconds between two looks at a call that is open.
_TICK = 0.25
#: Seconds that a call is open before it is asked whether the service still answers, and between
#: two such questions.
_PROBE_EVERY = 3.0
#: Seconds that the answer to such a question may take.
_PROBE_TIMEOUT = 3.0
#: Calls that block and are open at once.
_CONNECTIONS = 32
#: Longer gaps between two looks mean that this process was stopped.
_LONGEST_TICK = 5.0


class _Wait:
    """How long somebody waits, the time left out in which this process was stopped."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.start = self._seen = time.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        """Seconds until now; it is asked every tick."""
        now = time.monotonic()
        self._seconds += min(now - self._seen, _LONGEST_TICK)
        self._seen = now
        return self._seconds


class RemoteCalls:
    """Waits for what a service was asked for.

    A software development kit may try again for ever. So a service that gives no sign of life for
    ``patience`` seconds ends the call, and ``timeout`` bounds it in any case. A sign of life is any
    answer of HTTP, whatever it says.

    Args:
        name: what messages call the service, such as ``the tinker service``.
        url: where it is; messages name it.
        health: the address that is asked whether it answers.
        timeout: seconds that one call may take.
        patience: seconds without a sign of life.
        explain: gives the error to raise in place of one that the service's kit raised; None: it
            does not know it.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        health: str,
        timeout: float,
        patience: float,
        explain: Callable[[str, Exception], PlugrlError | None],
    ) -> None:
        self._name, self.url, self._health = name, url, health
        self._timeout, self._patience = timeout, patience
        self._explain = explain
        self._asking = threading.Lock()
        self._connections = threading.BoundedSemaphore(_CONNECTIONS)
        self._asked = self._answered = 0.0

    def call(self, what: str, function: Callable[[], Value]) -> Value:
        """Run a call that blocks, in a thread of its own, and give its result.

        Raises:
            PlugrlError: it failed, the service is silent, or time is up.
        """
        return self.result(what, self.begin(what, function))

    def begin(self, what: str, function: Callable[[], Value]) -> Future[Value]:
        """Begin a call that blocks; it is waited for with :meth:`result`.

        A call that nobody waits for any more is left behind: its thread ends with the process.
        """
        future: Future[Value] = Future()

        def work() -> None:
            with self._connections:
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=work, name=f"plugrl: {what}", daemon=True).start()
        return future

    def result(self, what: str, future: Future[Value]) -> Value:
        """Wait for a future of the service's kit.

        Raises:
            PlugrlError: it failed, the service is silent, or time is up.
        """
        wait = _Wait(what)
        while True:
            concurrent.futures.wait([future], _TICK)
            if future.done():
                return self._take_result(what, future)
            fault = self._timeout_error(wait)
            if fault is None and self._probe_due(wait):
                fault = self._probe_session(wait)
            if fault is not None:
                future.cancel()
                raise fault

    async def result_async(self, what: str, future: Future[Value]) -> Value:
        """:meth:`result` for a coroutine; cancelling it cancels the future."""
        wait = _Wait(what)
        waiting = asyncio.wrap_future(future)
        try:
            while True:
                await asyncio.wait([waiting], timeout=_TICK)
                if waiting.done():
                    return self._take_result(what, future)
                fault = self._timeout_error(wait)
                if fault is None and self._probe_due(wait):
                    fault = await asyncio.to_thread(self._probe_session, wait)
                if fault is not None:
                    raise fault
        finally:
            # Of a future that has ended this does nothing.
            waiting.cancel()

    def deferred_result(
        self, what: str, future: Future[Given], take: Callable[[Given], Value]
    ) -> Future[Value]:
        """A future whose ``result()`` waits as :meth:`result` does, and goes through ``take``."""
        return _Later(lambda: take(self.result(what, future)))

    def _take_result(self, what: str, future: Future[Value]) -> Value:
        try:
            return future.result()
        except PlugrlError:
            raise
        except Exception as error:
            raise self.error(what, error) from error

    def error(self, what: str, error: Exception) -> PlugrlError:
        """What is raised in place of an error of the service's kit."""
        known = self._explain(what, error)
        if known is not None:
            return known
        return RunError(f"{self._name} at {self.url} failed to {what}: {one_line(error)[:400]}")

    def _timeout_error(self, wait: _Wait) -> RunError | None:
        if wait.seconds() <= self._timeout:
            return None
        return RunError(
            f"{self._name} at {self.url} answers, but did not {wait.what} within timeout="
            f"{self._timeout:g} seconds; raise the timeout, or resume when it is less busy"
        )

    def _probe_due(self, wait: _Wait) -> bool:
        return time.monotonic() - max(wait.start, self._asked) > _PROBE_EVERY

    def _probe_session(self, wait: _Wait) -> RunError | None:
        """Ask for a sign of life, unless another call is asking; gives the fault of none."""
        if not self._asking.acquire(blocking=False):
            return None
        try:
            silence = self._probe()
            self._asked = time.monotonic()
            if not silence:
                self._answered = self._asked
        finally:
            self._asking.release()
        # The clock of silence starts with the call: nothing was asked before.
        silent = time.monotonic() - max(wait.start, self._answered)
        if not silence or silent < self._patience:
            return None
        return RunError(
            f"{self._name} at {self.url} was silent for {silent:.0f} seconds ({silence}) "
            f"while asked to {wait.what}; check base_url and that it runs, then start or resume "
            "the run; patience is how long it may be silent"
        )

    def _probe(self) -> str:
        """Why the service gives no sign of life; "": it does."""
        try:
            with urllib.request.urlopen(self._health, timeout=_PROBE_TIMEOUT):
                return ""
        except urllib.error.HTTPError:
            return ""
        except TimeoutError:
            return "it accepts connections and does not answer"
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                return "connecting timed out"
            return getattr(error.reason, "strerror", None) or str(error.reason)
        except (OSError, ValueError) as error:
            return getattr(error, "strerror", None) or one_line(error)
        except Exception as error:
            # Such as half an answer of HTTP.
            return one_line(error)


class _Later(Future[Value]):
    """Looks at the service while somebody waits, instead of in a thread of its own."""

    def __init__(self, wait: Callable[[], Value]) -> None:
        super().__init__()
        self._wait = wait

    def result(self, timeout: float | None = None) -> Value:
        """Wait for the result."""
        if not self.done():
            try:
                self.set_result(self._wait())
            except BaseException as error:
                self.set_exception(error)
        return super().result(timeout)
