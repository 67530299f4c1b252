"""Which engine answers a request."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from plugrl.core.text.inference.requests import GenerationRequest

#: Groups whose place is remembered after their last answer, for the turns that follow.
_REMEMBERED = 10_000


class Placement:
    """Gives a group of requests to the engine with the fewest open ones, and keeps it there.

    Answers to one prompt share its beginning, which an engine may have to compute once alone. It
    may be used from several threads.

    Args:
        engines: how many there are.
    """

    def __init__(self, engines: int) -> None:
        self._open = [0] * engines
        self._places: OrderedDict[Hashable, int] = OrderedDict()
        self._lock = threading.Lock()

    def place(self, group: Hashable) -> int:
        """The number of the engine for a request of ``group``, which counts as open there."""
        with self._lock:
            number = self._places.pop(group, None)
            if number is None:
                number = self._open.index(min(self._open))
            self._places[group] = number
            if len(self._places) > _REMEMBERED:
                self._places.popitem(last=False)
            self._open[number] += 1
            return number

    def answered(self, number: int) -> None:
        """Count one request of an engine as open no more."""
        with self._lock:
            self._open[number] -= 1


def group_of(request: GenerationRequest) -> tuple[int, int, int]:
    """Seed, step and item: what the attempts at one prompt, and their turns, have in common."""
    seed, step, item, _, _ = request.stream
    return seed, step, item


def divide(requests: Sequence[GenerationRequest], engines: int) -> dict[int, list[int]]:
    """The places in ``requests`` of those that each engine answers; engines without any are absent.

    It depends on the requests alone, so that equal lists are computed in equal batches, before and
    after a run is resumed.
    """
    placement = Placement(engines)
    parts: dict[int, list[int]] = {}
    for index, request in enumerate(requests):
        parts.setdefault(placement.place(group_of(request)), []).append(index)
    return dict(sorted(parts.items()))
