"""``spg``: policies that know that others learn from what they do.

All policies learn from the same minibatches, which hold all steps of some environments: what one
agent did counts in what others make of later steps. With w_t the sum over agents of
log pi(action) - log pi_old(action) in step t, zero for those who do not act, and A_(i,t) what the
step was worth to agent i, an iteration is::

    collect rl.frames_per_batch steps                                         (TensorDictRlTrainer)
    A_(i,t) of own steps by GAE, of those of others by what came of them      (joint_steps)
    for each of rl.num_epochs epochs, for some environments at a time:        (JointLearner)
        L_i = - sum_t stop(past_t) (g_t - [g_t]) / steps of i                 (surrogate_losses)
              past_t = sum of w_s before t in the episode
              g_t    = exp(w_t) A_(i,t), or with clipping the smaller of that
                       and exp(clip(w_t)) A_(i,t)
              stop(x) = exp(x - [x]),  [x]: x as a constant
        a gradient for each policy from the L_i of all                        (Shaping.gradients)
            spg   grad L_i along the best responses of those it leads (Stackelberg)
            lola  grad L_i along the gradient steps of the others
            sos   the same, with shaping held back where it would not be stable
            pspg, pola, psos: the same with clipped ratios
        one step of Adam of each policy, with the gradients of value loss and entropy bonus

The value of L_i is 0. Its gradient by an agent is the policy gradient of that agent's steps,
weighed by what they were worth to i, and its mixed derivatives are estimates of those of the
expected return: they hold both what two agents did in one step, and what one did before the other
acted, as agents that take turns do.

Sources: Farquhar et al., arXiv 1909.10549 (Loaded DiCE), equation 14 with lambda 1, with ratios for
steps that an earlier policy took; for the gradients see
:mod:`plugrl.trainers.opponent_shaping.gradients`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from plugrl.core.config.schemas.schema import described
from plugrl.core.estimators import clipped_value_loss
from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage
from plugrl.core.tensordict.learn.learner import Learner
from plugrl.core.tensordict.learn.loss_contract import total_loss
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.core.tensordict.seeding import generator_of
from plugrl.trainers.critics import DISTANCES, Distance
from plugrl.trainers.opponent_shaping.gradients import (
    PROXIMAL,
    Game,
    InverseHessian,
    Levels,
    Shaping,
    SosWeights,
    Variant,
)
from plugrl.trainers.opponent_shaping.inverse_hessian import IhvpVariant
from plugrl.trainers.opponent_shaping.joint_steps import JointSteps, first_steps, joint_steps
from plugrl.trainers.opponent_shaping.leader_order import sequence_faults, sequence_of

if TYPE_CHECKING:
    from tensordict import TensorDict, TensorDictBase

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.agents.agent import Agent

#: The name of the generator that orders environments; no policy can have it.
_JOINT = "spg/joint"
#: What the losses read of a batch.
_READ = ("observation", "action", "action_log_prob", "value_target", "state_value")


@dataclass
class SpgConfig:
    """How each policy takes into account that others learn."""

    variant: Variant = described(
        "psos",
        "spg: others move to their best response; lola: they take a gradient step; sos: as lola, "
        "but stable; pspg, pola, psos: the same with clipped ratios",
    )
    stackelberg_sequence: list[list[str]] | None = described(
        None, "groups of agents, those that lead at the front; null: as the protocol says"
    )
    lookahead: float | None = described(
        None,
        "length of the step that others are thought to take; null: their learning rate",
        at_least=0,
        at_most=1000,
    )
    additional_lola_term: bool = described(
        True, "lola, pola: whether the change of the own gradient by that step counts"
    )
    sos_scaling_factor: float = described(
        0.5, "sos, psos: a of the paper, how steep shaping is", above=0, below=1
    )
    sos_threshold_factor: float = described(
        0.1,
        "sos, psos: b of the paper, the gradient below which shaping fades out",
        at_least=0,
        at_most=1000,
    )
    ihvp_variant: IhvpVariant = described(
        "nystrom", "spg, pspg: how the inverse of a follower's Hessian is multiplied"
    )
    ihvp_num_iterations: int = described(
        5, "steps of conjugate_gradient, terms of neumann", at_least=1, at_most=10**5
    )
    ihvp_rank: int = described(
        5, "rows of the Hessian that nystrom takes", at_least=1, at_most=10**6
    )
    ihvp_rho: float = described(
        0.1, "what is added to the Hessian's diagonal", above=0, at_most=1e6
    )
    clip_epsilon: float = described(
        0.2, "pspg, pola, psos: bound of the ratio around 1", above=0, below=1
    )
    critic_coef: float = described(0.5, "weight of the value loss", at_least=0, at_most=1000)
    entropy_eps: float = described(0.0, "weight of the entropy bonus", at_least=0, at_most=1000)
    normalize_advantage: bool = described(True, "scale advantages within each minibatch")


class PolicyTerms(NamedTuple):
    """What a policy says of rows.

    Attributes:
        logratio: ``[rows]``, log pi(action) less that of the collection.
        losses: of the value head and entropy.
        entropy: their mean entropy.
    """

    logratio: torch.Tensor
    losses: dict[str, torch.Tensor]
    entropy: torch.Tensor


class SpgLoss(nn.Module):
    """Terms of the losses of ``spg`` for the rows of one policy.

    Args:
        agent: the networks.
        clip_epsilon: bound of the ratio around 1; None: there is none.
        critic_coef: weight of the value loss.
        entropy_eps: weight of the entropy bonus.
        normalize_advantage: whether advantages are scaled to mean 0, deviation 1 in each minibatch.
        loss_critic_type: distance of values from their targets: ``l2``, ``smooth_l1`` or ``l1``.
        clip_value: how far a value may move from the collected one; None: any distance.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        clip_epsilon: float | None = None,
        critic_coef: float = 0.5,
        entropy_eps: float = 0.0,
        normalize_advantage: bool = False,
        loss_critic_type: Distance = "l2",
        clip_value: float | None = None,
    ) -> None:
        super().__init__()
        self.agent = agent
        self.clip_epsilon = clip_epsilon
        self.critic_coef, self.entropy_eps = critic_coef, entropy_eps
        self.normalize_advantage = normalize_advantage
        self.distance = DISTANCES[loss_critic_type]
        self.clip_value = clip_value

    def terms(self, td: TensorDictBase) -> PolicyTerms:
        """What the policy says of ``td [rows]``."""
        parameters, value = self.agent.policy_and_value(td["observation"])
        log_prob, entropy = self.agent.distribution.log_prob_and_entropy(parameters, td["action"])
        logratio = log_prob - td["action_log_prob"].reshape(log_prob.shape)
        value_target = td["value_target"].reshape(value.shape)
        if self.clip_value is None:
            v_loss = self.distance(value, value_target)
        else:
            old_value = td["state_value"].reshape(value.shape)
            distance = partial(self.distance, reduction="none")
            v_loss, _ = clipped_value_loss(
                value, old_value, value_target, self.clip_value, distance
            )
            v_loss = v_loss.mean()
        mean_entropy = entropy.mean()
        losses = {"loss_critic": v_loss * self.critic_coef}
        if self.entropy_eps:
            losses["loss_entropy"] = mean_entropy * -self.entropy_eps
        return PolicyTerms(logratio, losses, mean_entropy.detach())

    def forward(self, td: TensorDictBase) -> dict[str, torch.Tensor]:
        """Losses and metrics of ``td [rows]`` for a policy without followers."""
        logratio, losses, entropy = self.terms(td)
        advantage = td["advantage"].reshape(logratio.shape)
        if self.normalize_advantage and advantage.numel() > 1:
            std, mean = torch.std_mean(advantage)
            advantage = (advantage - mean) / (std + 1e-8)
        gain = gains(logratio, clipped(logratio, self.clip_epsilon), advantage)
        return {"loss_objective": -gain.mean(), **losses, "entropy": entropy}


