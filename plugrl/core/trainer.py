"""``Trainer``, the base of every training algorithm, and the context that it is bound to."""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from plugrl.core.config.check import configure
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import UsageError
from plugrl.core.foreign_names import OF_TRAINERS
from plugrl.core.renamed_methods import RenamedMethods
from plugrl.core.run.loaded_state import refuse_state

if TYPE_CHECKING:
    from pathlib import Path

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.config.view import ExperimentSettings, HyperParameters
    from plugrl.core.factory import Factory
    from plugrl.core.run.run import Run
    from plugrl.core.scenario import ScenarioInstance


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What a trainer promises; the conformance kit and ``resume`` rely on it.

    ``resume``: stopped at any ``end_step`` and resumed, it equals the uninterrupted run.
    """

    resume: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One phase of a trainer that runs others; ``build(run)`` gives its bound trainer."""

    name: str
    build: Callable[[Run], Trainer]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerContext:
    """The collaborators that the factory gives to a trainer through ``bind``."""

    hyper_params: HyperParameters
    settings: ExperimentSettings
    run: Run
    factory: Factory
    scenario_instance: ScenarioInstance | None = None
    phases: tuple[Phase, ...] = ()


@dataclass(kw_only=True, slots=True)
class TrainingResult:
    """The result of ``train``: the number of steps and the last metrics."""

    steps: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


