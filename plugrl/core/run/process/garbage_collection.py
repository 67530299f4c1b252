"""Keeps full garbage collections, which walk every module of every library, out of the steps."""

from __future__ import annotations

import gc

#: Steps after which a run has set up everything, lazily imported modules included.
WARM_UP = 10


class GarbageCollection:
    """Excludes everything that exists after the first steps from later garbage collections.

    A full collection walks all objects of torch and of the models, which takes about a quarter of a
    second, in whichever step happens to trigger it. The one collection that this costs waits until
    the warm-up is over, so that short runs are spared it.
    """

    def __init__(self) -> None:
        self._steps = 0

    def end_step(self) -> None:
        """Count a step; at the end of the warm-up, collect once and freeze what is left."""
        self._steps += 1
        if self._steps == WARM_UP:
            gc.collect()
            gc.freeze()

    def thaw(self) -> None:
        """Undo the freeze and start the warm-up again."""
        if self._steps >= WARM_UP:
            gc.unfreeze()
        self._steps = 0
