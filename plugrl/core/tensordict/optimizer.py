"""Adam on flat parameters, with parts that rest and a gradient norm of each agent.

Small networks have many small tensors, and what an operation costs beside its numbers is most of
an optimizer step. So the parameters of an agent become views of one tensor, as do their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from plugrl.core.errors import RunError


@dataclass
class ParameterGroup:
    """Parameters that are trained alike.

    Attributes:
        agent: whose gradient norm they count in.
        part: of the agent, such as ``policy_head``.
        parameters: of one type and device, like all of the agent; each in one group only.
        lr: learning rate; 0 lets the group rest for good.
    """

    agent: str
    part: str
    parameters: Sequence[nn.Parameter]
    lr: float


class _Segment:
    """A group's piece of its agent's flat tensors."""

    def __init__(self, group: ParameterGroup, start: int) -> None:
        self.group = group
        self.start = start
        self.stop = start + sum(p.numel() for p in group.parameters)
        self.resting = False


class _Flat:
    """The parameters of one agent, their gradients and moments, each as one tensor."""

    def __init__(self, segments: Sequence[_Segment]) -> None:
        self.segments = list(segments)
        parameters = [p for s in segments for p in s.group.parameters]
        kinds = {(p.dtype, p.device) for p in parameters}
        if len(kinds) != 1 or len({id(p) for p in parameters}) < len(parameters):
            agent = segments[0].group.agent
            raise ValueError(
                f"agent {agent} needs parameters of one type and device, each in one group"
            )
        self.values = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradients = torch.zeros_like(self.values)
        self.averages = torch.zeros_like(self.values)
        self.squares = torch.zeros_like(self.values)
        # Float32 like torch's own, which the fused step asks for.
        self.steps = torch.zeros(len(segments), device=self.values.device)
        self.views: list[tuple[nn.Parameter, torch.Tensor]] = []
        start = 0
        for parameter in parameters:
            piece = slice(start, start + parameter.numel())
            parameter.data = self.values[piece].view_as(parameter)
            self.views.append((parameter, self.gradients[piece].view_as(parameter)))
            start = piece.stop

    def collect(self) -> None:
        """Bring gradients home that something put in the place of the views."""
        for parameter, view in self.views:
            gradient = parameter.grad
            if gradient is not view and parameter.requires_grad:
                view.copy_(gradient) if gradient is not None else view.zero_()
                parameter.grad = view

    def state(self) -> dict[str, torch.Tensor]:
        return {"averages": self.averages, "squares": self.squares, "steps": self.steps}


class _Call:
    """One call of the fused step: groups of an agent that learn at one rate."""

    def __init__(self, flat: _Flat, lr: float, indices: Sequence[int]) -> None:
        self._lr = lr
        # Neighbours that have made as many steps are one tensor.
        pieces: list[tuple[int, int, torch.Tensor]] = []
        for index in indices:
            segment, count = flat.segments[index], flat.steps[index]
            if pieces and pieces[-1][1] == segment.start and bool(pieces[-1][2] == count):
                pieces[-1] = (pieces[-1][0], segment.stop, pieces[-1][2])
            else:
                pieces.append((segment.start, segment.stop, count))
        self._counts = [count for _, _, count in pieces]
        self._values, self._gradients, self._averages, self._squares = (
            [whole[start:stop] for start, stop, _ in pieces]
            for whole in (flat.values, flat.gradients, flat.averages, flat.squares)
        )

    def square_norm(self) -> float:
        return sum(float(torch.dot(g, g)) for g in self._gradients)

    def step(self, scale: float, betas: tuple[float, float], eps: float) -> None:
        if scale < 1:
            for gradient in self._gradients:
                gradient.mul_(scale)
        # What torch.optim.Adam(fused=True) calls; its own step costs more than this one.
        torch._fused_adam_(
            self._values,
            self._gradients,
            self._averages,
            self._squares,
            [],
            self._counts,
            lr=self._lr,
            beta1=betas[0],
            beta2=betas[1],
            weight_decay=0.0,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )


class FlatAdam:
    """Adam as in ``torch.optim.Adam``, for groups of parameters of one or more agents.

    Make it before anything that takes views of the parameters (``.data``, TorchRL's functional
    loss modules): their storage moves here. After that the parameters may be changed in place
    only, as ``load_state_dict`` does.

    A group that rests (learning rate 0, or :meth:`set_active`) keeps its weights and moments bit
    for bit, asks autograd for no gradient and has no share in its agent's gradient norm.

    Args:
        groups: the parameters of an agent need not stand together.
        betas: decay of the two moments.
        eps: added to the root of the second moment.
    """

    def __init__(
        self,
        groups: Sequence[ParameterGroup],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self._betas = betas
        self._eps = eps
        self._lr_factor = 1.0
        self._flats: dict[str, _Flat] = {}
        for agent in dict.fromkeys(group.agent for group in groups):
            segments: list[_Segment] = []
            for group in groups:
                if group.agent == agent and group.parameters:
                    segments.append(_Segment(group, segments[-1].stop if segments else 0))
            if segments:
                self._flats[agent] = _Flat(segments)
        self._plan()

    @property
    def active(self) -> set[str]:
        """The agents of which at least one group learns."""
        return {agent for agent, calls in self._calls.items() if calls}

    def set_active(self, agent: str, active: bool, part: str | None = None) -> None:
        """Let an agent, or one part of it, learn or rest from now on.

        Raises:
            KeyError: there are no parameters of that agent or part.
        """
        segments = [s for s in self._flats[agent].segments if part in (None, s.group.part)]
        if not segments:
            raise KeyError(part)
        for segment in segments:
            segment.resting = not active
        self._plan()

    def set_lr_factor(self, factor: float) -> None:
        """Multiply all learning rates by ``factor`` from now on, as annealing does."""
        self._lr_factor = factor
        self._plan()

    def _learning_rate(self, segment: _Segment) -> float:
        return 0.0 if segment.resting else segment.group.lr * self._lr_factor

    def _plan(self) -> None:
        """Work out what each step has to do, so that a step itself only does it."""
        self._calls: dict[str, list[_Call]] = {}
        self._increments: dict[str, torch.Tensor] = {}
        for agent, flat in self._flats.items():
            rates = [self._learning_rate(segment) for segment in flat.segments]
            for segment, rate in zip(flat.segments, rates, strict=True):
                for parameter in segment.group.parameters:
                    parameter.requires_grad_(rate > 0)
            self._increments[agent] = torch.tensor(
                [float(rate > 0) for rate in rates], device=flat.values.device
            )
            self._calls[agent] = [
                _Call(flat, rate, indices)
                for rate in dict.fromkeys(rate for rate in rates if rate > 0)
                if (indices := [i for i, own in enumerate(rates) if own == rate])
            ]
            for parameter, gradient in flat.views:
                parameter.grad = gradient if parameter.requires_grad else None

    def zero_grad(self) -> None:
        """Set all gradients to 0."""
        for flat in self._flats.values():
            flat.gradients.zero_()

    def step(
        self, max_norm: float | None = None, agents: Collection[str] | None = None
    ) -> dict[str, float]:
        """Clip the gradients of each agent, then change its weights.

        Args:
            max_norm: largest Euclidean norm of the gradients of one agent's learning groups,
                clipped as ``torch.nn.utils.clip_grad_norm_`` does. None: as they are.
            agents: whose step it is; None: that of all. The others stay as they are.

        Returns:
            That norm before clipping, for each agent that learns. Where it is not finite, nothing
            of that agent was changed.
        """
        norms = {}
        for agent, calls in self._calls.items():
            if not calls or (agents is not None and agent not in agents):
                continue
            flat = self._flats[agent]
            flat.collect()
            norm = math.sqrt(sum(call.square_norm() for call in calls))
            norms[agent] = norm
            if not math.isfinite(norm):
                continue
            scale = 1.0 if max_norm is None else min(1.0, max_norm / (norm + 1e-6))
            flat.steps.add_(self._increments[agent])
            for call in calls:
                call.step(scale, self._betas, self._eps)
        return norms

    def state_dict(self) -> dict[str, Any]:
        """Moments, step counts and what rests: all that the next step needs beside the weights."""
        return {
            "lr_factor": self._lr_factor,
            "agents": {
                agent: {
                    "parts": [[s.group.part, s.stop - s.start] for s in flat.segments],
                    "resting": [s.resting for s in flat.segments],
                    **flat.state(),
                }
                for agent, flat in self._flats.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises:
            RunError: it belongs to other agents, parts or sizes.
        """
        own, saved = self.state_dict()["agents"], state["agents"]
        for agent in dict.fromkeys((*own, *saved)):
            if own.get(agent, {}).get("parts") != saved.get(agent, {}).get("parts"):
                raise RunError(
                    f"the saved optimizer state of agent {agent} is of other parts or sizes; "
                    "resume with the agents of the run"
                )
        self._lr_factor = float(state["lr_factor"])
        for agent, flat in self._flats.items():
            for name, tensor in flat.state().items():
                tensor.copy_(saved[agent][name])
            for segment, resting in zip(flat.segments, saved[agent]["resting"], strict=True):
                segment.resting = bool(resting)
        self._plan()
