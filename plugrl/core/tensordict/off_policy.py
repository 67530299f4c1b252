"""``OffPolicyTrainer``: learn from minibatches of old steps while new ones are collected."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.parts import seeded
from plugrl.core.tensordict.agents.preflight import trained_of
from plugrl.core.tensordict.collect.exploration import Explorer
from plugrl.core.tensordict.collect.replay_buffer import ReplayBuffer
from plugrl.core.tensordict.collect.rows import real_steps
from plugrl.core.tensordict.learn.loss_contract import move_targets
from plugrl.core.tensordict.learn.off_policy_learner import OffPolicyLearner, steps_of
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from plugrl.core.tensordict.sections import RlConfig
from plugrl.core.tensordict.seeding import generator_of, seed_of

if TYPE_CHECKING:
    from tensordict import TensorDict

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.collect.rows import Rows

#: Settings of ``rl`` that only learners from fresh batches read.
_UNREAD = ("num_epochs", "lmbda", "clip_value", "use_shared_body", "compile")


@dataclass
class OffPolicyRlConfig(RlConfig):
    """``rl`` with the defaults that suit learning from old steps."""

    num_iterations: int = described(100, "iterations: frames_per_batch steps and their updates")
    frames_per_batch: int = described(
        1000, "steps of an iteration over all environments, with those that only begin an episode"
    )
    minibatch_size: int = described(256, "old steps of one update")
    adam_eps: float = described(1e-8, "epsilon of Adam")
    max_grad_norm: float | None = described(
        None, "largest gradient norm of a policy, of its critics and so on; null: any"
    )


@dataclass
class ReplayConfig:
    """What all learners from old steps have in their own section."""

    buffer_size: int = described(1_000_000, "steps that are kept; the oldest make room")
    learning_starts: int = described(
        100, "real steps at random, over all environments, before updates"
    )
    train_freq: int = described(1, "real steps of each environment between updates")
    gradient_steps: int = described(1, "updates each time; -1: as many as steps were taken")

    def __post_init__(self) -> None:
        for name in ("buffer_size", "train_freq"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        if self.learning_starts < 0:
            raise ConfigError("learning_starts must not be negative")
        if self.gradient_steps < 1 and self.gradient_steps != -1:
            raise ConfigError("gradient_steps must be at least 1, or -1")


class OffPolicyTrainer(TensorDictRlTrainer):
    """Base class of trainers that learn from old steps; subclass it and give the loss.

    An iteration takes ``rl.frames_per_batch`` steps, with ``gradient_steps`` updates of
    ``rl.minibatch_size`` old steps after every ``train_freq``. It evaluates when due and ends with
    ``run.end_step``.

    The loss module of :meth:`_get_loss_module_and_gae` moves its target networks, if it has some,
    in a method ``update_targets()``; override :meth:`_update` for another one. What it draws, it
    draws from its attribute ``generator``, if a resumed run is to draw the same.
    """

    use_critic: ClassVar[bool] = False
    #: Sections with which the conformance kit trains it.
    conformance: ClassVar[Mapping[str, Any]] = {
        **TensorDictRlTrainer.conformance,
        "rl": {"num_iterations": 2, "frames_per_batch": 64, "minibatch_size": 16},
    }
    #: The section of the algorithm, whose schema is a :class:`ReplayConfig`.
    section: ClassVar[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Real steps over all environments so far.
        self._frames = 0
        self._stored = 0
        self._seconds = 0.0
        self._learning: dict[str, OffPolicyLearner] = {}
        self._explorers: dict[str, Explorer] = {}

    @classmethod
    def preflight(cls, check: Preflight) -> list[Finding]:
        """Besides those of the base: settings that only learners from fresh batches read."""
        findings = [*super().preflight(check)]
        defaults = OffPolicyRlConfig()
        for name in _UNREAD:
            if check.root.rl.get(name, getattr(defaults, name)) != getattr(defaults, name):
                findings.append((f"rl.{name}", f"has no effect on {check.section.type}; remove it"))
        return findings

    @cached_property
    def algorithm(self) -> Any:
        """The section of the algorithm, looked up once: it is read at every step."""
        return self.hyper_params[self.section]

    # -- building ---------------------------------------------------------------------------

    def _build_learners(self) -> None:
        rl, seed = self.hyper_params.rl, self.hyper_params.seed
        self._minibatch_size = int(rl.minibatch_size)
        for name, agent in trained_of(self._policies).items():
            self.check_actions(agent)
            drawn_from = seed_of(seed, name, "replay")
            buffer = ReplayBuffer(self.algorithm.buffer_size, seed=drawn_from)
            module, _ = self._loss_of(agent)
            self._learners[name] = OffPolicyLearner(agent, module.to(self.device), buffer, rl)

    def _build_actors(self) -> dict[str, Any]:
        actors = super()._build_actors()
        for name in self._learners:
            rng = generator_of(self.hyper_params.seed, name, "exploration")
            agent = self._policies.policies[name]
            self._explorers[name] = self._explorer(actors[name], agent.distribution, rng)
        return {**actors, **self._explorers}

    def _explorer(self, actor: Any, distribution: Any, rng: np.random.Generator) -> Explorer:
        """What chooses the actions that are collected; by default the policy draws them."""
        return Explorer(actor, distribution, rng, self.algorithm.learning_starts)

    def _generator(self, purpose: str, device: torch.device | str) -> torch.Generator:
        """A generator for one purpose of the loss module of :attr:`agent`."""
        generator = torch.Generator(device)
        with seeded(self.hyper_params.seed, self.agent.name, purpose):
            return generator.manual_seed(torch.initial_seed())

    # -- training ---------------------------------------------------------------------------

    def _run_iteration(self, iteration: int) -> dict[str, float]:
        if self._collector.environment.acting() is not None:
            raise ConfigError(
                f"agents of {self.scenario_instance.name} take turns, which {self.section} cannot "
                "learn from; take vanilla_ppo, a2c or reinforce"
            )
        metrics: dict[str, float] = {}
        self._learning = {
            name: learner
            for name, learner in self._learners.items()
            if self._starts(learner, iteration) and isinstance(learner, OffPolicyLearner)
        }
        self._stored, self._seconds = 0, 0.0
        with self._timed("rollout", metrics):
            batches = self._collector.collect(self._after_step)
        metrics["time/rollout"] -= self._seconds
        metrics["time/train"] = self._seconds
        metrics |= self._rollout_metrics()
        self.run.hooks.call(
            "plugrl_rollouts_collected",
            run=self.run,
            step=iteration,
            trajectories=batches,
            metrics=dict(metrics),
        )
        for name, learner in self._learning.items():
            prefix = "train" if len(self._learners) == 1 else f"train/{name}"
            metrics |= {f"{prefix}/{key}": value for key, value in learner.report().items()}
        return metrics

    def _after_step(self, t: int, filled: Mapping[str, Rows]) -> None:
        own, count = self.algorithm, self._collector.environment.num_envs
        before = self._frames // count
        self._frames += real_steps(filled.values(), count, slice(t, t + 1))
        passed = max(self._iteration, 0) * self._collector.steps + t + 1
        for explorer in self._explorers.values():
            explorer.frames, explorer.passed = self._frames, passed * count
        # At most one more: a step in which environments only begin anew brings no update.
        steps = self._frames // count
        if steps > before:
            self._after_real_step(steps)
        due = steps > before and steps % own.train_freq == 0
        if due or t + 1 == self._collector.steps:
            self._store(t + 1, filled)
        if due and self._frames > own.learning_starts:
            started = time.perf_counter()
            updates = own.train_freq * count if own.gradient_steps == -1 else own.gradient_steps
            self._learn_from_old_steps(updates)
            self._seconds += time.perf_counter() - started

    def _after_real_step(self, steps: int) -> None:
        """Called after each real step of an environment, with their mean number so far."""

    def _store(self, stop: int, filled: Mapping[str, Rows]) -> None:
        for name, learner in self._learners.items():
            if isinstance(learner, OffPolicyLearner):
                learner.buffer.extend(*steps_of(filled[name], slice(self._stored, stop)))
        self._stored = stop

    def _learn_from_old_steps(self, updates: int) -> None:
        guards, iteration = self.run.guards, self._iteration + 1
        size = self._minibatch_size

        def not_finite(name: str, value: float) -> None:
            guards.check_finite(name, value, step=iteration)

        for name, learner in self._learning.items():
            for _ in range(updates if len(learner.buffer) else 0):
                self._update(learner, self._scaled(name, learner.buffer.sample(size)), not_finite)

    def _update(self, learner: OffPolicyLearner, minibatch: TensorDict, not_finite: Any) -> None:
        """One update of one policy and its target networks."""
        learner.update(learner.loss_module(minibatch), not_finite)
        move_targets(learner.loss_module)

    def _scaled(self, policy: str, minibatch: TensorDict) -> TensorDict:
        """A minibatch with today's normalisation, on the device of the networks.

        What is kept is not scaled, since the statistics move on.
        """
        normalisers = self._collector.normalisers
        if normalisers.used:
            for part in (minibatch, minibatch["next"]):
                seen = normalisers.observation(policy, part["observation"].numpy())
                part["observation"] = torch.from_numpy(seen)
            reward = normalisers.reward(policy, minibatch["next", "reward"].numpy())
            minibatch["next", "reward"] = torch.from_numpy(reward)
        return minibatch if self.device.type == "cpu" else minibatch.to(self.device)

    # -- state ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """That of the base, with the old steps, and how many were taken."""
        return {**super().state_dict(), "frames": self._frames}

    def _apply(self, state: Mapping[str, Any]) -> None:
        super()._apply(state)
        count = self._collector.environment.num_envs
        # Checkpoints of earlier versions count the steps of each environment.
        self._frames = int(state["frames"] if "frames" in state else state["taken"] * count)
