"""Attempts that wait, or that ask nothing for long, without holding up the lockstep."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary

from plugrl.core.text.endpoint.session import Session
from plugrl.core.text.rollout.task import RolloutTask

logger = logging.getLogger(__name__)


class Slots:
    """Places for attempts; who finds none waits for its turn, in order.

    Args:
        count: places in each event loop.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._rows: WeakKeyDictionary[asyncio.AbstractEventLoop, _Row] = WeakKeyDictionary()

    async def take(self, task: RolloutTask) -> Callable[[], None]:
        """Wait for a place, and give what returns it."""
        row = self._rows.setdefault(asyncio.get_running_loop(), _Row(self._count))
        await row.take(task)
        return row.give


class _Row:
    def __init__(self, free: int) -> None:
        self._free = free
        self._queue: deque[tuple[asyncio.Future[None], Callable[[], None]]] = deque()

    async def take(self, task: RolloutTask) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        unpark = task.park()
        self._queue.append((turn, unpark))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()
            raise
        finally:
            unpark()

    def give(self) -> None:
        while self._queue:
            turn, unpark = self._queue.popleft()
            if not turn.done():
                # At once: the round must not be served before this attempt has asked.
                unpark()
                turn.set_result(None)
                return
        self._free += 1


class IdleWatch:
    """Stops the others from waiting for an attempt that asks nothing for long.

    It may be busy, or wait for one that waits for it, such as for its turn with something that they
    share. Without this, both would wait until the end of their time.

    Args:
        task: the attempt.
        session: what it asks.
        seconds: for which the others wait.
    """

    def __init__(self, task: RolloutTask, session: Session, seconds: float) -> None:
        self._task = task
        self._session = session
        self._seconds = seconds
        self._last = asyncio.get_running_loop().time()
        self._unpark: Callable[[], None] | None = None
        session.on_activity = self._on_activity

    async def watch(self) -> None:
        """Look after the attempt until this is cancelled."""
        now = asyncio.get_running_loop().time
        try:
            while True:
                left = self._last + self._seconds - now()
                if left > 0 or self._unpark is not None or self._session.busy:
                    await asyncio.sleep(max(left, self._seconds / 4))
                    continue
                self._unpark = self._task.park(timed=True)
                logger.debug(
                    "problem %d has asked nothing for %g seconds; the others go on without it",
                    self._task.item,
                    self._seconds,
                )
        finally:
            self._on_activity()

    def _on_activity(self) -> None:
        self._last = asyncio.get_running_loop().time()
        if self._unpark is not None:
            self._unpark()
            self._unpark = None
