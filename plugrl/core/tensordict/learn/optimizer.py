"""Adam or RMSprop for the policies of a run, each clipped by its own gradient norm."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from torch import nn

from plugrl.core.errors import RunError

if TYPE_CHECKING:
    from plugrl.core.tensordict.agents.agent import Agent

OptimizerName = Literal["adam", "rmsprop"]

#: What a group of Adam hands on to its kernel.
_OPTIONS = ("lr", "eps", "weight_decay", "amsgrad", "maximize")


@dataclass
class ParameterGroup:
    """Parameters that are trained alike.

    Attributes:
        agent: whose gradient norm they count in.
        part: of the agent, such as ``policy_head``.
        parameters: each in one group only.
        lr: learning rate; 0 lets the group rest: autograd gives it no gradient.
    """

    agent: str
    part: str
    parameters: Sequence[nn.Parameter]
    lr: float


class _Stepping:
    """Parameters of a group of an optimizer that step at once, with their moments."""

    def __init__(
        self,
        group: Mapping[str, Any],
        parameters: Sequence[nn.Parameter],
        moments: Sequence[Mapping[str, torch.Tensor]],
    ) -> None:
        self._group, self._parameters = group, list(parameters)
        self._moments = [
            [each[name] for each in moments] for name in ("exp_avg", "exp_avg_sq", "step")
        ]

    @property
    def has_gradients(self) -> bool:
        return all(p.grad is not None for p in self._parameters)

    @torch.no_grad()
    def step(self) -> None:
        """As ``torch.optim.Adam`` steps a group with its fused kernel."""
        group = self._group
        averages, squares, steps = self._moments
        beta1, beta2 = group["betas"]
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            cast(list[torch.Tensor], self._parameters),
            [cast(torch.Tensor, p.grad) for p in self._parameters],
            averages,
            squares,
            [],
            steps,
            **{name: group[name] for name in _OPTIONS},
            beta1=beta1,
            beta2=beta2,
        )


class _Moments(NamedTuple):
    """What a compiled step of Adam reads of one parameter besides its gradient."""

    group: Mapping[str, Any]
    average: torch.Tensor
    square: torch.Tensor
    step: torch.Tensor


class AgentOptimizer:
    """One optimizer of ``torch.optim`` for all agents, each with a gradient norm of its own.

    So all that learn step in one pass over their weights, do not take shares of one another's
    norms, and may rest while others step.

    Args:
        groups: the parameters of an agent need not stand together.
        name: ``adam``, or ``rmsprop`` with a decay of 0.99.
        betas: Adam's decay of the two moments.
        eps: added to the root of the second moment.
    """

    def __init__(
        self,
        groups: Sequence[ParameterGroup],
        *,
        name: OptimizerName = "adam",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self._groups: dict[str, list[ParameterGroup]] = {}
        for group in groups:
            if group.parameters:
                self._groups.setdefault(group.agent, []).append(group)
            for parameter in group.parameters:
                parameter.requires_grad_(group.lr > 0)
        #: By agent, in the order of its parts, as they are counted in a saved state.
        self._parameters = {
            agent: [p for group in own for p in group.parameters]
            for agent, own in self._groups.items()
        }
        self.name = name
        self._betas, self._eps = betas, eps
        self._optimizer: torch.optim.Optimizer
        if name == "adam":
            self._optimizer = _adam(_by_rate(groups), betas=betas, eps=eps)
        else:
            self._optimizer = torch.optim.RMSprop(_by_rate(groups), alpha=0.99, eps=eps)
        learning = {
            agent: [p for g in own if g.lr > 0 for p in g.parameters]
            for agent, own in self._groups.items()
        }
        #: The parameters that learn, by agent; each has a gradient norm of its own.
        self.learning = {agent: own for agent, own in learning.items() if own}
        #: What steps with each set of agents, looked up once.
        self._stepping: dict[tuple[str, ...], list[_Stepping]] = {}
        #: By agent, for each parameter that learns: what a compiled step reads, looked up once.
        self._moments: dict[str, list[_Moments]] = {}
        self._lr_factor = 1.0

    @property
    def active(self) -> set[str]:
        """The agents of which at least one group learns."""
        return set(self.learning)

    def set_lr_factor(self, factor: float) -> None:
        """Multiply all learning rates by ``factor`` from now on, as annealing does."""
        self._lr_factor = factor
        for group in self._optimizer.param_groups:
            lr = group["initial_lr"] * factor
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for learning in self.learning.values():
            _drop_gradients(learning)

    def step(
        self,
        max_norm: float | None = None,
        agents: Collection[str] | None = None,
        *,
        clipped: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, float]:
        """Clip the gradients of each agent, then change the weights of all.

        Args:
            max_norm: largest Euclidean norm of the gradients of one agent, clipped as
                ``torch.nn.utils.clip_grad_norm_`` does. None: as they are.
            agents: whose step it is; None: that of all. The weights and moments of the others stay
                as they are, and their gradients are dropped.
            clipped: the norms of gradients that were clipped already. None: they are not.

        Returns:
            That norm before clipping, for each agent that learns. Where it is not finite, nothing
            of that agent was changed.
        """
        norms: dict[str, float] = {}
        stepping = []
        for agent, learning in self.learning.items():
            if agents is not None and agent not in agents:
                _drop_gradients(learning)
                continue
            norms[agent] = norm = float(clipped[agent]) if clipped else _norm(learning)
            if not math.isfinite(norm):
                _drop_gradients(learning)
                continue
            if not clipped and max_norm is not None and norm > max_norm:
                nn.utils.clip_grads_with_norm_(learning, max_norm, torch.tensor(norm))
            stepping.append(agent)
        self._step(tuple(stepping))
        return norms

    def _step(self, agents: tuple[str, ...]) -> None:
        """The optimizer's step, where ``agents`` have gradients and the others have none.

        ``Adam.step`` collects parameters and moments anew each time, which takes longer than
        changing the weights of a small network does; what was collected once is given to the same
        kernel.
        """
        if self.name != "adam":
            self._optimizer.step()
            return
        known = self._stepping.get(agents)
        if known is not None and all(each.has_gradients for each in known):
            for each in known:
                each.step()
            return
        self._optimizer.step()
        chosen = {p for agent in agents for p in self.learning[agent]}
        state = self._optimizer.state
        # Moments are made in the first step with a gradient, and a kernel takes one type of them.
        alike = (
            self._optimizer.defaults["fused"] and len({(p.device, p.dtype) for p in chosen}) == 1
        )
        if alike and all(p in state for p in chosen):
            self._stepping[agents] = [
                _Stepping(group, own, [state[p] for p in own])
                for group in self._optimizer.param_groups
                if (own := [p for p in group["params"] if p in chosen])
            ]

    def step_on_device(
        self, max_norm: float | None = None, *, clipped: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """As :meth:`step`, without a look at any value, so that a GPU can replay it.

        Where one norm is not finite, nothing of any agent is changed. Only Adam can do that.
        """
        assert self.name == "adam", "RMSprop of torch has no kernel that a flag holds back"
        norms = {}
        for agent, learning in self.learning.items():
            if clipped is None:
                gradients = [p.grad for p in learning if p.grad is not None]
                total = nn.utils.get_total_norm(gradients)
                if max_norm is not None:
                    nn.utils.clip_grads_with_norm_(learning, max_norm, total)
            else:
                total = clipped[agent]
            norms[agent] = total
        # Where it is set, fused kernels leave weights and moments as they are.
        lost = ~torch.stack(list(norms.values())).isfinite().all()
        self._optimizer.found_inf = lost.float()  # type: ignore[attr-defined]
        self._optimizer.step()
        return norms

    def scales(self, agents: Iterable[str]) -> torch.Tensor:
        """What depends on the count of steps in the next one, ``[parameters of all agents, 2]``.

        It is given to :meth:`step_in_graph`: powers in a graph would be taken for each number.
        """
        beta1, beta2 = self._betas
        found = []
        for agent in agents:
            if agent not in self._moments:
                groups = self._optimizer.param_groups
                group_of = {p: group for group in groups for p in group["params"]}
                own = self.learning[agent]
                self._moments[agent] = [self._moments_of(p, group_of[p]) for p in own]
            for group, _, _, step in self._moments[agent]:
                count = step.item() + 1
                rate = group["lr"] / (1 - beta1**count)
                found.append((rate, math.sqrt(1 - beta2**count)))
        return torch.tensor(found)

    def _moments_of(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> _Moments:
        state = self._optimizer.state[parameter]
        if not state:  # as torch.optim.Adam begins, in its first step with a gradient
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return _Moments(group, state["exp_avg"], state["exp_avg_sq"], state["step"])

    def moments(
        self, agents: Iterable[str]
    ) -> dict[str, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
        """By agent, for each parameter that learns: both moments and the count of steps.

        They are there from the first call of :meth:`scales` for these agents on.
        """
        return {
            agent: [(each.average, each.square, each.step) for each in self._moments[agent]]
            for agent in agents
        }

    def step_in_graph(
        self,
        parameters: Mapping[str, Iterable[torch.Tensor]],
        moments: Mapping[str, Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]],
        gradients: Mapping[str, Iterable[torch.Tensor]],
        norms: Mapping[str, torch.Tensor],
        scales: torch.Tensor,
    ) -> None:
        """The step of ``torch.optim.Adam``, for ``torch.compile``: one pass over each weight.

        Where a norm is not finite, nothing of that agent is changed.

        Args:
            parameters: by agent, in the order of :attr:`learning`; they are changed.
            moments: of them, as :meth:`moments` gives them; they are changed too.
            gradients: of them, clipped.
            norms: of the gradients of each agent.
            scales: what :meth:`scales` gave for these agents.
        """
        beta1, beta2 = self._betas
        number = 0
        for agent, own in parameters.items():
            is_finite = norms[agent].isfinite()
            each = zip(own, moments[agent], gradients[agent], strict=True)
            for parameter, (average, square, step), gradient in each:
                rate, root = scales[number, 0], scales[number, 1]
                number += 1
                new_average = average + (1 - beta1) * (gradient - average)
                new_square = beta2 * square + (1 - beta2) * gradient * gradient
                moved = parameter - rate * new_average / (new_square.sqrt() / root + self._eps)
                parameter.copy_(torch.where(is_finite, moved, parameter))
                average.copy_(torch.where(is_finite, new_average, average))
                square.copy_(torch.where(is_finite, new_square, square))
                step.add_(is_finite)

    def state_dict(self) -> dict[str, Any]:
        """Moments and step counts: all that the next step needs beside weights and settings."""
        moments = self._optimizer.state
        return {
            "name": self.name,
            "lr_factor": self._lr_factor,
            "agents": {
                agent: {
                    "parts": self._parts(agent),
                    "state": {i: moments[p] for i, p in enumerate(own) if p in moments},
                }
                for agent, own in self._parameters.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave, or what version 0.1 saved.

        Raises:
            RunError: it belongs to other agents, parts or sizes, or to another optimizer.
        """
        # Before there was a choice, all was Adam.
        name = state.get("name", "adam")
        if name != self.name:
            raise RunError(
                f"the saved optimizer state is of {name}, and rl.optimizer is {self.name}; resume "
                f"with rl.optimizer={name}"
            )
        saved = state["agents"]
        for agent in dict.fromkeys((*self._groups, *saved)):
            parts = self._parts(agent) if agent in self._groups else None
            if saved.get(agent, {}).get("parts") != parts:
                raise RunError(
                    f"the saved optimizer state of agent {agent} is of other parts or sizes; "
                    "resume with the agents of the run"
                )
        every = [p for group in self._optimizer.param_groups for p in group["params"]]
        place = {id(p): i for i, p in enumerate(every)}
        held: dict[int, Any] = {}
        for agent, own in self._parameters.items():
            moments = saved[agent].get("state")
            if moments is None:
                moments = _moments_of_0_1(saved[agent], self._groups[agent])
            held |= {place[id(own[i])]: each for i, each in moments.items()}
        # Copied, as torch would keep the given moments and change them in place.
        self._optimizer.load_state_dict(
            {**self._optimizer.state_dict(), "state": copy.deepcopy(held)}
        )
        self._stepping.clear()
        self._moments.clear()
        self.set_lr_factor(float(state["lr_factor"]))

    def _parts(self, agent: str) -> list[list[Any]]:
        """The parts of an agent, each with how many numbers it has."""
        return [[g.part, sum(p.numel() for p in g.parameters)] for g in self._groups[agent]]