def clipped(logratio: torch.Tensor, epsilon: float | None) -> torch.Tensor:
    """Clip log-ratios so that ratios are within ``epsilon`` of 1; None: no clipping."""
    if epsilon is None:
        return logratio
    return logratio.clamp(math.log1p(-epsilon), math.log1p(epsilon))


def gains(
    logratio: torch.Tensor, clipped_logratio: torch.Tensor, advantage: torch.Tensor
) -> torch.Tensor:
    """g of the module, for log-ratios and those that were clipped."""
    gain = logratio.exp() * advantage
    if clipped_logratio is logratio:
        return gain
    return torch.minimum(gain, clipped_logratio.exp() * advantage)


def surrogate_losses(
    logratios: Mapping[str, torch.Tensor],
    advantages: Mapping[str, torch.Tensor],
    counts: Mapping[str, int],
    begins: torch.Tensor,
    epsilon: float | None = None,
) -> dict[str, torch.Tensor]:
    """L_i of the module for each agent of ``advantages``; scalars of value 0.

    Args:
        logratios: ``[R, T]`` for each agent that learns; 0 where it does not act.
        advantages: ``[R, T]``; 0 where it is not known what the step was worth to the agent.
        counts: how many steps of its own each agent has.
        begins: ``[R, T]``, the step is the first one of an episode.
        epsilon: bound of each agent's ratio around 1; None: there is none.
    """
    w = torch.stack(list(logratios.values())).sum(0)
    clipped_w = w
    if epsilon is not None:
        # Each agent's ratio has its own bounds, as in PPO; the product of all may leave them.
        clipped_w = torch.stack([clipped(each, epsilon) for each in logratios.values()]).sum(0)
    past = _past(w, begins)
    stop = (past - past.detach()).exp()
    losses = {}
    for agent, advantage in advantages.items():
        g = gains(w, clipped_w, advantage)
        losses[agent] = -(stop * (g - g.detach())).sum() / max(1, counts[agent])
    return losses


