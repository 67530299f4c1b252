"""Several trainers one after the other, such as supervised training before reinforcement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from plugrl.core.config.schema import HELP, PHASES
from plugrl.core.errors import ConfigError
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
    """The hooks as a phase calls them: plugins are told the run and its steps, as elsewhere."""

    def __init__(self, run: Any, offset: int) -> None:
        self._run = run
        self._offset = offset

    def call(self, name: str, **arguments: Any) -> None:
        """Call one hook of all plugins; the errors are those of the run's own caller."""
        if "run" in arguments:
            arguments["run"] = self._run
        if "step" in arguments:
            arguments["step"] += self._offset
        self._run.hooks.call(name, **arguments)


class _PhaseRun:
    """The run as a phase sees it: the phase counts its steps from 0, the run goes on counting."""

    def __init__(self, run: Any, number: int, offset: int) -> None:
        self._run = run
        self._number = number
        self._offset = offset
        self.hooks = _PhaseHooks(run, offset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def end_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """End a step of the phase."""
        self._run.end_step(self._offset + step, {**metrics, "phase": self._number})

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
        handed: Any = None
        result = TrainingResult()
        phases = self._bound("train").phases
        while self._number < len(phases):
            phase = phases[self._number]
            run: Any = _PhaseRun(self.run, self._number + 1, self._offset)
            child = self._child = phase.build(run)
            if self._child_state is not None:
                child.load_state_dict(self._child_state)
                self._child_state = None
            elif handed is not None:
                child.take_over(handed)
            result = child.train() or TrainingResult()
            handed = child.hand_over()
            if self._number + 1 == len(phases):
                break
            self._number += 1
            self._offset = self.run.step + 1
        return TrainingResult(steps=self.run.step, metrics=result.metrics)

    def state_dict(self) -> dict[str, Any]:
        """Which phase, where it began, and its trainer's state."""
        child = self._child.state_dict() if self._child is not None else {}
        return {"phase": self._number, "offset": self._offset, "child": child}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._number = state["phase"]
        self._offset = state["offset"]
        self._child_state = state["child"]