def optimizer_for(agent: Agent, loss_module: nn.Module, rl: Any) -> AgentOptimizer:
    """The optimizer of a policy and of what its loss module has besides, such as critics.

    Args:
        agent: learns part by part, each at ``rl.lr`` times its own factor.
        loss_module: its own parameters learn as critics do, each with a gradient norm of its own.
        rl: the section.
    """
    groups = [
        ParameterGroup(agent.name, group.part, group.parameters, rl.lr * group.lr_factor)
        for group in agent.parameter_groups()
    ]
    seen = {id(parameter) for parameter in agent.parameters()}
    own: dict[str, list[nn.Parameter]] = {}
    for name, parameter in loss_module.named_parameters():
        if id(parameter) not in seen and parameter.requires_grad:
            own.setdefault(name.partition(".")[0], []).append(parameter)
    lr = rl.lr * float(agent.config["agent_lr_factor"]["critic"])
    groups += [
        ParameterGroup(f"{agent.name}/{part}", part, parameters, lr)
        for part, parameters in own.items()
    ]
    return AgentOptimizer(groups, name=rl.optimizer, eps=rl.adam_eps)


def _by_rate(groups: Sequence[ParameterGroup]) -> list[dict[str, Any]]:
    """What learns at one rate as one group, since a step takes its time for each."""
    alike: dict[float, list[nn.Parameter]] = {}
    for group in groups:
        alike.setdefault(group.lr, []).extend(group.parameters)
    return [{"params": own, "lr": lr, "initial_lr": lr} for lr, own in alike.items() if own]


