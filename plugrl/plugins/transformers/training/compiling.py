"""The layers of a model through ``torch.compile``, for the passes of the train service."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch

from plugrl.core.run.process.compiler import (
    compiler_failure,
    constant_floats,
    missing_compiler,
    prepare_compiling,
)
from plugrl.core.text.batch import Batch
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers import compile_payback
from plugrl.plugins.transformers.quantization import num_parameters

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plugrl.plugins.transformers.training.head import ChunkedHead

logger = logging.getLogger(__name__)

#: Rows of the first pass. Its sizes differ from one another, so that none is taken for another, and
#: there are as many tokens as passes of most batches have. A graph for fewer would be another one:
#: on the CPU for sums of 1,024 tokens at most; on a GPU for norms of at most 5,242,880 numbers,
#: which are 5,120 tokens of a width of 1,024.
_ROWS = 75
_ROWS_ON_A_GPU = 350
_LONGEST = 24


def worth_compiling(
    setting: bool | Literal["auto"], model: PreTrainedModel, steps: int | None
) -> bool:
    """What ``compile`` means in a run of so many training steps; None: not known."""
    if setting != "auto":
        return setting
    payback = compile_payback.of_training_pass(model.device.type, num_parameters(model))
    return payback is not None and payback.within(steps)


class CompiledLayers:
    """The layers of a model, each called as a compiled graph from now on.

    Layers of one kind share a graph. Its sizes are symbols from a first pass over made-up rows on,
    so that numbers do not depend on which batches came before, and a resumed run goes on exactly.

    Args:
        model: a causal language model, whose layers are changed.
        name: of the model in the configuration.
        first_pass: goes forward and backward over a batch.
        memory_budget: the share of activations that is kept for the way back; the rest is computed
            again.
        head: computes log-probabilities; on the CPU it stays as it is, since its kernels are few
            and long.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        first_pass: Callable[[Batch], object],
        head: ChunkedHead,
        memory_budget: float,
    ) -> None:
        self._layers = layers_of(model)
        self._head, self._memory_budget = head, memory_budget
        reason = missing_compiler(model.device.type)
        if reason is None and not self._layers:
            reason = f"the layers of a {model.config.model_type} model are not known"
        #: Whether it could be done; else one line is logged and the layers are as they were.
        self.active = reason is None
        if reason is None:
            prepare_compiling()
            reason = self._compile(model, first_pass)
        if reason is not None:
            self.undo()
            logger.warning("models.%s.train.compile: goes on uncompiled: %s", name, reason)

    def _compile(self, model: PreTrainedModel, first_pass: Callable[[Batch], object]) -> str | None:
        # Random numbers are those that are drawn uncompiled.
        options: dict[str, Any] = {"fallback_random": True}
        if model.device.type == "cpu":
            # Processes that compile in parallel gain nothing for a few kernels.
            options["compile_threads"] = 1
        for layer in self._layers:
            # Not the module: what spreads weights over ranks acts before and after this.
            compiled = torch.compile(layer.forward, dynamic=True, options=options)
            layer.forward = constant_floats()(compiled)
        if model.device.type != "cpu":
            # For all that this process compiles: graphs of other sizes follow later.
            torch._functorch.config.activation_memory_budget = self._memory_budget
            self._head.compile()
        try:
            with torch.random.fork_rng():
                first_pass(_batch(model))
        # Of all classes: it comes from a compiler that is given code of any model.
        except Exception as error:
            return compiler_failure(error)
        return None

    def undo(self) -> None:
        """Call the layers uncompiled again."""
        self.active = False
        for layer in self._layers:
            layer.__dict__.pop("forward", None)
        self._head.undo()


def layers_of(model: PreTrainedModel) -> list[torch.nn.Module]:
    """What ``transformers`` names as the parts that belong together on a device: the layers."""
    kinds = set(getattr(model, "_no_split_modules", None) or ())

    def is_layer(module: torch.nn.Module) -> bool:
        # What spreads weights over ranks derives a class of each layer's.
        return any(kind.__name__ in kinds for kind in type(module).__mro__)

    return [module for module in model.modules() if is_layer(module)]


def _batch(model: PreTrainedModel) -> Batch:
    """Rows of several lengths, some of which share their prompts."""
    most = int(model.config.get_text_config(decoder=True).vocab_size)
    rows = []
    for row in range(_ROWS if model.device.type == "cpu" else _ROWS_ON_A_GPU):
        answer = _LONGEST - 3 - row % 7
        tokens = [(row // 3 + place) % most for place in range(3)]
        tokens += [(row + place * place) % most for place in range(answer)]
        rows.append(Trajectory(tokens, [0] * 3 + [1] * answer))
    return Batch.from_trajectories(rows, temperature=1.0)
