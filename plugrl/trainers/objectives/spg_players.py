"""Players of a game who all learn from the same minibatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from plugrl.core.tensordict.learn.learner import Learner
from plugrl.core.tensordict.learn.loss_contract import total_loss
from plugrl.trainers.objectives.spg import SpgObjective, Terms, surrogate_losses
from plugrl.trainers.objectives.spg_gradients import Game, Levels
from plugrl.trainers.objectives.spg_joint import JointSteps, first_steps, joint_steps

if TYPE_CHECKING:
    from tensordict import TensorDict

    from plugrl.trainers.objectives.spg_variants import Shaping


class Player(NamedTuple):
    """A policy that learns.

    Attributes:
        learner: its loss module, a :class:`SpgObjective`, and its optimizer.
        members: the agents that it speaks for, in the order of their rows in batches.
    """

    learner: Learner
    members: Sequence[str]

    @property
    def objective(self) -> SpgObjective:
        """Its loss module."""
        module = self.learner.loss_module
        assert isinstance(module, SpgObjective), type(module).__name__
        return module

    def parameters(self) -> list[torch.nn.Parameter]:
        """What it plays with: the parameters of its policy that learn."""
        return [
            parameter
            for group in self.learner.agent.parameter_groups()
            if group.role == "actor"
            for parameter in group.parameters
            if parameter.requires_grad
        ]


class Players:
    """The policies that learn in an iteration.

    Args:
        players: by the names of their policies. One of which no policy weight learns is no part of
            the game; its value head learns all the same.
        sequence: groups of policies, those that lead at the front. Nobody expects others than
            players to respond.
        shaping: which gradients they follow.
        gamma: the discount.
    """

    def __init__(
        self, players: Mapping[str, Player], sequence: Levels, shaping: Shaping, *, gamma: float
    ) -> None:
        self._players = dict(players)
        self._sequence = sequence
        self._shaping = shaping
        self._gamma = gamma

    def learn(
        self,
        batches: Mapping[str, TensorDict],
        order: np.random.Generator,
        *,
        epochs: int,
        minibatch_size: int | None,
        not_finite: Callable[[str, float], object],
    ) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
        """Pass over the steps of all agents ``epochs`` times.

        Args:
            batches: ``[agents x N, T]`` of each policy, those of players with advantages.
            order: of the environments.
            epochs: how often.
            minibatch_size: steps of a minibatch, which has all T of at least one environment.
            not_finite: told of gradients that are not.

        Returns:
            Mean metrics of each player, and of all together.
        """
        views = {
            agent: view
            for name, player in self._players.items()
            for agent, view in self._views(batches[name], player.members).items()
        }
        count = next(iter(views.values())).batch_size[0]
        steps = joint_steps(views, first_steps(batches, count), self._gamma)
        length = steps.begins.shape[1]
        parts = max(1, min(count, round(count * length / (minibatch_size or count * length))))
        gathered: dict[tuple[str, str], list[float]] = {}
        for _ in range(epochs):
            for rows in np.array_split(order.permutation(count), parts):
                told = self._step(views, steps, torch.from_numpy(np.sort(rows)), order, not_finite)
                for place, value in told.items():
                    gathered.setdefault(place, []).append(value)
        means = {place: sum(values) / len(values) for place, values in gathered.items()}
        reports: dict[str, dict[str, float]] = {name: {} for name in self._players}
        for (name, key), value in means.items():
            if name:
                reports[name][key] = value
        return reports, {key: value for (name, key), value in means.items() if not name}

    @staticmethod
    def _views(batch: TensorDict, members: Sequence[str]) -> dict[str, TensorDict]:
        count = batch.batch_size[0] // len(members)
        return {a: batch[i * count : (i + 1) * count] for i, a in enumerate(members)}

    def _step(
        self,
        views: Mapping[str, TensorDict],
        steps: JointSteps,
        rows: torch.Tensor,
        order: np.random.Generator,
        not_finite: Callable[[str, float], object],
    ) -> dict[tuple[str, str], float]:
        rows = rows.to(steps.begins.device)
        terms = {}
        for name, player in self._players.items():
            if any(bool(steps.acts[agent][rows].any()) for agent in player.members):
                terms[name] = self._terms(player, views, steps, rows)
        if not terms:
            return {}
        game = self._game(terms, steps, rows)
        # What is drawn depends on the generator of the order, which checkpoints hold.
        generator = torch.Generator().manual_seed(int(order.integers(2**62)))
        groups = [[name for name in group if name in game.parameters] for group in self._sequence]
        gradients, shared = self._shaping.gradients(game, [g for g in groups if g], generator)
        metrics: dict[tuple[str, str], float] = {("", key): v for key, v in shared.items()}
        for name, (said, _) in terms.items():
            told = self._change(name, said, gradients.get(name))
            if not math.isfinite(told["grad_norm"]):
                not_finite("gradient norm", told["grad_norm"])
            if name in gradients:
                own = game.gradient(name, name).detach()
                told["shaping_norm"] = float((gradients[name] - own).norm())
            metrics |= {(name, key): value for key, value in told.items()}
        return metrics

    def _terms(
        self,
        player: Player,
        views: Mapping[str, TensorDict],
        steps: JointSteps,
        rows: torch.Tensor,
    ) -> tuple[Terms, dict[str, torch.Tensor]]:
        """What a policy says of its agents' steps; their log-ratios ``[rows, T]`` by agent."""
        masks = {agent: steps.acts[agent][rows] for agent in player.members}
        parts = [
            views[agent].select(*_READ, strict=False)[rows][mask] for agent, mask in masks.items()
        ]
        said = player.objective.terms(torch.cat(parts) if len(parts) > 1 else parts[0])
        ratios, start = {}, 0
        for agent, mask in masks.items():
            piece = said.log_ratio[start : start + int(mask.sum())]
            ratios[agent] = piece.new_zeros(mask.shape).index_put((mask,), piece)
            start += len(piece)
        return said, ratios

    def _game(
        self,
        terms: Mapping[str, tuple[Terms, dict[str, torch.Tensor]]],
        steps: JointSteps,
        rows: torch.Tensor,
    ) -> Game:
        ratios = {agent: each for _, own in terms.values() for agent, each in own.items()}
        objectives = [self._players[name].objective for name in terms]
        losses = surrogate_losses(
            ratios,
            {
                agent: steps.advantages(agent, rows, objectives[0].normalize_advantage)
                for agent in ratios
            },
            {agent: int(steps.acts[agent][rows].sum()) for agent in ratios},
            steps.begins[rows],
            objectives[0].clip_epsilon,
        )
        playing = {name: self._players[name].parameters() for name in terms}
        playing = {name: parameters for name, parameters in playing.items() if parameters}
        of_policies = {}
        for name in playing:
            own = terms[name][1]
            of_policies[name] = _mean([losses[agent] for agent in own], own, steps, rows)
        return Game(of_policies, playing)

    def _change(self, name: str, said: Terms, gradient: torch.Tensor | None) -> dict[str, float]:
        """Take an optimizer step along a gradient, with those of value head and entropy."""
        player = self._players[name]
        optimizer = player.learner.optimizer
        optimizer.zero_grad()
        others = total_loss(said.losses)
        if others.requires_grad:
            others.backward()  # type: ignore[no-untyped-call]
        if gradient is not None:
            parameters = player.parameters()
            pieces = torch.split(gradient, [p.numel() for p in parameters])
            for p, piece in zip(parameters, pieces, strict=True):
                # A copy, since clipping changes gradients in place.
                shaped = piece.view_as(p).clone()
                p.grad = shaped if p.grad is None else p.grad.add_(shaped)
        agent = player.learner.agent.name
        norm = optimizer.step(player.learner.max_grad_norm)[agent]
        told: dict[str, Any] = {"grad_norm": norm, "entropy": said.entropy}
        log_ratio = said.log_ratio.detach()
        told["kl"] = (log_ratio.exp() - 1 - log_ratio).mean()
        told |= {key: value.detach() for key, value in said.losses.items()}
        return {key: float(value) for key, value in told.items()}


def _mean(
    losses: Sequence[torch.Tensor],
    agents: Mapping[str, torch.Tensor],
    steps: JointSteps,
    rows: torch.Tensor,
) -> torch.Tensor:
    """The loss of a policy: that of its agents, each with the weight of its steps."""
    counts = [int(steps.acts[agent][rows].sum()) for agent in agents]
    total = torch.stack([each * n for each, n in zip(losses, counts, strict=True)]).sum()
    return total / max(1, sum(counts))


#: What the losses read of a batch.
_READ = ("observation", "action", "action_log_prob", "value_target", "state_value")