def _norm(parameters: Iterable[nn.Parameter]) -> float:
    """The Euclidean norm of all gradients, none of which is copied."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return 0.0
    return math.hypot(*torch.stack(torch._foreach_norm(gradients)).tolist())


def _drop_gradients(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _adam(groups: list[dict[str, Any]], **options: Any) -> torch.optim.Adam:
    """Fused, where the device and the type of the parameters have that."""
    device = next((p.device for group in groups for p in group["params"]), torch.device("cpu"))
    if device.type == "cuda":
        # Steps and rates that are read on the device, so that a step can be part of a graph.
        groups = [{**g, "lr": torch.tensor(g["lr"], device=device)} for g in groups]
        options["capturable"] = True
    try:
        return torch.optim.Adam(groups, fused=True, **options)
    except RuntimeError:
        return torch.optim.Adam(groups, **options)


def _moments_of_0_1(
    saved: Mapping[str, Any], groups: Sequence[ParameterGroup]
) -> dict[int, dict[str, torch.Tensor]]:
    """Moments by the number of the parameter; 0.1 kept those of an agent in one flat tensor.

    Its counts of steps were of parts.
    """
    moments: dict[int, dict[str, torch.Tensor]] = {}
    start = 0
    for group, steps in zip(groups, saved["steps"], strict=True):
        for parameter in group.parameters:
            piece = slice(start, start + parameter.numel())
            start = piece.stop
            moments[len(moments)] = {
                "step": steps.clone(),
                "exp_avg": saved["averages"][piece].view_as(parameter),
                "exp_avg_sq": saved["squares"][piece].view_as(parameter),
            }
    return moments
