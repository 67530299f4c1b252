"""The layers of decode steps through ``torch.compile``, on an accelerator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.fx.experimental import _config as shapes

from plugrl.core.run.process.compiler import (
    constant_floats,
    missing_compiler,
    prepare_compiling,
)
from plugrl.plugins.transformers import compile_payback
from plugrl.plugins.transformers.training.compiling import layers_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


class StepCompiler:
    """Compiles the layers of a model once, for batches of all sizes.

    Compiled layers are called within decode steps alone; other passes call them as they are.

    Args:
        model: whose layers are meant.
        name: of the model in the configuration.
        setting: of ``compile``.
        decode_steps: that the run will make; None: not known. ``auto`` then compiles once the steps
            that were made would have saved what it takes: at most as much is lost again.

    Attributes:
        active: whether steps that are captured from now on are compiled.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        setting: bool | Literal["auto"],
        decode_steps: int | None,
    ) -> None:
        self._name, self._layers = name, layers_of(model)
        self._calls: list[Any] = []
        self._count = 0
        self.active = False
        device = model.device.type
        self._payback = compile_payback.of_decode_step(device, len(self._layers))
        self._waits = self._payback is not None and setting == "auto"
        if (setting is True and device == "cuda") or self._pays(decode_steps):
            self._begin()

    def count(self, steps: int) -> None:
        """Count decode steps; enough of them are worth compiling."""
        self._count += steps
        if self._pays(self._count):
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
            # What could run side by side, such as the norms of queries and keys, is one kernel.
            options: dict[str, Any] = {"combo_kernels": True}
            self._calls = [
                torch.compile(layer._call_impl, dynamic=True, options=options)
                for layer in self._layers
            ]
        for layer, call in zip(self._layers, self._calls, strict=True):
            layer._compiled_call_impl = call
        try:
            # A batch as large as a head is wide would else be taken for one of that size alone.
            with shapes.patch(use_duck_shape=False), constant_floats():
                yield
        finally:
            for layer in self._layers:
                layer._compiled_call_impl = None

    def function(self, function: Callable[..., None]) -> Callable[..., None]:
        """A function of a step, compiled if steps are."""
        return torch.compile(function, dynamic=True) if self.active else function

    def _pays(self, steps: int | None) -> bool:
        return self._waits and self._payback is not None and self._payback.within(steps)

    def _begin(self) -> None:
        self._waits = False
        reason = missing_compiler("cuda")
        if reason is None and not self._layers:
            reason = "the layers of this model are not known"
        if reason is not None:
            self.give_up(reason)
            return
        prepare_compiling()
        self.active = True
