"""The number of threads of torch; tiny networks are many times slower with two than with one."""

from __future__ import annotations

import os

#: Models with fewer parameters run on one thread when ``settings.torch_threads`` is ``auto``.
SMALL_MODEL = 20_000_000
_VARIABLE = "OMP_NUM_THREADS"
_automatic = False


def limit(setting: int | str) -> None:
    """Apply ``settings.torch_threads`` before torch starts its thread pools."""
    global _automatic
    _automatic = setting == "auto"
    threads = 1 if _automatic else int(setting)
    os.environ[_VARIABLE] = str(threads)
    import torch

    torch.set_num_threads(threads)


def widen(parameters: int) -> None:
    """With ``auto``, let a model of this many parameters use all cores unless it is small.

    Called where a model is loaded; an explicit number of threads is not changed.
    """
    if _automatic and parameters >= SMALL_MODEL:
        import torch

        torch.set_num_threads(os.cpu_count() or 1)
