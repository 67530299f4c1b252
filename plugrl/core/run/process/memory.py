"""The memory of the machine, and checks that networks fit into it."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from plugrl.core.errors import ConfigError, PlugrlError, RunError
from plugrl.core.run.process import determinism

#: Weights, gradients and the two moments of Adam.
TRAINED_COPIES = 4
#: What torch's messages say where the memory of the host ran out, or that of a device did beside
#: its own allocator: in a library, or in a graph that is launched.
_SHORTAGES = ("DefaultCPUAllocator", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
#: More memory than any host has.
ANY_HOST = 2**45


def total_bytes(device: str = "cpu") -> int:
    """The total memory of a CUDA device, or of this machine up to the limit of the process."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return total if limit == resource.RLIM_INFINITY else min(total, limit)


def free_bytes(device: str) -> int:
    """Bytes of a CUDA device that this process can have: PyTorch's own, and the driver's.

    In deterministic runs they are as many as if nobody else had any.
    """
    allocated = torch.cuda.memory_allocated(device)
    if determinism.is_on():
        return total_bytes(device) - allocated
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - allocated)


def largest_bytes() -> int:
    """The memory of this machine or of its largest CUDA device, whichever is more."""
    devices = range(torch.cuda.device_count())
    return max(total_bytes(), *(total_bytes(f"cuda:{number}") for number in devices), 0)


def format_gib(size: float) -> str:
    """A number of bytes as text, in GiB."""
    return f"{size / 2**30:.2f} GiB"


def lacks_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, of the host or of a device, perhaps under an error of the loader."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SHORTAGES):
        return True
    return isinstance(error, PlugrlError) and lacks_memory(error.__cause__)


@contextmanager
def within_memory(message: Callable[[], str]) -> Iterator[None]:
    """Say ``message()`` where memory runs out; what the body says of it itself is left as it is.

    Raises:
        RunError: memory ran out, of the host or of a device.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        raise RunError(message()) from error


def memory_shortage(
    parameters: int, item_bytes: int, copies: int, there: int | None = None
) -> str | None:
    """Why a model does not fit into memory; None if it does.

    Args:
        parameters: the number of parameters.
        item_bytes: bytes of each parameter.
        copies: copies of all parameters; :data:`TRAINED_COPIES` if they are trained.
        there: available bytes; by default those of this machine.
    """
    needed = parameters * item_bytes * copies
    if there is None:
        there = total_bytes()
        if needed > there:
            # Only now, because querying CUDA devices initializes them, which takes seconds.
            there = largest_bytes()
    if needed <= there:
        return None
    what = "weights, gradients and optimizer" if copies == TRAINED_COPIES else "the weights"
    return (
        f"{parameters:.3g} parameters need {format_gib(needed)} for {what}, and there are "
        f"{format_gib(there)}; take smaller sizes"
    )


class ParameterCounter:
    """Counts the parameters of networks as they are built, and stops when they cannot fit."""

    def __init__(self) -> None:
        self._parameters = 0

    @contextmanager
    def limit_size(self) -> Iterator[None]:
        """Count the parameters that the body creates, each before its memory is touched.

        Raises:
            ConfigError: the parameters counted so far exceed what the machine can train.
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
    """Whether an error of torch is about a tensor that is too large."""
    signs = ("allocate memory", "overflow", "too large", "Invalid storage size")
    return any(sign in message for sign in signs)
