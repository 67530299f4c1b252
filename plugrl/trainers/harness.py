"""``harness``: red-teaming, from rollout trees of an environment to steps of an optimizer."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args, get_type_hints

import torch

from plugrl.core.config.schemas.schema import check_bounds, component, described
from plugrl.core.config.schemas.sections import ModelConfig
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.run.guards import Guards
from plugrl.core.text.dialogue.algorithm import HarnessAlgorithm
from plugrl.core.text.dialogue.evaluation.evaluation import (
    REPORTS,
    dialogue_sample,
    held_out,
    saved_report,
)
from plugrl.core.text.dialogue.harness import Harness
from plugrl.core.text.dialogue.language_models import LanguageModelSystem
from plugrl.core.text.dialogue.preflight import red_team_findings
from plugrl.core.text.dialogue.scorer import scorer_of_run
from plugrl.core.text.evaluate.scores import report_evaluation
from plugrl.core.text.learn.optimizer import (
    OPTIMIZERS,
    OptimizerName,
    gradients,
    load_gradients,
    load_optimizer,
    make_optimizer,
    optimizer_state,
)
from plugrl.core.text.models import Models
from plugrl.core.text.rollout.metrics import Means
from plugrl.core.trainer import Trainer, TrainingResult
from plugrl.core.wording import did_you_mean
from plugrl.trainers.kit import RED_TEAM

if TYPE_CHECKING:
    from pathlib import Path

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.dialogue.environment import Environment
    from plugrl.core.text.dialogue.tree import RolloutTree
    from plugrl.core.text.models import Model
    from plugrl.core.trainer import TrainerContext

Class = TypeVar("Class", bound=type)
#: Dialogues of a step that are kept as samples.
_SHOWN = 4


def refuses_unknown_fields(cls: Class) -> Class:
    """Let a configuration class refuse arguments that it does not have by name."""
    plain: Callable[..., None] = cls.__init__  # type: ignore[misc]

    @functools.wraps(plain)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        known = list(inspect.signature(plain).parameters)[1:]
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            close = did_you_mean(unknown[0], known, 1)
            raise ConfigError(
                f"{type(self).__name__} has no field {unknown[0]!r}; its fields are: "
                f"{', '.join(known)}{close}"
            )
        plain(self, *args, **kwargs)

    cls.__init__ = checked  # type: ignore[misc]
    return cls


@refuses_unknown_fields
@dataclass
class TrainingConfiguration:
    """The settings of the trainer ``harness``; a subclass may add attributes.

    Raises:
        ConfigError: an argument is unknown, or a value is outside its range.
    """

    lr: float = described(3e-3, "learning rate", above=0, at_most=10)
    batch_size: int = described(
        16, "steps of the algorithm in a batch, such as pairs", at_least=1, at_most=10**6
    )
    optimizer: OptimizerName = described("adamw", "which optimizer of torch.optim")
    gradient_accumulation_steps: int = described(
        1, "batches whose gradients an update adds up", at_least=1, at_most=10**6
    )
    training_steps: int = described(
        1024, "experiences, each a set of new rollouts", at_least=0, at_most=10**9
    )
    num_episodes_per_experience: int = described(
        8, "rollout trees of an experience", at_least=1, at_most=10**6
    )
    algorithm: Any = component("harness_algorithm", "dpo", help="from rollout trees to a loss")

    def __post_init__(self) -> None:
        check_numbers(self)
        check_bounds(self)
        if self.optimizer not in OPTIMIZERS:
            close = did_you_mean(str(self.optimizer), OPTIMIZERS, 1)
            raise ConfigError(
                f"optimizer {self.optimizer!r} is unknown; it is one of "
                f"{', '.join(OPTIMIZERS)}{close}"
            )


def check_numbers(config: Any) -> None:
    """Refuse values that are not finite numbers; unlike YAML, code has not been checked."""
    hints: dict[str, Any] = {}
    for cls in type(config).__mro__:
        # Fields that users add are theirs to check, and may be annotated in any way.
        if cls.__module__.startswith("plugrl."):
            hints = get_type_hints(cls) | hints
    for name, hint in hints.items():
        sorts, value = (hint, *get_args(hint)), getattr(config, name)
        if not {int, float} & set(sorts) or (value is None and type(None) in sorts):
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{name} is {value!r:.40}; a number is expected")
        if float not in sorts and not isinstance(value, int):
            raise ConfigError(f"{name} is {value!r}; a whole number is expected")
        if not math.isfinite(value):
            raise ConfigError(f"{name} is {value}; a finite number is expected")


def check_choices(config: Any, names: tuple[str, ...]) -> None:
    """Refuse values that are none of the choices; YAML is checked before, code is not."""
    hints = get_type_hints(type(config))
    for name in names:
        value, choices = getattr(config, name), get_args(hints[name])
        if value not in choices:
            known = ", ".join(choices)
            raise ConfigError(f"{name} is {value!r}; it is one of {known}")


class HarnessTrainer(Trainer):
    """Trains the tester of an environment with an algorithm; in a run, or without one.

    Without a run, ``HarnessTrainer(config, environment, algorithm).train()`` writes nothing and
    leaves the models as they are then. In a run both come from the configuration.

    Args:
        config: a :class:`TrainingConfiguration`, which is kept as it is, or a section.
        environment: with its system; None: the one of the run.
        algorithm: from rollout trees to a loss: one that was made, a name, or a section; None: the
            one that ``config`` names.
        seed: of everything that is drawn; a run has its own.

    Attributes:
        harness: collects experiences and makes losses of them.
        optimizer: of ``torch.optim``, over the parameters of the system.

    Raises:
        ConfigError: the configuration is wrong, or the algorithm cannot learn from such trees.
    """

    Config: ClassVar[type] = TrainingConfiguration
    sections: ClassVar[Mapping[str, Any]] = {
        "models": dict[str, ModelConfig],
        "scenario": component("scenario", help="what dialogues are about"),
        "red_team": component(
            "dialogue_environment", "dialogue", help="who talks with whom, and its worth"
        ),
    }
    conformance: ClassVar[Mapping[str, Any]] = RED_TEAM
    reports: ClassVar[Mapping[str, str]] = REPORTS

    def __init__(
        self,
        config: Any = None,
        environment: Environment | None = None,
        algorithm: Any = None,
        *,
        seed: int = 0,
    ) -> None:
        given = isinstance(config, TrainingConfiguration)
        super().__init__(ConfigView({}, checked=True) if given else config)
        if given:
            self.config = config
        self._environment = environment
        self._given = algorithm
        self._seed = seed
        self._algorithm: HarnessAlgorithm | None = None
        self._harness: Harness | None = None
        self._step = -1
        self._micro_batches = 0
        self._updates = 0
        self._last_metrics: dict[str, float] = {}
        self._pending_state: Mapping[str, Any] | None = None
        self._initial_weights: Mapping[str, Mapping[str, torch.Tensor]] = {}
        if environment is not None:
            self._set_up()

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Models, splits and a scorer that are missing, trees that the algorithm cannot use."""
        yield from red_team_findings(check)

    # What is there, in a run from the moment when it is first asked for

    @property
    def environment(self) -> Environment:
        """The environment, which grows the rollout trees."""
        if self._environment is None:
            self._set_up()
        assert self._environment is not None
        return self._environment

    @property
    def _system(self) -> Any:
        """The system of the environment; in a run it is a :class:`LanguageModelSystem`."""
        return self.environment.system

    @property
    def algorithm(self) -> HarnessAlgorithm:
        """The algorithm, which makes losses of rollout trees."""
        self._set_up()
        assert self._algorithm is not None
        return self._algorithm

    @property
    def harness(self) -> Harness:
        """The harness, which collects experiences and makes batches and losses of them."""
        self._set_up()
        assert self._harness is not None
        return self._harness

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the system's parameters."""
        self._set_up()
        return self._optimizer

    def _set_up(self) -> None:
        if self._harness is not None:
            return
        environment = self._make_environment()
        given = self._given if self._given is not None else self.config.algorithm
        self._algorithm = self._make_algorithm(given)
        system: Any = environment.system
        self._harness = Harness(
            environment,
            self._algorithm,
            num_episodes_per_experience=self.config.num_episodes_per_experience,
            batch_size=self.config.batch_size,
            seed=self._seed if self._context is None else self.hyper_params.seed,
        )
        self._parameters = list(system.parameters())
        self._optimizer = self.make_optimizer(self._parameters)
        # However somebody makes its steps, the system hears of them.
        self._optimizer.register_step_post_hook(lambda *_: system.after_optimizer_step())
        if self._pending_state is not None:
            state, self._pending_state = self._pending_state, None
            self._apply(state)

    def _make_environment(self) -> Environment:
        if self._environment is None:
            self._environment = _environment_of(self._bound("environment"))
            if self._initial_weights:
                system: Any = self._environment.system
                system.begin_with(self._initial_weights)
        return self._environment

    def _load_weights(self) -> None:
        """Have the environment with the weights of the loaded state, and nothing else of it."""
        system: Any = self._make_environment().system
        if self._pending_state is not None:
            system.load_weights(self._pending_state["system"])

    def _make_algorithm(self, section: Any) -> HarnessAlgorithm:
        """The algorithm of a section, of a name, or one that code has put there."""
        if isinstance(section, HarnessAlgorithm):
            return section
        section = {"type": section} if isinstance(section, str) else section
        if not isinstance(section, Mapping):
            raise ConfigError(
                f"algorithm is a {type(section).__name__}; write a name such as dpo, a section "
                "with type, or a HarnessAlgorithm"
            )
        algorithm: HarnessAlgorithm = self._factory.build(
            "harness_algorithm", section, "trainer.algorithm"
        )
        return algorithm

    def _prompts(self, split: str) -> Sequence[Any]:
        return _prompts_of(self._bound("prompts"), split)

    @property
    def _factory(self) -> Factory:
        return Factory(default_registry()) if self._context is None else self._context.factory

    @property
    def _guards(self) -> Guards:
        return Guards() if self._context is None else self.run.guards

    def make_optimizer(self, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer that the configuration names; override it to have another."""
        return make_optimizer(self.config.optimizer, parameters, lr=self.config.lr)

    # The loop

    def train(self) -> TrainingResult:
        """Run all training steps; after a resume, the remaining ones."""
        with self._closed_in_a_run():
            if self._context is not None:
                self.run.places.add("models", self._system.models.places)
            self._set_up()
            total = self.config.training_steps
            if self._step < 0:
                self._end_step(0, self._evaluate_after(0))
            with closing(self._progress(total)) as progress:
                while self._step < total and not self._stops_early():
                    self._end_step(self._step + 1, self._one_step(self._step + 1))
                    progress.update(self._step, **self._progress_numbers())
            if self._context is not None:
                self.run.guards.any_valid(self._step)
        return TrainingResult(steps=self._step, metrics=dict(self._last_metrics))

    @property
    def complete(self) -> bool:
        """Whether the last step has ended."""
        return self._step >= self.config.training_steps or self._stops_early()

    def _stops_early(self) -> bool:
        """Whether training ends before its last step."""
        return False

    def _one_step(self, step: int) -> dict[str, float]:
        """An experience, its updates, and what is known afterwards."""
        metrics: dict[str, float] = {}
        with self._timed("rollout", metrics):
            batches = self.harness.experience()
        metrics |= self._report_rollouts(step)
        with self._timed("train", metrics):
            metrics |= self._train_on(batches, step)
        return metrics | self._evaluate_after(step)

    def _train_on(self, batches: Iterable[Any], step: int) -> dict[str, float]:
        """Add up the gradients of ``batches``, and update as often as there are enough."""
        logs = Means()
        for batch in batches:
            logs.add({name: (value, 1.0) for name, value in self.micro_step(batch, step).items()})
        return logs.means("train/") | {"train/updates": float(self._updates)}

    def micro_step(self, batch: Any, step: int) -> dict[str, float]:
        """Add the gradient of one batch; each ``gradient_accumulation_steps``-th time, update.

        Gradients that no update took wait for the next experience.

        Returns:
            The loss and what else the algorithm and the update tell.
        """
        with self._forward():
            loss, logs = self.harness.step(batch)
        value = float(loss.detach())
        if not self._guards.check_finite("loss", value, step=step):
            return {}
        self._backward(loss / self.config.gradient_accumulation_steps)
        self._micro_batches += 1
        logs = {**logs, "loss": value}
        if self._micro_batches % self.config.gradient_accumulation_steps == 0:
            logs |= self._update(step)
        return logs

    @contextmanager
    def _forward(self) -> Iterator[None]:
        yield

    def _backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def _update(self, step: int) -> dict[str, float]:
        """One step of the optimizer on the gradients that were added up."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0
        if self._guards.check_finite("gradient", norm, step=step):
            self._optimizer.step()
            self._updates += 1
        self._optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": norm}

    def _report_rollouts(self, step: int) -> dict[str, float]:
        """Guard the new rollouts, show some, tell plugins of them, and give their metrics."""
        metrics = dict(self.harness.metrics)
        if self._context is None:
            return metrics
        trees = self.harness.trees
        nodes = [node for tree in trees for node in tree.nodes()]
        self.run.guards.rewards(
            step,
            [node.reward for node in nodes],
            [node.valid for node in nodes],
            reason=next((node.failure for node in nodes if not node.valid), ""),
        )
        for tree in trees[: self.settings.rollout_samples]:
            self.run.sample("dialogues", dialogue_sample(tree, step))
        self.run.hooks.call(
            "plugrl_rollouts_collected",
            run=self.run,
            step=step,
            trajectories=[node.trajectory(self._tester_name) for node in nodes],
            metrics=dict(metrics),
        )
        return metrics

    @property
    def _tester_name(self) -> str:
        tester = self.environment.config.get("tester") or {}
        return str(tester.get("model", "tester"))

    # What is held out

    def _evaluate_after(self, step: int) -> dict[str, float]:
        """Metrics of the held-out split before the first step and after the last."""
        ends = step >= self.config.training_steps or self._stops_early()
        if self._context is None or not (step == 0 or ends):
            return {}
        metrics: dict[str, float] = {}
        with self._timed("validate", metrics):
            found, trees = self._run_evaluation()
        self._report_evaluation(step, found, trees, "test")
        return metrics | found

    def _report_evaluation(
        self, step: int, scores: dict[str, float], trees: Sequence[RolloutTree], name: str
    ) -> None:
        """Report the results of held-out dialogues, and show some of them."""
        samples = [dialogue_sample(tree, step) for tree in trees[:_SHOWN]]
        report_evaluation(self.run, step, scores, samples, name=name)

    def _run_evaluation(self) -> tuple[dict[str, float], list[RolloutTree]]:
        section = self.environment.config
        prompts = self._prompts(section.get("eval_split", "test"))
        return held_out(self.environment, prompts, attempts=section.get("eval_attempts", 4))

    def evaluate(self) -> dict[str, float]:
        """Dialogues about the held-out split with the loaded state; every one is a sample.

        Raises:
            ConfigError: there is no such split.
        """
        self._load_weights()
        with self._closed_in_a_run():
            metrics, trees = self._run_evaluation()
        for tree in trees:
            self.run.sample("evaluation", dialogue_sample(tree, max(self._step, 0)))
        return metrics

    def report(self, name: str, folder: Path | None, origin: str) -> dict[str, float]:
        """Dialogues about the held-out split with the loaded state, and the report of them.

        Raises:
            PlugrlError: the folder cannot be used, or no dialogue has a score.
        """
        if name not in self.reports:
            return super().report(name, folder, origin)
        self._load_weights()
        with self._closed_in_a_run():
            prompts = self._prompts(self.environment.config.eval_split)
            return saved_report(
                self.environment, prompts, self.hyper_params, folder=folder, origin=origin
            )

    # Without a run, and in one

    @contextmanager
    def _closed_in_a_run(self) -> Iterator[None]:
        """In a run the models are this trainer's, and are closed; without one the caller's."""
        with ExitStack() as stack:
            if self._context is not None:
                stack.callback(self._system.close)
            yield

    def _progress(self, total: int) -> Any:
        return _Silent() if self._context is None else self.run.progress("Training", total)

    def _end_step(self, step: int, metrics: dict[str, float]) -> None:
        self._step = step
        self._last_metrics |= metrics
        if self._context is not None:
            self.run.end_step(step, metrics)

    def _progress_numbers(self) -> dict[str, float]:
        return {k: v for k, v in self._last_metrics.items() if k.endswith(("/reward", "/loss"))}

    # What is handed over and saved

    def export_weights(self) -> dict[str, Mapping[str, torch.Tensor]]:
        """Copies of the weights that are trained, or were in an earlier phase, by model name."""
        weights: dict[str, Mapping[str, torch.Tensor]] = self._system.models.weights()
        return weights

    def import_weights(self, handed: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Begin with these weights, by model name, instead of those of the sources."""
        self._initial_weights = handed or {}

    def loaded_models(self) -> Models:
        """The models with the weights of the loaded state; they are not trained further."""
        self._load_weights()
        self._system.sync_weights()
        models: Models = self._system.models
        return models

    def export(self, model: Model, folder: Path, *, adapter: bool = False) -> None:
        """Write one of the loaded models to a new folder, in the form that others read.

        Raises:
            UsageError: its service writes no such folders, or there is no adapter.
            ConfigError: the model is frozen.
        """
        model.service().export(folder, model.inference.tokenizer, adapter=adapter)

    def state_dict(self) -> dict[str, Any]:
        """Models, optimizer, gradients that wait for an update, algorithm and counters."""
        waits = self._micro_batches % self.config.gradient_accumulation_steps
        return {
            "step": self._step,
            "micro_batches": self._micro_batches,
            "updates": self._updates,
            "last_metrics": dict(self._last_metrics),
            "system": self._system.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "gradients": gradients(self._parameters) if waits else {},
            "harness": self.harness.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave; in a run it is applied when training goes on."""
        self._step = state["step"]
        self._micro_batches, self._updates = state["micro_batches"], state["updates"]
        self._last_metrics = dict(state["last_metrics"])
        if self._harness is None:
            self._pending_state = state
        else:
            self._apply(state)

    def _apply(self, state: Mapping[str, Any]) -> None:
        self._system.load_state_dict(state["system"])
        load_optimizer(self._optimizer, state["optimizer"]["state"], state["optimizer"]["options"])
        load_gradients(self._parameters, state["gradients"])
        self.harness.load_state_dict(state["harness"])


class _Silent:
    """Stands where a run has its progress bar."""

    def update(self, completed: int, **numbers: float) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing was shown."""


def _environment_of(context: TrainerContext) -> Environment:
    """Load the models of a run and build the environment of its section ``red_team``.

    Raises:
        ConfigError: a model cannot be loaded, or a section is wrong.
    """
    params, section = context.hyper_params, context.hyper_params.red_team
    models = Models.load(
        params.models, context.factory, seed=params.seed, device=context.settings.device
    )
    system = LanguageModelSystem(models, section)
    scorer = None
    # One that scores in a way of its own may have no such setting.
    if section.get("scorer") is not None:
        scorer = scorer_of_run(context.factory, section.scorer, "red_team.scorer", models)
    environment: Environment = context.factory.build("dialogue_environment", section, "red_team")
    environment.bind(system, _prompts_of(context, section.get("split", "train")), scorer)
    return environment


def _prompts_of(context: TrainerContext, split: str) -> Sequence[Any]:
    """The prompts of a split of the run's scenario.

    Raises:
        ConfigError: there is no scenario, or no such split.
    """
    if context.scenario_instance is None:
        raise ConfigError("there is no scenario; give one, such as scenario: red_team")
    return context.scenario_instance.dataset(split)
