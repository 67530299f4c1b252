"""``spg``: policies that know that others learn from what they do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.core.tensordict.seeding import generator_of
from plugrl.trainers.objectives.spg import SpgObjective
from plugrl.trainers.objectives.spg_gradients import SosWeights
from plugrl.trainers.objectives.spg_inverse import IhvpVariant
from plugrl.trainers.objectives.spg_players import Player, Players
from plugrl.trainers.objectives.spg_variants import (
    PROXIMAL,
    Inverse,
    Shaping,
    Variant,
)
from plugrl.trainers.stackelberg import sequence_faults, sequence_of

if TYPE_CHECKING:
    from tensordict import TensorDict

    from plugrl.core.config.preflight import Finding, Preflight

#: The name of the generator that orders environments; no policy can have it.
_JOINT = "spg/joint"


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
        None, "length of the step that others are thought to take; null: their learning rate"
    )
    additional_lola_term: bool = described(
        True, "lola, pola: whether the change of the own gradient by that step counts"
    )
    sos_scaling_factor: float = described(0.5, "sos, psos: a of the paper, how steep shaping is")
    sos_threshold_factor: float = described(
        0.1, "sos, psos: b of the paper, the gradient below which shaping fades out"
    )
    ihvp_variant: IhvpVariant = described(
        "nystrom", "spg, pspg: how the inverse of a follower's Hessian is multiplied"
    )
    ihvp_num_iterations: int = described(5, "steps of conjugate_gradient, terms of neumann")
    ihvp_rank: int = described(5, "rows of the Hessian that nystrom takes")
    ihvp_rho: float = described(0.1, "what is added to the Hessian's diagonal")
    clip_epsilon: float = described(0.2, "pspg, pola, psos: bound of the ratio around 1")
    critic_coef: float = described(0.5, "weight of the value loss")
    entropy_eps: float = described(0.0, "weight of the entropy bonus")
    normalize_advantage: bool = described(True, "scale advantages within each minibatch")

    def __post_init__(self) -> None:
        if not 0 < self.clip_epsilon < 1:
            raise ConfigError("clip_epsilon must be between 0 and 1")
        if not 0 < self.sos_scaling_factor < 1:
            raise ConfigError("sos_scaling_factor must be between 0 and 1")
        for name in ("critic_coef", "entropy_eps", "sos_threshold_factor"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative")
        if self.lookahead is not None and self.lookahead < 0:
            raise ConfigError("lookahead must not be negative, or null")
        if not (math.isfinite(self.ihvp_rho) and self.ihvp_rho > 0):
            raise ConfigError("ihvp_rho must be more than 0")
        for name in ("ihvp_num_iterations", "ihvp_rank"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")


class SpgTrainer(TensorDictRlTrainer):
    """Stackelberg policy gradient, LOLA and SOS on environments with several agents.

    All policies learn from the same minibatches, which hold all steps of some environments: what
    one agent did counts in what others make of later steps.
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

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        rl, spg = self.hyper_params.rl, self.hyper_params.spg
        epsilon = spg.clip_epsilon if spg.variant in PROXIMAL else None
        loss = SpgObjective(
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
            inverse=Inverse(spg.ihvp_variant, spg.ihvp_num_iterations, spg.ihvp_rank, spg.ihvp_rho),
        )

    def _learn(self, batches: Mapping[str, TensorDict], iteration: int) -> dict[str, float]:
        rl = self.hyper_params.rl
        estimates = {}
        on_device = {name: batch.to(self.device) for name, batch in batches.items()}
        # Those who rest are asked too: what their steps were worth to them is no concern of
        # others, but their batches say who acted when.
        for name, learner in self._learners.items():
            estimates[name] = learner.estimate(on_device[name])
        learning = {
            name: Player(learner, self._collector.members[name])
            for name, learner in self._learners.items()
            if self._starts(learner, iteration)
        }
        if not learning:
            return {}
        players = Players(learning, self._sequence, self._shaping(), gamma=rl.gamma)
        guards = self.run.guards
        reports, shared = players.learn(
            on_device,
            self._orders[_JOINT],
            epochs=rl.num_epochs,
            minibatch_size=rl.minibatch_size,
            not_finite=lambda name, value: guards.check_finite(name, value, step=iteration),
        )
        metrics = {f"train/{key}": value for key, value in shared.items()}
        for name, report in reports.items():
            prefix = "train" if len(self._learners) == 1 else f"train/{name}"
            told = {**report, **estimates[name]}
            metrics |= {f"{prefix}/{key}": value for key, value in told.items()}
        return metrics
