"""Losses of small networks and their gradients through ``torch.compile``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDict
from torch import func
from torchrl.objectives.common import LossModule

from plugrl.core.run.process.compiler import (
    Payback,
    compiler_failure,
    missing_compiler,
    prepare_compiling,
)
from plugrl.core.tensordict.learn.loss_contract import total_loss

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

logger = logging.getLogger(__name__)

#: Compiling takes 5 to 20 seconds, and saves a millisecond of an optimizer step.
PAYBACK = Payback(cost=20.0, saving=0.001)
#: Torch's own tanh takes several times as long on the CPU as one by way of its sigmoid. Random
#: numbers are those drawn uncompiled. Processes that compile in parallel gain nothing here.
_OPTIONS = {"cpp.use_decompose_tanh": True, "fallback_random": True, "compile_threads": 1}


def worth_compiling(setting: bool | Literal["auto"], optimizer_steps: int) -> bool:
    """What ``rl.compile`` means for a run of so many optimizer steps."""
    return PAYBACK.within(optimizer_steps) if setting == "auto" else setting


class CompiledLoss:
    """A loss module with its backward pass, up to clipped gradients, as one compiled graph.

    The number of rows is a symbol of the graph from the first call on, so that numbers do not
    depend on which sizes came before, and a resumed run goes on exactly.

    Args:
        module: maps the rows of a minibatch to ``loss_...`` scalars and metrics.
        learning: the parameters that an optimizer changes, by the agent in whose gradient norm they
            count.
        max_norm: largest norm of the gradients of an agent; None: any.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        learning: Mapping[str, Sequence[torch.nn.Parameter]],
        max_norm: float | None = None,
    ) -> None:
        self._module = module
        self._max_norm = max_norm
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._refusal = _refusal(module, named, [p for own in learning.values() for p in own])
        names = {id(p): name for name, p in named.items()}
        self._learning = {
            agent: {names[id(p)]: p for p in own if id(p) in names}
            for agent, own in learning.items()
        }
        #: Norms before clipping, by agent, of the gradients that were set last.
        self.norms: dict[str, torch.Tensor] = {}

    @cached_property
    def _compiled(self) -> Any:
        # At the first call, as asking for it imports a compiler.
        prepare_compiling()
        return torch.compile(
            self._differentiated, fullgraph=True, dynamic=True, options=dict(_OPTIONS)
        )

    def __call__(
        self, minibatch: TensorDict, agents: Collection[str] | None = None, **options: Any
    ) -> dict[str, torch.Tensor] | None:
        """What the module gives for ``minibatch [rows]``; the gradients of its losses are set.

        Args:
            minibatch: the rows.
            agents: of which gradients are needed; None: of all.
            options: what the module is called with besides; each of their values has a graph.

        Returns:
            None: it cannot be compiled, which is logged once, and nothing was changed.
        """
        if self._refusal is None:
            try:
                return self._set_gradients(minibatch, agents, options)
            # Of all classes: it comes from a compiler that is given code of users.
            except Exception as error:
                self._refusal = compiler_failure(error)
        logger.warning(
            "rl.compile: %s goes on uncompiled: %s", type(self._module).__name__, self._refusal
        )
        return None

    def _set_gradients(
        self, minibatch: TensorDict, agents: Collection[str] | None, options: dict[str, Any]
    ) -> dict[str, torch.Tensor]:
        draw = getattr(self._module, "draw_noise", None)
        with torch.no_grad():
            # Generators stay outside of graphs, which cannot hold them.
            rows = minibatch.to_dict() | ({} if draw is None else draw(minibatch))
            learning = {
                a: own for a, own in self._learning.items() if agents is None or a in agents
            }
            gradients, losses, self.norms = self._compiled(learning, rows, options)
        for agent, own in learning.items():
            for name, parameter in own.items():
                parameter.grad = gradients[agent][name]
        return dict(losses)

    def _differentiated(
        self,
        learning: Mapping[str, Mapping[str, torch.Tensor]],
        rows: dict[str, Any],
        options: dict[str, Any],
    ) -> tuple[
        dict[str, dict[str, torch.Tensor]], dict[str, torch.Tensor], dict[str, torch.Tensor]
    ]:
        """Clipped gradients by agent and parameter, what the module gave, and norms by agent."""
        count = len(next(iter(rows.values())))

        def losses_of(
            given: Mapping[str, Mapping[str, torch.Tensor]],
        ) -> tuple[torch.Tensor, dict[str, Any]]:
            td = TensorDict(rows, batch_size=[count])
            weights = {name: weight for own in given.values() for name, weight in own.items()}
            losses = dict(func.functional_call(self._module, weights, (td,), options).items())
            return total_loss(losses), losses

        gradients, (_, losses) = func.grad_and_value(losses_of, has_aux=True)(learning)
        norms = {}
        for agent, own in gradients.items():
            norm = torch.linalg.vector_norm(torch.cat([each.flatten() for each in own.values()]))
            norms[agent] = norm
            if self._max_norm is not None:
                # As torch.nn.utils.clip_grad_norm_ does.
                factor = (self._max_norm / (norm + 1e-6)).clamp(max=1.0)
                gradients[agent] = {name: each * factor for name, each in own.items()}
        return gradients, losses, norms


def _refusal(
    module: torch.nn.Module,
    parameters: Mapping[str, torch.nn.Parameter],
    learning: Sequence[torch.nn.Parameter],
) -> str | None:
    """Why a loss module is not compiled; None: it is tried."""
    device = next((parameter.device.type for parameter in learning), "cpu")
    missing = missing_compiler(device)
    if missing is not None:
        return missing
    if hasattr(module, "backward"):
        return "it takes its gradients itself, in backward()"
    known = {id(parameter) for parameter in parameters.values()}
    functional = isinstance(module, LossModule) and getattr(module, "functional", False)
    if functional or not all(id(parameter) in known for parameter in learning):
        # What is not among its parameters would be a constant of the graph, without a word.
        return "weights that learn are not among its parameters; make the networks its submodules"
    return None
