"""When the end of a step saves a checkpoint: after so many steps, or after so much time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

#: The largest share of the time of a run that checkpoints by time may take.
SHARE = 0.02


class CheckpointSchedule:
    """Checkpoints every ``every`` steps and, between them, when ``minutes`` have passed.

    What was best so far is saved where steps are counted, and what costs much is saved less often:
    checkpoints by time take at most :data:`SHARE` of it. 0 turns either off.
    """

    def __init__(self, every: int, minutes: float) -> None:
        self._every = every
        self._seconds = 60 * minutes
        self._saved = time.monotonic()
        self._cost = 0.0

    def due(self, step: int, *, best: bool) -> bool:
        """Whether to save at the end of ``step``, which reached the best score or did not."""
        if self._every and (step % self._every == 0 or best):
            return True
        waited = time.monotonic() - self._saved
        return self._seconds > 0 and waited >= max(self._seconds, self._cost / SHARE)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """The body saves a checkpoint, for whatever reason: the time counts from its end."""
        begun = time.monotonic()
        yield
        self._saved = time.monotonic()
        self._cost = self._saved - begun
