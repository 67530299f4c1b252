"""How many tokens a pass has where no setting says so: as many as a device has memory for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

from plugrl.core.run.process.memory import free_bytes, lacks_memory
from plugrl.plugins.transformers.model_shape import ModelShape

if TYPE_CHECKING:
    from plugrl.core.config.view import ConfigView
    from plugrl.core.text.inference.services import ModelSpec

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
#: The share of the free memory that a pass is meant to fill: activations are estimated, and memory
#: is taken in blocks.
_SHARE = 0.8
#: Tokens with which a GPU has enough to do: more take memory, and are hardly faster.
_ENOUGH = 16_384
#: Bytes of activations with which it has: those of as many tokens of a model of 0.6B parameters.
_ENOUGH_BYTES = 10 * 2**30
#: The share of activations that layers keep at least: what they begin with.
_INPUTS = 0.15
#: A pass is not planned smaller.
_LEAST = 256
#: How often a pass that did not fit is tried with half of its tokens.
_HALVINGS = 2
#: Bytes of a number of a gradient.
_GRADIENT = 4


def enough_tokens(shape: ModelShape, config: ConfigView, *, compiled: bool) -> int:
    """Tokens of a pass with which a GPU has enough to do: 16,384, or 10 GiB of activations.

    Args:
        shape: of the model.
        config: of the service.
        compiled: whether layers are.
    """
    most = int(_ENOUGH_BYTES / _activations(shape, config, compiled=compiled))
    return min(_ENOUGH, max(_LEAST, most))


def _activations(shape: ModelShape, config: ConfigView, *, compiled: bool) -> float:
    """Bytes of a token that are kept for the backward pass."""
    if config.gradient_checkpointing:
        return shape.states(1) + shape.bytes * shape.hidden * shape.layers
    kept = max(_INPUTS, config.activation_memory_budget) if compiled else 1.0
    return shape.states(1) * shape.layers * kept


class PassMemory:
    """Chooses the tokens of a pass, and answers passes that do not fit.

    A pass has ``(0.8 F - G - H) / A`` tokens, but no more than 16,384 or 10 GiB of activations: F
    is the memory that is free, G what gradients and moments will take that are not there yet, H
    the logits of a chunk, and A the activations of a token that are kept (``docs/memory.md``). What
    does not fit all the same is tried with half of the tokens, twice at most, where settings leave
    it open.

    Args:
        spec: of the model, with the device.
        config: of the service.
        parameters: that are trained, in float32.
    """

    def __init__(
        self, spec: ModelSpec, config: ConfigView, parameters: Iterable[torch.nn.Parameter]
    ) -> None:
        self._device, self._path = spec.device, f"models.{spec.name}.train"
        self._config, self._parameters = config, list(parameters)
        self._shape: ModelShape | None = None
        chosen = config.micro_batch_size or config.micro_batch_tokens
        if not chosen and spec.device.startswith("cuda"):
            self._shape = ModelShape.of_sections(spec.source, spec.adapter, config)
        self._planned = self._limit = _ENOUGH
        self._halvings = 0
        self._compiled = False
        #: Bytes that are free; another than the device's for tests.
        self.free: Callable[[], int] = partial(free_bytes, spec.device)

    @property
    def limit(self) -> int | None:
        """Tokens of a pass at most; None: settings say how large it is, or rows of a CPU."""
        return None if self._shape is None else self._limit

    def count_compiled(self) -> None:
        """Count with layers that keep ``activation_memory_budget`` of their activations."""
        self._compiled = True

    def tokens(self, moments: Mapping[object, object]) -> int | None:
        """Tokens of a pass; None: ``micro_batch_size`` rows, or 64.

        Args:
            moments: the state of the optimizer, empty before its first step.
        """
        chosen: int | None = self._config.micro_batch_tokens
        shape = self._shape
        if chosen or shape is None:
            return chosen
        numbers = sum(each.numel() for each in self._parameters if each.grad is None)
        coming = numbers * _GRADIENT + (0 if moments else shape.moments)
        room = _SHARE * self.free() - coming - shape.logits(self._config.head_chunk_tokens)
        most = int(room / _activations(shape, self._config, compiled=self._compiled))
        enough = enough_tokens(shape, self._config, compiled=self._compiled)
        self._planned = min(self._limit, enough, max(_LEAST, most))
        return self._planned

    def fitting(self, work: Callable[[], Result], undo: Callable[[], bool]) -> Result:
        """What ``work`` gives, which goes through passes of :meth:`tokens`.

        Args:
            work: does all again when it is called again.
            undo: takes back what ``work`` has done so far; False: it cannot.

        Raises:
            RuntimeError: of torch, where memory does not suffice for smaller passes either.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not lacks_memory(error) or not undo() or not self._halve():
                    raise
            # Behind the handler, so that no frame of the pass holds its tensors any more.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _halve(self) -> bool:
        if self._shape is None or self._halvings == _HALVINGS:
            return False
        self._halvings += 1
        self._limit = self._planned // 2
        logger.warning(
            "%s: a pass did not fit into the memory of %s; goes on with %s tokens a pass. Set "
            "micro_batch_tokens to begin with that",
            self._path, self._device, f"{self._limit:,}",
        )  # fmt: skip
        return True
