"""How much memory there is, and networks that would need more."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from plugrl.core.errors import ConfigError

#: Weights, gradients and the two moments of the optimizer.
TRAINED_COPIES = 4
#: No host has as much.
ANY_HOST = 2**45


def total_bytes(device: str = "cpu") -> int:
    """The whole memory of a CUDA device, or of this machine as far as the process may use it."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return total if limit == resource.RLIM_INFINITY else min(total, limit)


def largest_bytes() -> int:
    """The memory of this machine or of its largest CUDA device, whichever is more."""
    devices = range(torch.cuda.device_count())
    return max(total_bytes(), *(total_bytes(f"cuda:{number}") for number in devices), 0)


def format_gib(size: float) -> str:
    """A number of bytes in GiB."""
    return f"{size / 2**30:.2f} GiB"


def memory_shortage(
    parameters: int, item_bytes: int, copies: int, there: int | None = None
) -> str | None:
    """Why a model cannot be held; None: it can.

    Args:
        parameters: how many numbers it has.
        item_bytes: bytes of each.
        copies: of all of them; :data:`TRAINED_COPIES` where they are trained.
        there: bytes of memory; by default those of this machine.
    """
    needed = parameters * item_bytes * copies
    if there is None:
        there = total_bytes()
        if needed > there:
            # Devices are asked only now: that takes hold of them, for seconds.
            there = largest_bytes()
    if needed <= there:
        return None
    what = "weights, gradients and optimizer" if copies == TRAINED_COPIES else "the weights"
    return (
        f"{parameters:.3g} parameters need {format_gib(needed)} for {what}, and there are "
        f"{format_gib(there)}; take smaller sizes"
    )


class ParameterCounter:
    """Counts the parameters of networks while they are built, and stops what cannot fit."""

    def __init__(self) -> None:
        self._parameters = 0

    @contextmanager
    def limit_size(self) -> Iterator[None]:
        """Count what is built inside; memory of a layer is not touched before it is counted.

        Raises:
            ConfigError: all that was counted so far is more than the machine can train.
        """
        seen: dict[int, Any] = {}

        def count(module: Any, name: str, parameter: Any) -> None:
            if parameter is None or id(parameter) in seen:
                return
            seen[id(parameter)] = parameter
            self._parameters += parameter.numel()
            fault = memory_shortage(self._parameters, parameter.element_size(), TRAINED_COPIES)
            if fault is not None:
                raise ConfigError(fault)

        handle = register_module_parameter_registration_hook(count)
        try:
            yield
        except (MemoryError, RuntimeError, TypeError, OverflowError) as error:
            if isinstance(error, MemoryError) or _is_size_error(str(error)):
                message = "the networks are larger than any memory; take smaller sizes"
                raise ConfigError(message) from error
            raise
        finally:
            handle.remove()


def _is_size_error(message: str) -> bool:
    """Whether torch says that a tensor cannot be allocated, or that its size is no number."""
    signs = ("allocate memory", "overflow", "too large", "Invalid storage size")
    return any(sign in message for sign in signs)