def _refuse_parts(cls: type, others: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Refuse what trainers of other frameworks are built with besides their configuration.

    Raises:
        TypeError: there is some.
    """
    unknown = [name for name in named if name != "config"]
    if unknown or others:
        given = ", ".join(unknown) or f"{len(others)} arguments more"
        what = "write" if cls is Trainer else f"derive {cls.__name__} from"
        parts = others or {"environment", "algorithm"} & named.keys()
        remedy = f"; with an environment and an algorithm, {what} plugrl.HarnessTrainer"
        raise TypeError(
            f"{cls.__name__} takes a configuration alone, and was given {given}"
            f"{remedy if parts else ''}"
        )


class Trainer(RenamedMethods, ABC):
    """Base class of all trainers: subclass it when no more specific base fits.

    A trainer is built from its section of the configuration alone, so that its methods can be
    unit-tested; the factory then calls :meth:`bind`. Call ``self.run.end_step(step, metrics)``
    at the end of each step: there metrics are written, hooks run, checkpoints are saved and a
    stop is honoured.

    Args:
        config: the ``trainer`` section, as a mapping, an OmegaConf node or a ``ConfigView``.

    Raises:
        ConfigError: a key of ``config`` is unknown to ``Config`` or has the wrong type.
    """

    RENAMED_METHODS: ClassVar[Mapping[str, str]] = {
        "hand_over": "export_weights",
        "take_over": "import_weights",
    }
    FOREIGN: ClassVar[Mapping[str, str]] = OF_TRAINERS
    #: Dataclass that describes the ``trainer`` section; inherited when a subclass has none.
    Config: ClassVar[type]
    #: Root sections this trainer reads, with their schemas (``None``: free keys).
    sections: ClassVar[Mapping[str, Any]] = {}
    capabilities: ClassVar[Capabilities] = Capabilities()
    #: Evaluations of its own, by the word that ``plugrl eval RUN WORD`` asks for them with, and
    #: what each of them is; see :meth:`report`.
    reports: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        method = cls.__dict__.get("train")
        if inspect.isfunction(method) and "trajectories" in inspect.signature(method).parameters:
            raise TypeError(
                f"{cls.__name__}.train(trajectories) trains one step; derive from "
                "TrajectoryTrainer and call it train_step(self, trajectories) -> {metric: number}, "
                "since train(self) runs all steps"
            )

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Say of the abstract class itself, too, what takes an environment and an algorithm."""
        if cls is Trainer:
            _refuse_parts(cls, arguments[1:], named)
        return super().__new__(cls)

    def __init__(self, config: Any, *others: Any, **named: Any) -> None:
        _refuse_parts(type(self), others, named)
        self.config: ConfigView = configure(type(self), config)
        self._context: TrainerContext | None = None

    @property
    def _config(self) -> ConfigView:
        """The name that the guides use for :attr:`config`."""
        return self.config

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Check what no schema can, before a run folder is made; `plugrl validate` calls it too.

        Yield ``(path of a setting, what is wrong)`` pairs. Read headers; load nothing large.
        """
        return ()

    @classmethod
    def metric_fault(cls, check: Preflight, name: str) -> str | None:
        """Why a run reports no metric of this name; None: it does, or that is not known yet."""
        return None

    @classmethod
    def known_agents(cls, check: Preflight) -> Collection[str] | None:
        """Names of the agents of a run, for settings that name one; None: there are none yet."""
        return None

    def bind(self, context: TrainerContext) -> None:
        """Set the context of a run. Called once, before :meth:`train`."""
        self._context = context

    def _bound(self, what: str) -> TrainerContext:
        if self._context is None:
            raise UsageError(
                f"{type(self).__name__}.{what} needs a run: start the trainer with plugrl.train() "
                "or `plugrl train`, or call bind(context) first"
            )
        return self._context

    @property
    def complete(self) -> bool:
        """Whether the step that is ending is the last one.

        A run that is asked to stop during that step is done, and need not be resumed.
        """
        return False

    @property
    def run(self) -> Run:
        """The run that this trainer belongs to."""
        return self._bound("run").run

    @property
    def hyper_params(self) -> HyperParameters:
        """Everything that defines the experiment, as a read-only view."""
        return self._bound("hyper_params").hyper_params

    @property
    def settings(self) -> ExperimentSettings:
        """Device, threads and paths: what does not change the algorithm."""
        return self._bound("settings").settings

    @property
    def scenario_instance(self) -> ScenarioInstance | None:
        """The task's components, when the configuration has a scenario."""
        return self._bound("scenario_instance").scenario_instance

    @contextmanager
    def _timed(self, phase: str, metrics: dict[str, float]) -> Iterator[None]:
        """Run the body as a phase of the run, if there is one; add its time to ``time/PHASE``."""
        started = time.perf_counter()
        with nullcontext() if self._context is None else self.run.phase(phase):
            yield
        name = f"time/{phase}"
        metrics[name] = metrics.get(name, 0.0) + time.perf_counter() - started

    @abstractmethod
    def train(self) -> TrainingResult | None:
        """Run the whole training. After a resume, continue from the loaded state."""

    def export_weights(self) -> Any:
        """What the next phase of a sequence starts from, such as trained weights."""
        return None

    def import_weights(self, handed: Any) -> None:
        """Start from what the phase before gave with :meth:`export_weights`.

        Raises:
            UsageError: this trainer cannot start from it.
        """
        raise UsageError(
            f"{type(self).__name__} cannot start from a {type(handed).__name__} of the phase "
            "before; it needs an import_weights method"
        )

    def replay(self, evidence: Mapping[str, Any]) -> dict[str, float]:
        """Repeat a step that was dumped and return its metrics, ``loss`` among them.

        Args:
            evidence: what the trainer gave to ``run.guards`` when the step was dumped.

        Raises:
            UsageError: this trainer cannot repeat a step.
        """
        raise UsageError(f"{type(self).__name__} cannot repeat a step; it needs a replay method")

    def evaluate(self) -> dict[str, float]:
        """Held-out metrics of the loaded state, for ``plugrl eval``; nothing is trained.

        Attempts are given to ``run.sample("evaluation", record)``. Of the run there is no more
        than ``sample``, ``phase``, ``label`` and ``keep``.

        Raises:
            UsageError: this trainer cannot evaluate a saved state.
        """
        raise UsageError(
            f"{type(self).__name__} cannot evaluate a saved state; it needs an evaluate method"
        )

    def report(self, name: str, folder: Path | None, origin: str) -> dict[str, float]:
        """Hold one of its own evaluations with the loaded state, and give the main numbers.

        Args:
            name: which of :attr:`reports`.
            folder: where its files are written, and what an earlier call has left there is gone
                on from; None: nothing is written.
            origin: the checkpoint whose state was loaded.

        Raises:
            UsageError: there is no such one, or the folder cannot be used.
        """
        known = ", ".join(self.reports) or "none"
        raise UsageError(f"{type(self).__name__} has no evaluation {name!r}; it has: {known}")

    def dry_run(self) -> dict[str, float] | None:
        """Try the largest step that the configuration allows, for ``plugrl train --dry-run``.

        The run is absent. Give ``peak_bytes`` and ``total_bytes`` of the device's memory and
        whatever else is to be printed, each with a prefix such as ``phase/`` when there are
        several; None: there is nothing to try.

        Raises:
            RunError: it does not fit into memory.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Everything :meth:`train` needs to continue: nested dicts of tensors and plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises:
            UsageError: there is a state and the subclass does not take it.
        """
        refuse_state(self, state, otherwise=", or declare Capabilities(resume=False)")
