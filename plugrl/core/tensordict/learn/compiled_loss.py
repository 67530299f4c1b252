"""Losses of small networks, their gradients and the step along them through ``torch.compile``."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDict
from torch import func
from torch.utils._pytree import tree_flatten, tree_unflatten
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

    from plugrl.core.tensordict.learn.optimizer import AgentOptimizer

logger = logging.getLogger(__name__)

#: Compiling takes 5 to 20 seconds, and saves a millisecond of an optimizer step.
PAYBACK = Payback(cost=20.0, saving=0.001)
#: Torch's own tanh takes several times as long on the CPU as one by way of its sigmoid. Random
#: numbers are those drawn uncompiled. Processes that compile in parallel gain nothing here. A call
#: for each tensor of a graph that its strides are as ever takes a tenth of a small update.
_OPTIONS = {
    "cpp.use_decompose_tanh": True,
    "fallback_random": True,
    "compile_threads": 1,
    "size_asserts": False,
}

#: Gradients by agent and parameter, what a module gave, and norms by agent.
Results = tuple[
    dict[str, dict[str, torch.Tensor]], dict[str, torch.Tensor], dict[str, torch.Tensor]
]

#: Names that begin with ``self``, as versions of torch write them.
_OF_SELF = re.compile(r"(L\[.)?self\b")


def worth_compiling(setting: bool | Literal["auto"], optimizer_steps: int) -> bool:
    """What ``rl.compile`` means for a run of so many optimizer steps."""
    return PAYBACK.within(optimizer_steps) if setting == "auto" else setting


class CompiledLoss:
    """A loss module with its backward pass as one compiled graph, and the step of its optimizer.

    Without Adam as an optimizer, or on a GPU, it ends with clipped gradients.

    What comes of some rows does not depend on how many there were in earlier calls, so that a
    resumed run goes on exactly: either their number is a symbol of the graph from the first call
    on, or each number has its own graph.

    Args:
        module: maps the rows of a minibatch to ``loss_...`` scalars and metrics.
        learning: the parameters that an optimizer changes, by the agent in whose gradient norm they
            count.
        max_norm: largest norm of the gradients of an agent; None: any.
        optimizer: of ``learning``.
        dynamic: one graph for all numbers of rows; false: one for each, which is quicker.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        learning: Mapping[str, Sequence[torch.nn.Parameter]],
        max_norm: float | None = None,
        *,
        optimizer: AgentOptimizer | None = None,
        dynamic: bool = True,
    ) -> None:
        self._module = module
        self._max_norm = max_norm
        self._dynamic = dynamic
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        every = [p for own in learning.values() for p in own]
        self._device = next((p.device.type for p in every), "cpu")
        self._is_known = all(_is_known(each) for each in module.modules())
        #: Whether nothing but tensors and options, of which each form has its own graph, can change
        #: between two calls; what else may, torch.compile looks at each time.
        self._is_captured = self._is_known and not dynamic and self._device == "cpu"
        self._graphs: dict[tuple[Any, ...], Callable[..., Results]] = {}
        #: None: gradients are set, and somebody else steps along them.
        self.optimizer: AgentOptimizer | None = None
        if optimizer is not None and optimizer.name == "adam" and self._device == "cpu":
            self.optimizer = optimizer
        self._refusal = _refusal(module, named, every, self._device)
        names = {id(p): name for name, p in named.items()}
        self._learning = {
            agent: {names[id(p)]: p for p in own if id(p) in names}
            for agent, own in learning.items()
        }
        #: Norms before clipping, by agent, of the latest gradients.
        self.norms: dict[str, torch.Tensor] = {}

    def _options(self) -> dict[str, Any]:
        # Python between the products takes a tenth of a small update.
        return {**_OPTIONS, **({"cpp_wrapper": True} if self._device == "cpu" else {})}

    @cached_property
    def _compiled(self) -> Any:
        # At the first call, as asking for it imports a compiler.
        prepare_compiling()
        options = self._options()
        if self._is_known:
            options["guard_filter_fn"] = _about_arguments
        # What torch has compiled, it keeps by code, and about whose it is nothing is asked then.
        function = type(self)._update
        own = FunctionType(function.__code__.replace(), function.__globals__)
        compiled = torch.compile(own, fullgraph=True, dynamic=self._dynamic, options=options)
        return partial(compiled, self)

    def __call__(
        self, minibatch: TensorDict, agents: Collection[str] | None = None, **options: Any
    ) -> dict[str, torch.Tensor] | None:
        """What the module gives for ``minibatch [rows]``, a step along the sum of its losses on.

        Without an optimizer, the gradients of that sum are set. Where the norm of an agent's
        gradients is not finite, nothing of it was changed.

        Args:
            minibatch: the rows.
            agents: whose gradients are needed; None: those of all.
            options: what the module is called with besides; each of their values has a graph.

        Returns:
            None: it cannot be compiled, which is logged once, and nothing was changed.
        """
        if self._refusal is None:
            try:
                return self._run(minibatch, agents, options)
            # Of all classes: it comes from a compiler that is given code of users.
            except Exception as error:
                self._refusal = compiler_failure(error)
        logger.warning(
            "rl.compile: %s goes on uncompiled: %s", type(self._module).__name__, self._refusal
        )
        return None

    def _run(
        self, minibatch: TensorDict, agents: Collection[str] | None, options: dict[str, Any]
    ) -> dict[str, torch.Tensor]:
        draw = getattr(self._module, "draw_noise", None)
        chosen = tuple(a for a in self._learning if agents is None or a in agents)
        with torch.no_grad():
            # Generators stay outside of graphs, which cannot hold them.
            rows = minibatch.to_dict() | ({} if draw is None else draw(minibatch))
            scales = None if self.optimizer is None else self.optimizer.scales(chosen)
            update = self._replay if self._is_captured else self._compiled
            gradients, losses, self.norms = update(chosen, scales, rows, options)
        for agent, own in gradients.items():
            for name, gradient in own.items():
                self._learning[agent][name].grad = gradient
        return dict(losses)

    def _update(
        self,
        agents: tuple[str, ...],
        scales: torch.Tensor | None,
        rows: dict[str, Any],
        options: dict[str, Any],
    ) -> Results:
        """Clipped gradients by agent and parameter, what the module gave, and norms by agent.

        There are no gradients where a step was taken along them.
        """
        learning = {agent: self._learning[agent] for agent in agents}
        moments = {} if self.optimizer is None else self.optimizer.moments(agents)
        return self._update_of(learning, moments, {}, scales, rows, options)

    def _update_of(
        self,
        learning: Mapping[str, Mapping[str, torch.Tensor]],
        moments: Mapping[str, Any],
        resting: Mapping[str, torch.Tensor],
        scales: torch.Tensor | None,
        rows: dict[str, Any],
        options: dict[str, Any],
    ) -> Results:
        """As :meth:`_update`, with ``resting`` in the place of the module's other tensors."""
        count = len(next(iter(rows.values())))

        def losses_of(
            given: Mapping[str, Mapping[str, torch.Tensor]],
        ) -> tuple[torch.Tensor, dict[str, Any]]:
            td = TensorDict(rows, batch_size=[count])
            weights = {name: weight for own in given.values() for name, weight in own.items()}
            weights |= resting
            losses = dict(func.functional_call(self._module, weights, (td,), options).items())
            return total_loss(losses), losses

        gradients, (_, losses) = func.grad_and_value(losses_of, has_aux=True)(learning)
        norms = {}
        for agent, own in gradients.items():
            norm = torch.stack([each.square().sum() for each in own.values()]).sum().sqrt()
            norms[agent] = norm
            if self._max_norm is not None:
                # As torch.nn.utils.clip_grad_norm_ does.
                factor = (self._max_norm / (norm + 1e-6)).clamp(max=1.0)
                gradients[agent] = {name: each * factor for name, each in own.items()}
        if self.optimizer is None or scales is None:
            return gradients, losses, norms
        self.optimizer.step_in_graph(
            {agent: list(own.values()) for agent, own in learning.items()},
            moments,
            {agent: list(own.values()) for agent, own in gradients.items()},
            norms,
            scales,
        )
        return {}, losses, norms

    def _replay(
        self,
        agents: tuple[str, ...],
        scales: torch.Tensor | None,
        rows: dict[str, Any],
        options: dict[str, Any],
    ) -> Results:
        """As :meth:`_update`, by a graph of its own for what has the form of these arguments."""
        given = list(_tensors(rows))
        forms = [(name, each.dtype, each.shape, each.stride()) for name, each in given]
        key = (agents, *options.items(), *forms)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._captured(agents, scales, rows, options)
        return graph(scales, [each for _, each in given])

    def _captured(
        self,
        agents: tuple[str, ...],
        scales: torch.Tensor | None,
        rows: dict[str, Any],
        options: dict[str, Any],
    ) -> Callable[[torch.Tensor | None, list[torch.Tensor]], Results]:
        """A graph that is called with tensors alone, those of the module and optimizer included.

        To find out that ``torch.compile`` may enter a graph takes a tenth of a small update.
        """
        # Here, as it imports a compiler.
        from torch.fx.experimental.proxy_tensor import make_fx

        prepare_compiling()
        learning = {agent: self._learning[agent] for agent in agents}
        chosen = {name for own in learning.values() for name in own}
        named = (*self._module.named_parameters(), *self._module.named_buffers())
        resting = {name: each for name, each in named if name not in chosen}
        moments = {} if self.optimizer is None else self.optimizer.moments(agents)
        scaled = () if scales is None else (scales,)
        first, form = tree_flatten((learning, moments, resting, scaled, rows))
        forms = []

        def update(*tensors: Any) -> list[torch.Tensor]:
            learning, moments, resting, scaled, rows = tree_unflatten(tensors, form)
            scales = scaled[0] if scaled else None
            results = self._update_of(learning, moments, resting, scales, rows, options)
            found, form_of_results = tree_flatten(results)
            forms.append(form_of_results)
            return found

        graph = make_fx(update, tracing_mode="fake", _allow_non_fake_inputs=True)(*first)
        compiled = torch._inductor.compile(graph, first, options=self._options())
        weights = [weight for own in learning.values() for weight in own.values()]

        def call(scales: torch.Tensor | None, rows: list[torch.Tensor]) -> Results:
            # Moments are others after a resume.
            moments = {} if self.optimizer is None else self.optimizer.moments(agents)
            changed = [each for own in moments.values() for parts in own for each in parts]
            scaled = () if scales is None else (scales,)
            found = compiled(*weights, *changed, *resting.values(), *scaled, *rows)
            results: Results = tree_unflatten(found, forms[0])
            return results

        return call


def _tensors(rows: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, each in rows.items():
        if isinstance(each, torch.Tensor):
            yield name, each
        else:
            yield from _tensors(each)


def _is_known(module: torch.nn.Module) -> bool:
    """Whether nothing in a module but tensors changes between two calls."""
    return type(module).__module__.partition(".")[0] in ("torch", "plugrl")


def _about_arguments(guards: Sequence[Any]) -> list[bool]:
    """Of what would be looked at before each call, keep what the caller can change.

    The rest is about attributes of modules and about torch itself: looking at them takes a quarter
    of a small update where its memory has been used for something else meanwhile.
    """
    return [not each.is_global and not _OF_SELF.match(each.name) for each in guards]


def _refusal(
    module: torch.nn.Module,
    parameters: Mapping[str, torch.nn.Parameter],
    learning: Sequence[torch.nn.Parameter],
    device: str,
) -> str | None:
    """Why a loss module is not compiled; None: it is tried."""
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
