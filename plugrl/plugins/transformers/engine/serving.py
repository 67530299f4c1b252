"""Serving of requests by one decoder: in lockstep, or as requests come and go."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from plugrl.core.run.process import determinism
from plugrl.core.text.inference.batching import RequestThread, Ticket
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.plugins.transformers.engine.decoding import Decoder
from plugrl.plugins.transformers.engine.request_rows import Row


class Turns:
    """A fair lock: threads get it in the order in which they asked.

    A plain lock would be taken again by the thread that decodes step after step, and an update of
    the weights would wait for the end of all answers.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked: deque[object] = deque()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Wait for one's turn and hold it."""
        mine = object()
        with self._changed:
            self._asked.append(mine)
            try:
                while self._asked[0] is not mine:
                    self._changed.wait()
            except BaseException:
                # Ctrl-C while waiting must not leave a turn that nobody takes.
                self._leave(mine)
                raise
        try:
            yield
        finally:
            with self._changed:
                self._leave(mine)

    def _leave(self, mine: object) -> None:
        self._asked.remove(mine)
        if self._asked:
            self._changed.notify_all()


class Serving:
    """A decoder with the rows that wait for a place in its batch.

    Args:
        decoder: decodes.
        size: rows that are decoded at once, at most.
    """

    def __init__(self, decoder: Decoder, size: int) -> None:
        self.decoder = decoder
        self.waiting: deque[Row] = deque()
        self._size = size

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self.waiting) or self.decoder.live > 0

    # Random numbers and sums of a row depend on nothing that changes from run to run.
    @determinism.unchecked()
    def advance(self, version: int) -> list[Row]:
        """Let rows join and decode tokens of each; returns those that ended."""
        decoder = self.decoder
        decoder.version = version
        ended: list[Row] = []
        size = decoder.most_rows(self.waiting, self._size) if self.waiting else self._size
        # Joining costs a forward pass of its own, so a long queue joins in larger parts.
        worth = min(len(self.waiting), max(1, size // 4))
        room = size - decoder.live
        if self.waiting and decoder.can_admit and room >= worth:
            ended += decoder.admit(
                [self.waiting.popleft() for _ in range(self._joining_count(room))]
            )
        if not self.waiting:
            ended += decoder.compact()
        return ended + decoder.step()

    def _joining_count(self, room: int) -> int:
        """How many rows join: all that fit, without splitting a group that shares its prompt."""
        if room >= len(self.waiting):
            return len(self.waiting)
        count = room
        while count and self._prompt(count - 1) == self._prompt(count):
            count -= 1
        # A group that is larger than the batch, or than what is free of it, joins in parts.
        return count or room

    def _prompt(self, number: int) -> list[int]:
        return list(self.waiting[number].request.prompt_tokens)


class ContinuousBatching(RequestThread):
    """The asynchronous form: requests join the batch between steps, and leave it when cancelled.

    Args:
        make_row: a request as a row.
        make_serving: an empty batch.
        within: held while the model is used.
        version: gives the version of the weights.
    """

    def __init__(
        self,
        make_row: Callable[[GenerationRequest], Row],
        make_serving: Callable[[], Serving],
        within: Callable[[], AbstractContextManager[None]],
        version: Callable[[], int],
    ) -> None:
        super().__init__("the transformers engine")
        self._make_row, self._make_serving = make_row, make_serving
        self._within, self._version = within, version
        self._forget()

    def serve(self, arrived: Sequence[Ticket]) -> bool:
        """Take what has arrived, leave out what was cancelled, and do one step."""
        try:
            for ticket in arrived:
                row = self._make_row(ticket.request)
                self._tickets[row] = ticket
                self._serving.waiting.append(row)
            with self._within():
                version = self._version()
                ended = self._without_cancelled() + self._serving.advance(version)
            for row in ended:
                self._tickets.pop(row).give(row.completion(version))
        except BaseException:
            self._forget()
            raise
        return self._serving.busy

    def _without_cancelled(self) -> list[Row]:
        gone = [row for row, ticket in self._tickets.items() if ticket.cancelled]
        if not gone:
            return []
        for row in gone:
            del self._tickets[row]
        left = set(gone)
        self._serving.waiting = deque(r for r in self._serving.waiting if r not in left)
        return self._serving.decoder.drop(gone)

    def _forget(self) -> None:
        self._serving = self._make_serving()
        self._tickets: dict[Row, Ticket] = {}
