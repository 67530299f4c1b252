"""Keeps full garbage collections, which walk every module of every library, out of the steps."""

from __future__ import annotations

import gc

#: Steps after which what a run sets up has been made, lazily imported modules included.
WARM_UP = 10


class GarbageCollection:
    """What has been made before the first steps ended is left out of later collections.

    A full collection walks all objects of torch and of the models, about a quarter of a second,
    and falls into whichever step happens to allocate enough. A run of a few steps is spared the
    one collection that this costs.
    """

    def __init__(self) -> None:
        self._steps = 0

    def end_step(self) -> None:
        """At the last step of the warm-up, collect once and let collections pass over the rest."""
        self._steps += 1
        if self._steps == WARM_UP:
            gc.collect()
            gc.freeze()

    def thaw(self) -> None:
        """Let later collections walk over everything again, and the warm-up begin anew."""
        if self._steps >= WARM_UP:
            gc.unfreeze()
        self._steps = 0
