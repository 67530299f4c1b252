"""How many attempts of a worker run at once; the others wait without holding up the lockstep."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary

from plugrl.core.text.worker import RolloutTask


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
