"""Keeps freed memory in the process for the next step instead of returning it to the system."""

from __future__ import annotations

import ctypes
import sys

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
