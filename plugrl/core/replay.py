"""Repeats training steps that a run has dumped, without touching the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import apply_process_settings, build_trainer, prepare, without_functions
from plugrl.core.null_run import NullRun
from plugrl.core.run.checkpoints import dumps
from plugrl.core.run.checkpoints.compatibility import check_dump
from plugrl.core.run.initialization import read_config


@dataclass(frozen=True)
class ReplayedStep:
    """One repeated step: the recorded loss and the metrics of the repetition."""

    dump: Path
    what: str
    recorded_loss: float
    metrics: Mapping[str, float]

    @property
    def equal(self) -> bool:
        """Whether the loss is the recorded one, bit for bit; NaN equals NaN."""
        loss = self.metrics["loss"]
        return loss == self.recorded_loss or (math.isnan(loss) and math.isnan(self.recorded_loss))


def replay(folder: Path, step: int) -> list[ReplayedStep]:
    """Repeat every dump of ``step`` in the run folder ``folder``.

    Raises:
        ConfigError: the folder holds no run, or no dump of that step that can be repeated with
            its configuration.
        UsageError: the trainer cannot repeat a step.
    """
    with without_functions(folder, "replay"):
        tree = read_config(folder)
        experiment = prepare(tree, preflight=False, setup=True)
        found = [(path, state) for path, state in dumps.read(folder, step) if _is_repeatable(state)]
        if not found:
            raise ConfigError(
                f"the dumps of step {step} in {folder} hold no training batch, so nothing can be "
                "repeated; look at their tensors.safetensors and state.json"
            )
        check_dump(found[0][0], read_config(folder, private=False))
        apply_process_settings(experiment)
        replayed = []
        for path, state in found:
            evidence = state["batch"]
            validated = experiment.validated
            if evidence["phase"]:
                validated = validated.phases[evidence["phase"] - 1][1]
            run: Any = NullRun("a repeated step")
            trainer = build_trainer(validated, experiment.registry, run)
            metrics = trainer.replay(evidence)
            replayed.append(ReplayedStep(path, state["what"], float(evidence["loss"]), metrics))
        return replayed


def _is_repeatable(state: Mapping[str, Any]) -> bool:
    batch = state["batch"]
    return isinstance(batch, Mapping) and {"phase", "loss", "service"} <= batch.keys()
