"""Several trainers one after the other, such as supervised training before reinforcement."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import HELP, PHASES
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.trainer import Trainer, TrainingResult


@dataclass
class SequenceConfig:
    """The phases: each is a name and the sections that differ from the run's."""

    phases: list[Any] = field(
        default_factory=list, metadata={PHASES: True, HELP: "name and sections of each phase"}
    )

    def __post_init__(self) -> None:
        if not self.phases:
            raise ConfigError("phases must name at least one phase")


class _PhaseHooks:
    """The hooks of a phase, called with the run and the steps of the whole sequence."""

    def __init__(self, run: Any, offset: int) -> None:
        self._run = run
        self._offset = offset

    def listens(self, name: str) -> bool:
        """Whether a plugin has this hook."""
        return bool(self._run.hooks.listens(name))

    def call(self, name: str, **arguments: Any) -> None:
        """Call one hook of all plugins; the errors are those of the run's own caller."""
        if "run" in arguments:
            arguments["run"] = self._run
        if "step" in arguments:
            arguments["step"] += self._offset
        self._run.hooks.call(name, **arguments)


class _PhaseGuards:
    """The guards as a phase calls them: their messages and dumps name the run's steps."""

    def __init__(self, guards: Any, offset: int) -> None:
        self._guards = guards
        self._offset = offset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guards, name)

    def check_finite(self, what: str, value: Any, *, step: int, batch: Any = None) -> bool:
        """Check numbers of a step of the phase."""
        moved = self._offset + step
        return bool(self._guards.check_finite(what, value, step=moved, batch=batch))

    def rewards(self, step: int, *arguments: Any, **options: Any) -> None:
        """Check the rewards of a step of the phase."""
        self._guards.rewards(self._offset + step, *arguments, **options)

    def failures(self, step: int, *arguments: Any) -> None:
        """Report the failed attempts of a step of the phase."""
        self._guards.failures(self._offset + step, *arguments)

    def keep(self, step: int, what: str, contents: Any) -> None:
        """Dump a step of the phase that `runtime_monitor.dump_steps` asks for."""
        self._guards.keep(self._offset + step, what, contents)


class _PhaseRun:
    """The run as a phase sees it: the phase counts its steps from 0, the run goes on counting."""

    def __init__(self, run: Any, name: str, number: int, offset: int) -> None:
        self._run = run
        self._name = name
        self.guards = _PhaseGuards(run.guards, offset)
        self.phase_number = number
        self._offset = offset
        self.hooks = _PhaseHooks(run, offset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def end_step(self, step: int, metrics: Mapping[str, Any], *, save: bool = False) -> None:
        """End a step of the phase."""
        numbered = {**metrics, "phase": self.phase_number}
        self._run.end_step(self._offset + step, numbered, save=save)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write metrics of a step of the phase."""
        self._run.log(self._offset + step, {**metrics, "phase": self.phase_number})

    def label(self, step: int) -> str:
        """How messages name a step of the phase: as it counts them, and as the run does."""
        of_run = f" ({self._run.label(self._offset + step)} of the run)" if self._offset else ""
        return f"{self._name}: step {step}{of_run}"

    def progress(self, description: str, total: int | None = None) -> Any:
        """Start a bar that is named after the phase and counts its steps, as it configures them."""
        # What all trainers call the bar of their steps tells nothing beside the name of a phase.
        name = self._name if description == "Training" else f"{self._name}: {description}"
        return self._run.progress(name, total)

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Append a record; the step that it names is one of the phase."""
        moved = {"step": self._offset + record["step"]} if "step" in record else {}
        self._run.sample(name, {**record, **moved})


class SequenceTrainer(Trainer):
    """Trains phase after phase; each starts from the weights of the one before."""

    Config: ClassVar[type] = SequenceConfig
    #: Sections with which the conformance kit trains it.
    conformance: ClassVar[Mapping[str, Any]] = {
        "trainer": {
            "total_train_steps": None,
            "phases": [
                {
                    "name": "supervised",
                    "rollout_worker": {"type": "demonstration"},
                    "trainer": {"type": "self_hosted_cross_entropy", "total_train_steps": 2},
                },
                {
                    "name": "reinforced",
                    "trainer": {"type": "self_hosted_grpo", "total_train_steps": 2},
                },
            ],
        }
    }

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._number = 0
        self._offset = 0
        self._child: Trainer | None = None
        self._child_state: Mapping[str, Any] | None = None

    def train(self) -> TrainingResult:
        """Run the phases; after a resume, from the one that was interrupted."""
        weights: Any = None
        result = TrainingResult()
        phases = self._bound("train").phases
        while self._number < len(phases):
            phase = phases[self._number]
            run: Any = _PhaseRun(self.run, phase.name, self._number + 1, self._offset)
            child = self._child = phase.build(run)
            if self._child_state is not None:
                child.load_state_dict(self._child_state)
                self._child_state = None
            elif weights is not None:
                child.import_weights(weights)
            try:
                result = child.train() or TrainingResult()
            except RunError as error:
                error.args = (f"phase {phase.name}: {error}",)
                raise
            weights = child.export_weights()
            if self._number + 1 == len(phases):
                break
            self._number += 1
            self._offset = self.run.step + 1
            # The next phase begins without the models of this one.
            self._child = None
            del child
            self.run.garbage.thaw()
            gc.collect()
        return TrainingResult(steps=self.run.step, metrics=result.metrics)

    @property
    def complete(self) -> bool:
        """Whether the last phase has nothing left to do."""
        last = self._number + 1 == len(self._bound("complete").phases)
        return last and self._child is not None and self._child.complete

    def dry_run(self) -> dict[str, float] | None:
        """Try the phases one after the other; each begins with its models alone in memory.

        Raises:
            RunError: a phase does not fit into memory.
        """
        tried: dict[str, float] = {}
        for phase in self._bound("dry_run").phases:
            try:
                report = phase.build(self.run).dry_run() or {}
            except RunError as error:
                error.args = (f"phase {phase.name}: {error}",)
                raise
            tried |= {f"{phase.name}/{key}": value for key, value in report.items()}
            # Models refer to themselves in circles.
            gc.collect()
        return tried or None

    def evaluate(self) -> dict[str, float]:
        """Evaluate the loaded state as the phase that it belongs to does."""
        child = self._bound("evaluate").phases[self._number].build(self.run)
        child.load_state_dict(self._child_state or {})
        return child.evaluate()

    def state_dict(self) -> dict[str, Any]:
        """Which phase, where it began, and its trainer's state."""
        child = self._child.state_dict() if self._child is not None else {}
        return {"phase": self._number, "offset": self._offset, "child": child}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._number = state["phase"]
        self._offset = state["offset"]
        self._child_state = state["child"]
