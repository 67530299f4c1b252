"""Equal numbers from run to run on one GPU: ``settings.deterministic``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

#: Of cuBLAS: memory in which products are summed, of a size that does not depend on what runs
#: beside them.
_VARIABLE, _WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
#: Whether it was switched on here: what a program chose itself stays.
_switched_on = False


def configure(setting: bool) -> None:
    """Apply ``settings.deterministic`` before a GPU is used.

    Operations that sum in whatever order their threads come are replaced or refused, and kernels
    are not chosen by which was faster just now.
    """
    global _switched_on
    if not (setting or _switched_on):
        return
    import torch

    if setting:
        os.environ.setdefault(_VARIABLE, _WORKSPACE)
        torch.backends.cudnn.benchmark = False
    # It is for the compiler of torch too, which it imports.
    torch.use_deterministic_algorithms(setting)
    # Nothing here reads memory before it is written.
    torch.utils.deterministic.fill_uninitialized_memory = not setting  # type: ignore[attr-defined]
    _switched_on = setting


def is_on() -> bool:
    """Whether nothing may depend on what differs from run to run, such as memory that is free."""
    return _switched_on


@contextmanager
def unchecked() -> Iterator[None]:
    """Let code run whose order of summing is fixed, though torch refuses operations of it.

    Such are cumulative sums on a GPU. Not for several threads at once.
    """
    import torch

    mode = torch.get_deterministic_debug_mode()
    if mode == 0:
        yield
        return
    # Only this flag: what is compiled meanwhile is still chosen without a measurement.
    torch.set_deterministic_debug_mode(0)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