def _past(w: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """The sums of ``w [R, T]`` over the earlier steps of each episode."""
    sums = w.cumsum(1) - w
    steps = torch.arange(w.shape[1], device=w.device).expand_as(begins)
    first = torch.where(begins, steps, 0).cummax(1).values
    return sums - sums.gather(1, first)


class Player(NamedTuple):
    """A policy that learns.

    Attributes:
        learner: its loss module, an :class:`SpgLoss`, and its optimizer.
        members: the agents that it speaks for, in the order of their rows in batches.
    """

    learner: Learner
    members: Sequence[str]

    @property
    def loss(self) -> SpgLoss:
        """Its loss module."""
        return cast(SpgLoss, self.learner.loss_module)

    def parameters(self) -> list[nn.Parameter]:
        """What it plays with: the parameters of its policy that learn."""
        return [
            parameter
            for group in self.learner.agent.parameter_groups()
            if group.role == "actor"
            for parameter in group.parameters
            if parameter.requires_grad
        ]


#: What a policy says of its agents' steps, and their log-ratios ``[rows, T]`` by agent.
TermsAndLogratios = tuple[PolicyTerms, dict[str, torch.Tensor]]


class JointLearner:
    """Trains all policies of an iteration on the same minibatches.

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
            not_finite: called with the name and value of a gradient norm that is not finite.

        Returns:
            Mean metrics of each player, and of all together.
        """
        views = {
            agent: view
            for name, player in self._players.items()
            for agent, view in _views(batches[name], player.members).items()
        }
        count = next(iter(views.values())).batch_size[0]
        steps = joint_steps(views, first_steps(batches, count), self._gamma)
        length = steps.begins.shape[1]
        minibatches = max(1, min(count, round(count * length / (minibatch_size or count * length))))
        gathered: dict[tuple[str, str], list[float]] = {}
        for _ in range(epochs):
            for rows in np.array_split(order.permutation(count), minibatches):
                metrics = self._step(
                    views, steps, torch.from_numpy(np.sort(rows)), order, not_finite
                )
                for of, value in metrics.items():
                    gathered.setdefault(of, []).append(value)
        means = {of: sum(values) / len(values) for of, values in gathered.items()}
        reports: dict[str, dict[str, float]] = {name: {} for name in self._players}
        for (name, key), value in means.items():
            if name:
                reports[name][key] = value
        return reports, {key: value for (name, key), value in means.items() if not name}

    def _step(
        self,
        views: Mapping[str, TensorDict],
        steps: JointSteps,
        rows: torch.Tensor,
        order: np.random.Generator,
        not_finite: Callable[[str, float], object],
    ) -> dict[tuple[str, str], float]:
        """One optimizer step of each policy on the steps of some environments.

        Returns:
            Metrics by policy and name; those of all together have the policy ``""``.
        """
        rows = rows.to(steps.begins.device)
        # 1. What each policy says of its agents' steps.
        terms = {
            name: self._terms(player, views, steps, rows)
            for name, player in self._players.items()
            if any(bool(steps.acts[agent][rows].any()) for agent in player.members)
        }
        if not terms:
            return {}
        # 2. The losses of the policies, each a function of the parameters of all.
        game = self._game(terms, steps, rows)
        # 3. The gradients that they follow. What is drawn for them depends on the generator of the
        # order, which checkpoints hold.
        generator = torch.Generator().manual_seed(int(order.integers(2**62)))
        groups = [[name for name in group if name in game.parameters] for group in self._sequence]
        gradients, shared = self._shaping.gradients(game, [g for g in groups if g], generator)
        # 4. One step of Adam along them.
        metrics: dict[tuple[str, str], float] = {("", key): v for key, v in shared.items()}
        for name, (own_terms, _) in terms.items():
            report = self._optimizer_step(name, own_terms, gradients.get(name))
            if not math.isfinite(report["grad_norm"]):
                not_finite("gradient norm", report["grad_norm"])
            if name in gradients:
                simple = game.gradient(name, name).detach()
                report["shaping_norm"] = float((gradients[name] - simple).norm())
            metrics |= {(name, key): value for key, value in report.items()}
        return metrics

    def _terms(
        self,
        player: Player,
        views: Mapping[str, TensorDict],
        steps: JointSteps,
        rows: torch.Tensor,
    ) -> TermsAndLogratios:
        masks = {agent: steps.acts[agent][rows] for agent in player.members}
        parts = [
            views[agent].select(*_READ, strict=False)[rows][mask] for agent, mask in masks.items()
        ]
        terms = player.loss.terms(torch.cat(parts) if len(parts) > 1 else parts[0])
        logratios, start = {}, 0
        for agent, mask in masks.items():
            piece = terms.logratio[start : start + int(mask.sum())]
            logratios[agent] = piece.new_zeros(mask.shape).index_put((mask,), piece)
            start += len(piece)
        return terms, logratios

    def _game(
        self, terms: Mapping[str, TermsAndLogratios], steps: JointSteps, rows: torch.Tensor
    ) -> Game:
        logratios = {agent: each for _, own in terms.values() for agent, each in own.items()}
        counts = {agent: int(steps.acts[agent][rows].sum()) for agent in logratios}
        # All have the options of the one section ``spg``.
        options = self._players[next(iter(terms))].loss
        scaled = options.normalize_advantage
        losses = surrogate_losses(
            logratios,
            {agent: steps.advantages(agent, rows, scaled) for agent in logratios},
            counts,
            steps.begins[rows],
            options.clip_epsilon,
        )
        parameters = {name: self._players[name].parameters() for name in terms}
        parameters = {name: own for name, own in parameters.items() if own}
        policy_losses = {}
        for name in parameters:
            # The loss of a policy is that of its agents, each with the weight of its steps.
            agents = terms[name][1]
            total = torch.stack([losses[agent] * counts[agent] for agent in agents]).sum()
            policy_losses[name] = total / max(1, sum(counts[agent] for agent in agents))
        return Game(policy_losses, parameters)

    def _optimizer_step(
        self, name: str, terms: PolicyTerms, gradient: torch.Tensor | None
    ) -> dict[str, float]:
        """Step along a gradient of the policy, and those of value head and entropy."""
        player = self._players[name]
        optimizer = player.learner.optimizer
        optimizer.zero_grad()
        others = total_loss(terms.losses)
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
        logratio = terms.logratio.detach()
        metrics: dict[str, Any] = {
            "grad_norm": norm,
            "entropy": terms.entropy,
            "kl": (logratio.exp() - 1 - logratio).mean(),
            **{key: value.detach() for key, value in terms.losses.items()},
        }
        return {key: float(value) for key, value in metrics.items()}


def _views(batch: TensorDict, members: Sequence[str]) -> dict[str, TensorDict]:
    """The rows of each agent of a policy."""
    count = batch.batch_size[0] // len(members)
    return {agent: batch[i * count : (i + 1) * count] for i, agent in enumerate(members)}


class SpgTrainer(TensorDictRlTrainer):
    """Stackelberg policy gradient, LOLA and SOS on environments with several agents.

    All policies learn from the same minibatches, see :class:`JointLearner`.
    """

    sections: ClassVar[Mapping[str, Any]] = {**TENSORDICT, "spg": SpgConfig}
    conformance: ClassVar[Mapping[str, Any]] = {
        **TensorDictRlTrainer.conformance,
        "scenario": {
            "type": "pettingzoo",
            "environment": "plugrl.scenarios.pettingzoo.two_cartpoles:TwoCartPoles",
            "num_envs": 2,
        },
    }

    @classmethod
    def preflight(cls, check: Preflight) -> list[Finding]:
        """Besides those of the base: an order of agents that is missing or of other agents."""
        findings = [*super().preflight(check), *sequence_faults(check)]
        if check.root.rl.get("compile") is True:
            findings.append(("rl.compile", "has no effect on spg; remove it"))
        return findings

    def _get_loss_module_and_gae(self) -> tuple[nn.Module, Any]:
        rl, spg = self.hyper_params.rl, self.hyper_params.spg
        epsilon = spg.clip_epsilon if spg.variant in PROXIMAL else None
        loss = SpgLoss(
            self.agent,
            clip_epsilon=epsilon,
            critic_coef=spg.critic_coef,
            entropy_eps=spg.entropy_eps,
            normalize_advantage=spg.normalize_advantage,
            loss_critic_type=rl.loss_critic_type,
            clip_value=spg.clip_epsilon if rl.clip_value else None,
        )
        return loss, GeneralisedAdvantage(self.agent, rl.gamma, rl.lmbda)

    def _build_learners(self) -> None:
        super()._build_learners()
        self._orders[_JOINT] = generator_of(self.hyper_params.seed, "order", _JOINT)
        self._sequence = sequence_of(
            self.hyper_params.spg,
            self.scenario_instance.train_environment,
            self._policies.policy_of,
            list(self._learners),
        )

    def _shaping(self) -> Shaping:
        rl, spg = self.hyper_params.rl, self.hyper_params.spg
        rates = {
            name: rl.lr * float(learner.agent.config["agent_lr_factor"]["actor"])
            if spg.lookahead is None
            else float(spg.lookahead)
            for name, learner in self._learners.items()
        }
        return Shaping(
            variant=spg.variant,
            rates=rates,
            additional_lola_term=spg.additional_lola_term,
            sos=SosWeights(spg.sos_scaling_factor, spg.sos_threshold_factor),
            inverse=InverseHessian(
                spg.ihvp_variant, spg.ihvp_num_iterations, spg.ihvp_rank, spg.ihvp_rho
            ),
        )

    def _learn(self, batches: Mapping[str, TensorDict], iteration: int) -> dict[str, float]:
        rl = self.hyper_params.rl
        on_device = {name: batch.to(self.device) for name, batch in batches.items()}
        # Those who rest are asked too: what their steps were worth to them is no concern of
        # others, but their batches say who acted when.
        estimates = {
            name: learner.estimate(on_device[name]) for name, learner in self._learners.items()
        }
        players = {
            name: Player(learner, self._collector.members[name])
            for name, learner in self._learners.items()
            if self._learns_in(iteration, learner)
        }
        if not players:
            return {}
        joint_learner = JointLearner(players, self._sequence, self._shaping(), gamma=rl.gamma)
        guards = self.run.guards
        reports, shared = joint_learner.learn(
            on_device,
            self._orders[_JOINT],
            epochs=rl.num_epochs,
            minibatch_size=rl.minibatch_size,
            not_finite=lambda name, value: guards.check_finite(name, value, step=iteration),
        )
        metrics = {f"train/{key}": value for key, value in shared.items()}
        for name, report in reports.items():
            prefix = "train" if len(self._learners) == 1 else f"train/{name}"
            own = {**report, **estimates[name]}
            metrics |= {f"{prefix}/{key}": value for key, value in own.items()}
        return metrics
