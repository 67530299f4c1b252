"""``OffPolicyTrainer``: learn from minibatches of old steps while new ones are collected."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from plugrl.core.config.pick import shown_name
from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.parts import seeded
from plugrl.core.tensordict.agents.preflight import trained_of
from plugrl.core.tensordict.collect.exploration import Explorer
from plugrl.core.tensordict.collect.replay_buffer import Key, ReplayBuffer
from plugrl.core.tensordict.collect.rows import real_steps
from plugrl.core.tensordict.learn.compiled_loss import worth_compiling
from plugrl.core.tensordict.learn.learner import Learner, Means, NotFinite
from plugrl.core.tensordict.learn.loss_contract import move_targets
from plugrl.core.tensordict.learn.optimizer import optimizer_for
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from plugrl.core.tensordict.sections import RlConfig
from plugrl.core.tensordict.seeding import generator_of, seed_of

if TYPE_CHECKING:
    from tensordict import TensorDict

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.agents.agent import Agent
    from plugrl.core.tensordict.collect.rows import Rows

logger = logging.getLogger(__name__)

#: Settings of ``rl`` that only learners from fresh batches read.
_UNREAD = ("num_epochs", "lmbda", "clip_value", "use_shared_body")


@dataclass
class OffPolicyRlConfig(RlConfig):
    """``rl`` with the defaults that suit learning from old steps."""

    num_iterations: int = described(
        100, "iterations: frames_per_batch steps and their updates", at_least=0, at_most=10**9
    )
    frames_per_batch: int = described(
        1000,
        "steps of an iteration over all environments, with those that only begin an episode",
        at_least=1,
        at_most=10**9,
    )
    minibatch_size: int = described(256, "old steps of one update", at_least=1, at_most=10**9)
    adam_eps: float = described(1e-8, "epsilon of Adam or RMSprop", above=0, at_most=1)
    max_grad_norm: float | None = described(
        None,
        "largest gradient norm of a policy, of its critics and so on; null: any",
        above=0,
        at_most=1e9,
    )


@dataclass
class ReplayConfig:
    """What all learners from old steps have in their own section."""

    buffer_size: int = described(
        1_000_000, "steps that are kept; the oldest make room", at_least=1, at_most=10**9
    )
    learning_starts: int = described(
        100,
        "real steps at random, over all environments, before updates",
        at_least=0,
        at_most=10**9,
    )
    train_freq: int = described(
        1, "real steps of each environment between updates", at_least=1, at_most=10**9
    )
    gradient_steps: int = described(
        1, "updates each time; -1: as many as steps were taken", at_least=-1, at_most=10**6
    )

    def __post_init__(self) -> None:
        if self.gradient_steps == 0:
            raise ConfigError("gradient_steps is 0, so that nothing would be learned; -1 or 1")


class OffPolicyLearner(Learner):
    """The loss, optimizer and old steps of one policy, updated on minibatches of them.

    Args:
        agent: the networks.
        loss_module: maps a minibatch to losses; ``update_targets()`` moves its target networks.
            Parameters of its own, such as those of critics, are trained too.
        buffer: the old steps.
        rl: the section.
        compiled: whether the loss and its gradients go through ``torch.compile``.
    """

    sizes_differ: ClassVar[bool] = False

    def __init__(
        self,
        agent: Agent,
        loss_module: torch.nn.Module,
        buffer: ReplayBuffer,
        rl: Any,
        *,
        compiled: bool = False,
    ) -> None:
        optimizer = optimizer_for(agent, loss_module, rl)
        super().__init__(agent, loss_module, None, optimizer, rl.max_grad_norm, compiled=compiled)
        self.buffer = buffer
        self.updates = 0
        self._means = Means()

    def learn_from(
        self, minibatch: TensorDict, not_finite: NotFinite, *, policy: bool = True
    ) -> None:
        """One optimizer step along the sum of the losses of a minibatch.

        Args:
            minibatch: old steps ``[B]``.
            not_finite: called for a gradient norm that is not finite.
            policy: whether the policy moves. If not, its weights and moments stay as they are, and
                the loss module is called with ``policy=False``.
        """
        agents = None if policy else self.optimizer.active - {self.agent.name}
        losses, norms = self._optimize(minibatch, agents, **({} if policy else {"policy": False}))
        self._note(losses, norms, not_finite)

    def update(
        self, losses: Mapping[str, torch.Tensor], not_finite: NotFinite, *, policy: bool = True
    ) -> None:
        """As :meth:`learn_from`, for what has called the loss module itself.

        Args:
            losses: what the loss module gave; they are differentiated as they are, uncompiled.
            not_finite: called for a gradient norm that is not finite.
            policy: whether the policy moves; if not, its weights and moments stay as they are.
        """
        if self.is_compiled:
            name = type(self.loss_module).__name__
            logger.warning("rl.compile: %s goes on uncompiled: its trainer calls it itself", name)
            self.compile(False)
        self._differentiate(losses)
        agents = None if policy else self.optimizer.active - {self.agent.name}
        norms = self.optimizer.step(self.max_grad_norm, agents)
        self._note(losses, norms, not_finite)

    def _note(
        self,
        losses: Mapping[str, torch.Tensor],
        norms: Mapping[str, float],
        not_finite: NotFinite,
    ) -> None:
        for name, norm in norms.items():
            if not math.isfinite(norm):
                not_finite(f"gradient norm of {name}", norm)
        self.updates += 1
        self._means.add(losses)

    def report(self) -> dict[str, float]:
        """Means of what the loss module gave since the last report, and the buffer's size."""
        return {**self._means.take(), "updates": self.updates, "buffer": len(self.buffer)}

    def state_dict(self) -> dict[str, Any]:
        """Optimizer, critics and target networks, old steps and generators."""
        generator = getattr(self.loss_module, "generator", None)
        return {
            **super().state_dict(),
            "buffer": self.buffer.state_dict(),
            "updates": self.updates,
            "generator": None if generator is None else generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        super().load_state_dict(state)
        self.buffer.load_state_dict(state["buffer"])
        self.updates = int(state["updates"])
        generator = getattr(self.loss_module, "generator", None)
        if generator is not None:
            generator.set_state(state["generator"])


class OffPolicyTrainer(TensorDictRlTrainer):
    """Base class of trainers that learn from old steps; subclass it and give the loss.

    An iteration evaluates when due, ends with ``run.end_step``, and is before that::

        for each of rl.frames_per_batch steps, with actions of an Explorer:      (Collector)
            every train_freq steps, once learning_starts of them were taken:     (_after_step)
                keep the steps in the replay buffer
                gradient_steps times:                                            (_run_updates)
                    minibatch = rl.minibatch_size old steps                      (_precompute)
                    losses = loss_module(minibatch); one optimizer step          (_update)
                    move the target networks

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
        #: Of the present iteration: steps that are in the buffers, seconds of updates, who learns.
        self._stored_steps = 0
        self._update_seconds = 0.0
        self._active_learners: dict[str, OffPolicyLearner] = {}
        self._explorers: dict[str, Explorer] = {}

    @classmethod
    def preflight(cls, check: Preflight) -> list[Finding]:
        """Besides those of the base: settings that only learners from fresh batches read."""
        findings = [*super().preflight(check)]
        defaults, trainer = OffPolicyRlConfig(), shown_name(check.section, "trainer")
        for name in _UNREAD:
            if check.root.rl.get(name, getattr(defaults, name)) != getattr(defaults, name):
                findings.append((f"rl.{name}", f"has no effect on {trainer}; remove it"))
        return findings

    @classmethod
    def turns_fault(cls, params: Any) -> str | None:
        """What a step leads to is what the same agent sees next, wherever others move between."""
        return f"which {cls.section} cannot learn from; take vanilla_ppo, a2c or reinforce"

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
            compiled = worth_compiling(rl.compile, self._optimizer_steps())
            self._learners[name] = OffPolicyLearner(
                agent, module.to(self.device), buffer, rl, compiled=compiled
            )

    def _optimizer_steps(self) -> int:
        """See the base class; of the steps at random at first, some bring updates."""
        environment = self.scenario_instance.train_environment
        steps = self.hyper_params.rl.num_iterations * self._steps(environment)
        return int(steps // self.algorithm.train_freq * self._updates_of(environment.num_envs))

    def _updates_of(self, count: int) -> int:
        """The updates each time, with so many environments."""
        steps = self.algorithm.gradient_steps
        return int(self.algorithm.train_freq * count if steps == -1 else steps)

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
        metrics: dict[str, float] = {}
        self._active_learners = {
            name: learner
            for name, learner in self._learners.items()
            if self._learns_in(iteration, learner) and isinstance(learner, OffPolicyLearner)
        }
        self._stored_steps, self._update_seconds = 0, 0.0
        with self._timed("rollout", metrics):
            batches = self._collector.collect(self._after_step)
        metrics["time/rollout"] -= self._update_seconds
        metrics["time/train"] = self._update_seconds
        metrics |= self._rollout_metrics()
        self.run.hooks.call(
            "plugrl_rollouts_collected",
            run=self.run,
            step=iteration,
            trajectories=batches,
            metrics=dict(metrics),
        )
        for name, learner in self._active_learners.items():
            prefix = "train" if len(self._learners) == 1 else f"train/{name}"
            metrics |= {f"{prefix}/{key}": value for key, value in learner.report().items()}
        return metrics

    def _after_step(self, t: int, filled: Mapping[str, Rows]) -> None:
        """Keep what was collected up to step ``t`` of the iteration, and learn, when due."""
        algorithm, count = self.algorithm, self._collector.environment.num_envs
        before = self._frames // count
        self._frames += real_steps(filled.values(), count, slice(t, t + 1))
        passed = max(self._iteration, 0) * self._collector.steps + t + 1
        for explorer in self._explorers.values():
            explorer.frames, explorer.passed = self._frames, passed * count
        # At most one more: a step in which environments only begin anew brings no update.
        steps = self._frames // count
        if steps > before:
            self._after_real_step(steps)
        due = steps > before and steps % algorithm.train_freq == 0
        if due or t + 1 == self._collector.steps:
            self._store(t + 1, filled)
        for explorer in self._explorers.values() if due else ():
            explorer.actor.begin_rollout()
        if due and self._frames > algorithm.learning_starts:
            started = time.perf_counter()
            self._run_updates(self._updates_of(count))
            self._update_seconds += time.perf_counter() - started

    def _after_real_step(self, steps: int) -> None:
        """Called after each real step of an environment, with their mean number so far."""

    def _store(self, stop: int, filled: Mapping[str, Rows]) -> None:
        for name, learner in self._learners.items():
            if isinstance(learner, OffPolicyLearner):
                learner.buffer.extend(*replay_steps(filled[name], slice(self._stored_steps, stop)))
        self._stored_steps = stop

    def _run_updates(self, updates: int) -> None:
        guards, iteration = self.run.guards, self._iteration + 1
        size = self._minibatch_size

        def not_finite(name: str, value: float) -> None:
            guards.check_finite(name, value, step=iteration)

        for name, learner in self._active_learners.items():
            if not learner.buffer:
                continue
            prepare = partial(self._prepare, name, learner)
            for minibatch in learner.buffer.minibatches(updates, size, prepare):
                self._update(learner, minibatch, not_finite)

    def _prepare(self, policy: str, learner: OffPolicyLearner, rows: TensorDict) -> TensorDict:
        return self._precompute(learner, self._normalised(policy, rows))

    def _precompute(self, learner: OffPolicyLearner, rows: TensorDict) -> TensorDict:
        """Add to the rows of several minibatches what the updates on them do not change.

        Override it where one pass over all rows is quicker than one for each minibatch.
        """
        return rows

    def _update(self, learner: OffPolicyLearner, minibatch: TensorDict, not_finite: Any) -> None:
        """One update of one policy and its target networks."""
        learner.learn_from(minibatch, not_finite)
        move_targets(learner.loss_module)

    def _normalised(self, policy: str, minibatch: TensorDict) -> TensorDict:
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


def replay_steps(rows: Rows, part: slice) -> tuple[dict[Key, torch.Tensor], torch.Tensor]:
    """Collected steps ``part`` as the replay buffer takes them, and which of them are real."""
    assert rows.action is not None, "no step was taken"

    def flat(array: np.ndarray, *extra: int) -> torch.Tensor:
        return torch.from_numpy(array[part].reshape(-1, *array.shape[2:], *extra))

    steps: dict[Key, torch.Tensor] = {
        "observation": flat(rows.observation[:-1]),
        "action": flat(rows.action),
        ("next", "observation"): flat(rows.next),
        ("next", "reward"): flat(rows.reward, 1),
        ("next", "terminated"): flat(rows.terminated, 1),
    }
    return steps, flat(rows.real)
