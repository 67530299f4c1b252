"""Decides when the end of a step saves a checkpoint: by steps and by time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

#: The largest share of a run's time that checkpoints by time may take.
SHARE = 0.02


class CheckpointSchedule:
    """Checkpoints every ``every`` steps and, between them, when ``minutes`` have passed.

    A new best score is saved if checkpoints by steps are on. If saving is slow, checkpoints by time
    become rarer, so that they take at most :data:`SHARE` of the time. 0 turns either off.
    """

    def __init__(self, every: int, minutes: float) -> None:
        self._every = every
        self._seconds = 60 * minutes
        self._saved = time.monotonic()
        self._cost = 0.0

    def due(self, step: int, *, best: bool) -> bool:
        """Whether to save at the end of ``step``; ``best``: it reached a new best score."""
        if self._every and (step % self._every == 0 or best):
            return True
        waited = time.monotonic() - self._saved
        return self._seconds > 0 and waited >= max(self._seconds, self._cost / SHARE)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Measure the body, which saves a checkpoint, and restart the clock at its end."""
        begun = time.monotonic()
        yield
        self._saved = time.monotonic()
        self._cost = self._saved - begun
