"""Adam or RMSprop for the policies of a run, each clipped by its own gradient norm."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from plugrl.core.errors import RunError

if TYPE_CHECKING:
    from plugrl.core.tensordict.agents.agent import Agent

OptimizerName = Literal["adam", "rmsprop"]


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
        self._optimizer: torch.optim.Optimizer
        if name == "adam":
            self._optimizer = _adam(_by_rate(groups), betas=betas, eps=eps)
        else:
            self._optimizer = torch.optim.RMSprop(_by_rate(groups), alpha=0.99, eps=eps)
        self._learning = {
            agent: [p for g in own if g.lr > 0 for p in g.parameters]
            for agent, own in self._groups.items()
        }
        self._lr_factor = 1.0

    @property
    def active(self) -> set[str]:
        """The agents of which at least one group learns."""
        return {agent for agent, parameters in self._learning.items() if parameters}

    @property
    def learning(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that learn, by agent; each has a gradient norm of its own."""
        return {agent: own for agent, own in self._learning.items() if own}

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
        for learning in self._learning.values():
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
        norms = {}
        for agent, learning in self.learning.items():
            if agents is not None and agent not in agents:
                _drop_gradients(learning)
                continue
            if clipped is None:
                gradients = [p.grad.flatten() for p in learning if p.grad is not None]
                # As get_total_norm, in a third of its time where there are few numbers.
                total = torch.linalg.vector_norm(torch.cat(gradients or [torch.zeros(1)]))
            else:
                total = clipped[agent]
            norms[agent] = norm = float(total)
            if not math.isfinite(norm):
                _drop_gradients(learning)
            elif clipped is None and max_norm is not None and norm > max_norm:
                nn.utils.clip_grads_with_norm_(learning, max_norm, total)
        self._optimizer.step()
        return norms

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
