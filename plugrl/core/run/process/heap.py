"""Memory management out of the way of training: freed blocks stay, and full collections wait."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import Iterator

# From malloc.h of glibc: the parameters, and the largest threshold that it takes on 64 bits.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT = 32 * 2**20
_KEPT_AT_MOST = 256 * 2**20


def keep_freed_memory() -> bool:
    """Let glibc keep freed blocks; returns whether it does (other libraries are left alone).

    Every training pass allocates and frees the same blocks. Whether glibc keeps the large ones
    depends on earlier frees; if it does not, the kernel zeroes them page by page each time. Results
    do not depend on it; up to 256 MiB of freed memory stay with the process.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
        ctypes.CDLL(None).gnu_get_libc_version  # noqa: B018 - other libraries' numbers may differ
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_TRIM_THRESHOLD, _KEPT_AT_MOST))


#: New objects after which a collection looks at them during start-up, and how many such collections
#: older objects wait for. Python's own numbers are for programs whose objects go: with them, a
#: sixth of the time in which torch and transformers are imported goes to looking at what stays.
_RARE = (200_000, 10, 1_000)
_lock = threading.Lock()
#: The numbers of before, of each body that has begun.
_replaced: list[tuple[int, int, int]] = []


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Have few garbage collections in the body, which imports modules or makes models."""
    with _lock:
        before = gc.get_threshold()
        _replaced.append(before)
        # 0: somebody wants none.
        if before[0]:
            gc.set_threshold(*map(max, before, _RARE))
    try:
        yield
    finally:
        with _lock:
            # Threads end their bodies in any order: the last one gives back what the first found.
            first = _replaced[0]
            _replaced.pop()
            if not _replaced:
                gc.set_threshold(*first)


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
