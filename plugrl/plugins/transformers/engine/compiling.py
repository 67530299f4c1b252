"""The layers of decode steps through ``torch.compile``, on an accelerator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.fx.experimental import _config as shapes

from plugrl.core.run.process.compiler import missing_compiler, use_cache_folder
from plugrl.plugins.transformers.training.compiling import layers_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

#: Decode steps after which ``auto`` compiles, where the length of the run is not known: what they
#: lost by then is about what compiling takes, so that at most as much is lost again.
EARNED_BACK = 8_000
#: Training steps from which on a run is sure to need as many.
_SURE = 16


class StepCompiler:
    """Compiles the layers of a model once, for batches of all sizes.

    Compiled layers are called within decode steps alone; other passes call them as they are.

    Args:
        model: whose layers are meant.
        name: of the model in the configuration.
        setting: of ``compile``.
        train_steps: of the run; None: not known.

    Attributes:
        active: whether steps that are captured from now on are compiled.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        setting: bool | Literal["auto"],
        train_steps: int | None,
    ) -> None:
        self._name, self._layers = name, layers_of(model)
        self._calls: list[Any] = []
        self._count = 0
        self.active = False
        on_device = model.device.type == "cuda"
        self._waits = on_device and setting == "auto"
        if on_device and (setting is True or (self._waits and (train_steps or 0) >= _SURE)):
            self._begin()

    def count(self, steps: int) -> None:
        """Count decode steps; enough of them are worth compiling."""
        self._count += steps
        if self._waits and self._count >= EARNED_BACK:
            self._begin()

    def give_up(self, reason: str) -> None:
        """Go on uncompiled, and say so once."""
        self.active = self._waits = False
        logger.warning("models.%s.inference.compile: goes on uncompiled: %s", self._name, reason)

    @contextmanager
    def layers(self) -> Iterator[None]:
        """Call the layers as they are compiled, within the block, if they are."""
        if not self.active:
            yield
            return
        if not self._calls:
            self._calls = [torch.compile(layer._call_impl, dynamic=True) for layer in self._layers]
        for layer, call in zip(self._layers, self._calls, strict=True):
            layer._compiled_call_impl = call
        try:
            # A batch as large as a head is wide would else be taken for one of that size alone.
            with shapes.patch(use_duck_shape=False):
                yield
        finally:
            for layer in self._layers:
                layer._compiled_call_impl = None

    def function(self, function: Callable[..., None]) -> Callable[..., None]:
        """A function of a step, compiled if steps are."""
        return torch.compile(function, dynamic=True) if self.active else function

    def _begin(self) -> None:
        self._waits = False
        reason = missing_compiler("cuda")
        if reason is None and not self._layers:
            reason = "the layers of this model are not known"
        if reason is not None:
            self.give_up(reason)
            return
        use_cache_folder()
        self.active = True
