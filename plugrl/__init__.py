"""plugrl: a trainer framework for reinforcement learning made of plugins.

The names below are the public API. They are imported when first used, so that ``import plugrl``
itself loads neither torch nor any other large package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plugrl.__about__ import __version__

if TYPE_CHECKING:
    from plugrl.core.errors import ConfigError as ConfigError
    from plugrl.core.errors import PluginError as PluginError
    from plugrl.core.errors import PlugrlError as PlugrlError
    from plugrl.core.errors import StopRun as StopRun
    from plugrl.core.experiment import load_run as load_run
    from plugrl.core.experiment import train as train
    from plugrl.core.hookspecs import HOOK_API as HOOK_API
    from plugrl.core.hookspecs import hookimpl as hookimpl
    from plugrl.core.registry import Registry as Registry
    from plugrl.core.registry import register_advantage as register_advantage
    from plugrl.core.registry import register_evaluator as register_evaluator
    from plugrl.core.registry import register_inference_service as register_inference_service
    from plugrl.core.registry import register_loss as register_loss
    from plugrl.core.registry import register_rollout_worker as register_rollout_worker
    from plugrl.core.registry import register_scenario as register_scenario
    from plugrl.core.registry import register_tracker as register_tracker
    from plugrl.core.registry import register_train_service as register_train_service
    from plugrl.core.registry import register_trainer as register_trainer
    from plugrl.core.run.trackers import Tracker as Tracker
    from plugrl.core.scenario import Scenario as Scenario
    from plugrl.core.scenario import ScenarioInstance as ScenarioInstance
    from plugrl.core.text.batch import Batch as Batch
    from plugrl.core.text.evaluation import BaseEvaluationTarget as BaseEvaluationTarget
    from plugrl.core.text.evaluation import EvaluationRunResult as EvaluationRunResult
    from plugrl.core.text.evaluation import Evaluator as Evaluator
    from plugrl.core.text.self_hosted import SelfHostedTrainer as SelfHostedTrainer
    from plugrl.core.text.services import InferenceService as InferenceService
    from plugrl.core.text.services import TrainService as TrainService
    from plugrl.core.text.trajectory import Trajectory as Trajectory
    from plugrl.core.text.trajectory_trainer import TrajectoryTrainer as TrajectoryTrainer
    from plugrl.core.text.worker import RolloutWorker as RolloutWorker
    from plugrl.core.trainer import Capabilities as Capabilities
    from plugrl.core.trainer import Trainer as Trainer
    from plugrl.core.trainer import TrainerContext as TrainerContext
    from plugrl.core.trainer import TrainingResult as TrainingResult

_MODULES = {
    "plugrl.core.errors": ("ConfigError", "PluginError", "PlugrlError", "StopRun"),
    "plugrl.core.experiment": ("load_run", "train"),
    "plugrl.core.hookspecs": ("HOOK_API", "hookimpl"),
    "plugrl.core.registry": (
        "Registry",
        "register_advantage",
        "register_evaluator",
        "register_inference_service",
        "register_loss",
        "register_rollout_worker",
        "register_scenario",
        "register_tracker",
        "register_train_service",
        "register_trainer",
    ),
    "plugrl.core.run.trackers": ("Tracker",),
    "plugrl.core.scenario": ("Scenario", "ScenarioInstance"),
    "plugrl.core.text.batch": ("Batch",),
    "plugrl.core.text.evaluation": ("BaseEvaluationTarget", "EvaluationRunResult", "Evaluator"),
    "plugrl.core.text.services": ("InferenceService", "TrainService"),
    "plugrl.core.text.self_hosted": ("SelfHostedTrainer",),
    "plugrl.core.text.trajectory": ("Trajectory",),
    "plugrl.core.text.trajectory_trainer": ("TrajectoryTrainer",),
    "plugrl.core.text.worker": ("RolloutWorker",),
    "plugrl.core.trainer": ("Capabilities", "Trainer", "TrainerContext", "TrainingResult"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name from the module that holds it."""
    if name not in _HOME:
        raise AttributeError(f"module 'plugrl' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
