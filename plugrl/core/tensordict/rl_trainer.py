"""``TensorDictRlTrainer``: collect, estimate advantages, learn; a new loss is one method."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from plugrl.core.errors import ConfigError
from plugrl.core.run.progress import DETAIL
from plugrl.core.tensordict.agents.acting import acting_for
from plugrl.core.tensordict.agents.agent import Agent
from plugrl.core.tensordict.agents.loading import learning_state, restore_learning, restore_policies
from plugrl.core.tensordict.agents.preflight import batch_fault, frames_faults, trained_of
from plugrl.core.tensordict.collect.collector import Collector
from plugrl.core.tensordict.collect.episodes import episode_metrics
from plugrl.core.tensordict.collect.normalisation import Normalisers, scaled_shape
from plugrl.core.tensordict.collect.tensor_collector import TensorCollector
from plugrl.core.tensordict.environment.tensor_environment import TensorEnvironment
from plugrl.core.tensordict.evaluation import Evaluation
from plugrl.core.tensordict.learn.compiled_loss import worth_compiling
from plugrl.core.tensordict.learn.graphed_learner import GraphedLearner
from plugrl.core.tensordict.learn.learner import Learner
from plugrl.core.tensordict.learn.loss_contract import loss_module_and_gae
from plugrl.core.tensordict.learn.message_regression import MessageRegression, regression_for
from plugrl.core.tensordict.learn.optimizer import optimizer_for
from plugrl.core.tensordict.policy import Policy
from plugrl.core.tensordict.seeding import generator_of, seed_of
from plugrl.core.tensordict.trainer import IterationContext, TensorDictTrainer, attach_progress_bar
from plugrl.core.trainer import TrainingResult

if TYPE_CHECKING:
    from tensordict import TensorDict

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.environment.vector_environment import VectorEnvironment

logger = logging.getLogger(__name__)


class TensorDictRlTrainer(TensorDictTrainer):
    """Trains policies on their own steps; subclass it and give the loss.

    An iteration is::

        collect rl.frames_per_batch steps                                        (Collector)
        for each policy that learns:
            write advantages into its batch                                      (Learner.estimate)
            for each of rl.num_epochs epochs, for each minibatch:                (Learner.learn)
                losses = loss_module(minibatch)
                gradient of the sum of loss_..., its norm clipped; one optimizer step
        evaluate when due, then run.end_step
    """

    #: Sections with which the conformance kit trains it.
    conformance: ClassVar[Mapping[str, Any]] = {
        "models": None,
        "data": None,
        "rollout_worker": None,
        "scenario": {"type": "gymnasium", "id": "CartPole-v1", "num_envs": 2},
        "rl": {"num_iterations": 2, "frames_per_batch": 64},
        "validate": {"data": None, "every": 1, "episodes": 2},
        "trainer": {"total_train_steps": None},
    }
    #: Whether losses read what followed a step, once its advantage is there; false leaves it out of
    #: minibatches, which are cut quicker then.
    loss_reads_next: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._iteration = -1
        self._last_metrics: dict[str, float] = {}
        #: The metric of evaluations by which a checkpoint is the best, once there was one.
        self._score_name = ""
        self._learners: dict[str, Learner] = {}
        self._current: Agent | None = None
        self._regression: MessageRegression | None = None
        self._collected: dict[str, Any] | None = None

    @classmethod
    def preflight(cls, check: Preflight) -> list[Finding]:
        """Besides those of the base: batches that do not fit the environment."""
        return [*frames_faults(check), *super().preflight(check)]

    @abstractmethod
    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        """The loss module of a policy, and what estimates its advantages or None.

        Called once for each trained policy, whose networks are :attr:`policy_operator` and
        :attr:`value_operator` (:attr:`agent` for both in one). The loss module maps the rows of a
        minibatch to a mapping with ``loss_...`` scalars, which are added up, and metrics; any loss
        module of TorchRL will do. Its method ``update_targets()``, if it has one, is called after
        each optimizer step: ``loss.update_targets = SoftUpdate(loss, tau=0.005).step``.
        """

    @property
    def agent(self) -> Agent:
        """The networks that :meth:`_get_loss_module_and_gae` is asked about."""
        if self._current is None:
            raise RuntimeError("agent is known while _get_loss_module_and_gae() runs")
        return self._current

    @property
    def policy_operator(self) -> Any:
        """Maps ``observation`` to ``action`` and ``action_log_prob`` in a TensorDict."""
        return self.agent.policy_operator

    @property
    def value_operator(self) -> Any:
        """Maps ``observation`` to ``state_value`` in a TensorDict; None without a critic."""
        return self.agent.value_operator if self.use_critic else None

    def train(self) -> TrainingResult:
        """Run all iterations and the test episodes; after a resume, the remaining ones."""
        # What is not finite is looked for; numpy's warnings would only stand in its way.
        with (
            np.errstate(over="ignore", invalid="ignore"),
            closing(self.scenario_instance) as instance,
        ):
            self._set_up(instance.train_environment)
            self.run.guards.watch_rewards(self._collector.absurd_reward)
            with ExitStack() as stack:
                self._build_train_context(stack)
                self._run_train_loop()
            with ExitStack() as stack:
                self._build_test_context(stack)
                self._run_test_loop()
            # The run is saved once more when it is over, and closed environments have no state.
            self._collected = self._collector.state_dict()
        return TrainingResult(steps=self._iteration, metrics=dict(self._last_metrics))

    @property
    def complete(self) -> bool:
        """Whether the last iteration has ended and no test follows."""
        rl = self.hyper_params.rl
        return self._iteration >= rl.num_iterations and not rl.num_test_iterations

    # -- building ---------------------------------------------------------------------------

    def _set_up(self, environment: VectorEnvironment) -> None:
        rl, seed = self.hyper_params.rl, self.hyper_params.seed
        if isinstance(environment, TensorEnvironment):
            environment.to(self.device)
        fault = self.turns_fault(self.hyper_params) if environment.takes_turns else None
        if fault is not None:
            raise ConfigError(f"agents of {self.scenario_instance.name} take turns, {fault}")
        self._policies = self._build_policies(environment)
        self._orders = {name: generator_of(seed, "order", name) for name in self._policies.policies}
        self._build_learners()
        normalisers = self._build_normalisers(environment)
        self._regression = regression_for(environment, self.hyper_params.message_regression, seed)
        actors = self._build_actors()
        self._collector = _collector_for(environment, actors, normalisers)(
            environment,
            self._policies.policy_of,
            actors,
            steps=self._steps(environment),
            normalisers=normalisers,
        )
        self._evaluation = Evaluation(
            self.scenario_instance, self._policies, normalisers, self.hyper_params
        )
        if self._pending_state is not None:
            self._apply(self._pending_state)
            return
        self._collector.warm_up(rl.num_normalization_steps, seed)
        self._collector.begin(seed)
        if environment.state_dict() is None:
            logger.warning(
                "the state of %s cannot be saved: a resumed run begins new episodes, so that its "
                "numbers differ from those of an uninterrupted one",
                self.scenario_instance.name,
            )

    def _build_normalisers(self, environment: VectorEnvironment) -> Normalisers:
        rl, members = self.hyper_params.rl, Counter(self._policies.policy_of.values())
        policies = self._policies.policies
        return Normalisers(
            {name: scaled_shape(each.spaces) for name, each in policies.items()},
            {name: members[name] * environment.num_envs for name in policies},
            observations=rl.normalize_observations,
            rewards=rl.normalize_rewards,
            gamma=rl.gamma,
        )

    def _build_learners(self) -> None:
        rl = self.hyper_params.rl
        for name, agent in trained_of(self._policies).items():
            self.check_actions(agent)
            module, gae = self._loss_of(agent)
            self._learners[name] = (GraphedLearner if self._is_graphed(gae) else Learner)(
                agent,
                module,
                gae,
                optimizer_for(agent, module, rl),
                rl.max_grad_norm,
                compiled=worth_compiling(rl.compile, self._optimizer_steps()),
            )

    def _is_graphed(self, gae: Any) -> bool:
        """Whether updates look at no number; a step of RMSprop cannot be left out otherwise."""
        return (
            isinstance(self.scenario_instance.train_environment, TensorEnvironment)
            and GraphedLearner.takes(gae)
            and self.hyper_params.rl.optimizer == "adam"
        )

    def _optimizer_steps(self) -> int:
        """How many of one policy the run has, if one agent has it and all of its steps are real."""
        rl, environment = self.hyper_params.rl, self.scenario_instance.train_environment
        rows = self._steps(environment) * environment.num_envs
        minibatches = max(1, round(rows / (rl.minibatch_size or rows)))
        return int(rl.num_iterations * rl.num_epochs * minibatches)

    def _loss_of(self, agent: Agent) -> tuple[torch.nn.Module, Any]:
        """What :meth:`_get_loss_module_and_gae` gives for an agent.

        Raises:
            ContractError: it is not a loss module and what estimates advantages, or has target
                networks that nothing moves.
        """
        self._current = agent
        try:
            return loss_module_and_gae(self._get_loss_module_and_gae(), type(self).__name__)
        finally:
            self._current = None

    def _build_actors(self) -> dict[str, Any]:
        seed = self.hyper_params.seed
        return {
            name: acting_for(agent, generator_of(seed, "actions", name))
            for name, agent in self._policies.policies.items()
        }

    def _steps(self, environment: VectorEnvironment) -> int:
        rl, count = self.hyper_params.rl, environment.num_envs
        if rl.steps_per_env_per_iteration is not None:
            return int(rl.steps_per_env_per_iteration)
        fault = batch_fault(rl.frames_per_batch, count)
        if fault is not None:
            raise ConfigError(f"rl.frames_per_batch {fault}")
        return int(rl.frames_per_batch // count)

    # -- training ---------------------------------------------------------------------------

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_iterations)
    def _run_train_loop(self, iteration_context: IterationContext) -> None:
        """Run the iterations that are left."""
        iteration_context.set_description("Training")
        if self._iteration < 0:
            before = self.hyper_params.validate.before_train
            self._end_iteration(0, self._evaluate(0) if before else {})
        while self._iteration < self.hyper_params.rl.num_iterations:
            iteration = self._iteration + 1
            metrics = self._run_iteration(iteration)
            if self._evaluation_due(iteration):
                metrics |= self._evaluate(iteration)
            self._end_iteration(iteration, metrics)
            iteration_context.step(iteration, **self._shown(metrics))

    def _run_iteration(self, iteration: int) -> dict[str, float]:
        """Collect a batch and learn from it; give the metrics."""
        metrics: dict[str, float] = {}
        with self._timed("rollout", metrics):
            batches = self._collector.collect()
        metrics |= self._rollout_metrics()
        self.run.hooks.call(
            "plugrl_rollouts_collected",
            run=self.run,
            step=iteration,
            trajectories=batches,
            metrics=dict(metrics),
        )
        with self._timed("train", metrics):
            metrics |= self._learn(batches, iteration)
        seconds = metrics["time/rollout"] + metrics["time/train"]
        metrics["time/steps_per_second"] = self._collector.batch_steps / max(seconds, 1e-9)
        return metrics

    def _rollout_metrics(self) -> dict[str, float]:
        collector = self._collector
        metrics = episode_metrics(collector.statistics.take(), "rollout")
        metrics["rollout/frames"] = collector.total_frames
        if collector.reset_steps:
            metrics["rollout/reset_steps"] = collector.reset_steps
        if collector.environment.crashes:
            metrics["rollout/crashes"] = collector.environment.crashes
        own = collector.environment.take_metrics()
        if self._regression is not None:
            metrics |= self._regression.metrics(self._iteration + 1)
        return metrics | {f"rollout/{name}": value for name, value in own.items()}

    def _learn(self, batches: Mapping[str, TensorDict], iteration: int) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for name, learner in self._learners.items():
            if not self._learns_in(iteration, learner):
                continue
            report = self._learn_policy(learner, batches[name], iteration)
            prefix = "train" if len(self._learners) == 1 else f"train/{name}"
            metrics |= {f"{prefix}/{key}": value for key, value in report.items()}
        return metrics

    def _learns_in(self, iteration: int, learner: Learner) -> bool:
        """Whether a policy learns in an iteration; its learning rate is set then."""
        if not learner.agent.is_updated(iteration):
            return False
        rl = self.hyper_params.rl
        if rl.anneal_lr:
            learner.optimizer.set_lr_factor(self._share_left(iteration))
        return True

    def _share_left(self, iteration: int) -> float:
        """The share of the run from an iteration on: 1 in the first, almost 0 in the last."""
        return float(1 - (iteration - 1) / self.hyper_params.rl.num_iterations)

    def _learn_policy(
        self, learner: Learner, batch: TensorDict, iteration: int
    ) -> dict[str, float]:
        rl, guards = self.hyper_params.rl, self.run.guards
        return learner.learn_batch(
            batch.to(self.device) if self.device.type != "cpu" else batch,
            self._orders[learner.agent.name],
            epochs=rl.num_epochs,
            minibatch_size=rl.minibatch_size,
            reads_next=self.loss_reads_next,
            not_finite=lambda name, value: guards.check_finite(name, value, step=iteration),
        )

    # -- evaluation -------------------------------------------------------------------------

    def _evaluation_due(self, iteration: int) -> bool:
        section = self.hyper_params.validate
        if not section.enabled:
            return False
        last = iteration == self.hyper_params.rl.num_iterations
        return last or bool(section.every and iteration % section.every == 0)

    def _evaluate(self, iteration: int) -> dict[str, float]:
        metrics: dict[str, float] = {}
        with self._timed("validate", metrics), torch.no_grad():
            scores = self._evaluation.run(iteration)
            self._film(iteration)
        name = self.scenario_instance.test_environment.score or "mean_episode_return"
        self._score_name = f"validation/{name}"
        score = scores[self._score_name]
        where = self.run.label(iteration)
        logger.info("%s: %s %.4g", where, self._score_name, score, extra=DETAIL)
        self.run.report_score(score, self._score_name)
        self.run.hooks.call("plugrl_evaluation_end", run=self.run, step=iteration, metrics=scores)
        return metrics | scores

    def _film(self, iteration: int) -> None:
        kind = self.hyper_params.validate.film
        if kind != "none" and self._context is not None:
            path = self.run.folder / "samples" / f"film-{iteration:08d}.{kind}"
            self._evaluation.film(path)

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_test_iterations)
    def _run_test_loop(self, iteration_context: IterationContext) -> None:
        """Run the test episodes after training, one an iteration."""
        iteration_context.set_description("Testing")
        total = self.hyper_params.rl.num_test_iterations
        for number, episode in enumerate(self._evaluation.episodes(total), start=1):
            self.run.sample("test", {"step": self._iteration, **episode})
            iteration_context.step(number)

    def evaluate(self) -> dict[str, float]:
        """Mean returns of the loaded state over ``validate.episodes`` episodes."""
        with closing(self.scenario_instance) as instance:
            normalisers = self._restore_policies(instance.test_environment)
            evaluation = Evaluation(
                self.scenario_instance, self._policies, normalisers, self.hyper_params
            )
            with torch.no_grad():
                return evaluation.run(max(self._iteration, 0), record=self.run.sample)

    def trained_policies(self) -> dict[str, Policy]:
        """The policies of the loaded state by name, without those that act at random or by hand."""
        with closing(self.scenario_instance) as instance:
            normalisers = self._restore_policies(instance.test_environment)
        return {
            name: Policy(agent, normalisers.of_observations(name), squash=self.squash_actions)
            for name, agent in self._policies.policies.items()
            if agent.policy_body is not None
        }

    def _restore_policies(self, environment: VectorEnvironment) -> Normalisers:
        """Build the policies with the loaded weights; give what scales their observations."""
        self._policies = self._build_policies(environment)
        normalisers = self._build_normalisers(environment)
        if self._pending_state is not None:
            restore_policies(self._policies.policies, self._pending_state["policies"])
            held = self._pending_state["collector"]["normalisers"]
            normalisers.load_state_dict(held, rewards=False)
        return normalisers

    # -- state ------------------------------------------------------------------------------

    def _end_iteration(self, iteration: int, metrics: dict[str, float]) -> None:
        self._iteration = iteration
        self._last_metrics |= metrics
        self.run.end_step(iteration, metrics)

    def _shown(self, metrics: Mapping[str, float]) -> dict[str, float]:
        # Of all agents together: beside a bar there is no room for each.
        names = ("rollout/mean_episode_return", self._score_name)
        return {name: metrics[name] for name in names if name in metrics}

    def state_dict(self) -> dict[str, Any]:
        """Policies, optimizers, environments, normalisers, generators and counters."""
        return {
            "iteration": self._iteration,
            "last_metrics": dict(self._last_metrics),
            **learning_state(self._policies.policies, self._learners, self._orders),
            "collector": self._collected or self._collector.state_dict(),
            "regression": self._regression.state_dict() if self._regression is not None else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave; it is applied when training goes on."""
        self._pending_state = state
        self._iteration = state["iteration"]
        self._last_metrics = dict(state["last_metrics"])

    def _apply(self, state: Mapping[str, Any]) -> None:
        restore_learning(state, self._policies.policies, self._learners, self._orders)
        if self.hyper_params.rl.compile == "auto":
            # As it began, whatever becomes of the length of the run.
            for name, learner in self._learners.items():
                learner.compile(state["learners"][name].get("compiled", False))
        if self._regression is not None:
            self._regression.load_state_dict(state.get("regression", {}))
        seed = seed_of(self.hyper_params.seed, "resumed", self._iteration) % 2**31
        if not self._collector.load_state_dict(state["collector"], seed):
            logger.warning(
                "%s: the environments begin new episodes, because their state could not be saved",
                self.run.label(self._iteration),
            )
        self._pending_state = None


def _collector_for(
    environment: Any, actors: Mapping[str, Any], normalisers: Normalisers
) -> type[Any]:
    """Arrays, unless the environment is one for TorchRL's own collector or steps as tensors."""
    if TensorCollector.takes(environment, actors, normalisers):
        return TensorCollector
    if getattr(environment, "torchrl_environment", None) is None:
        return Collector
    from plugrl.core.tensordict.collect.torchrl_collector import TorchrlCollector

    return TorchrlCollector
