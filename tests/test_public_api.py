"""The public names are frozen: adding one is a decision, removing one breaks users."""

from __future__ import annotations

import subprocess
import sys

import pytest

import plugrl

PUBLIC = """
BaseEvaluationTarget Batch Capabilities ConfigError EvaluationRunResult Evaluator HOOK_API
InferenceService PluginError PlugrlError Registry RolloutWorker Scenario ScenarioInstance
SelfHostedTrainer StopRun Tracker TrainService Trainer TrainerContext TrainingResult Trajectory
TrajectoryTrainer __version__ hookimpl load_run register_advantage register_evaluator
register_inference_service register_loss register_rollout_worker register_scenario
register_tracker register_train_service register_trainer train
"""


def test_names_are_frozen():
    assert sorted(plugrl.__all__) == PUBLIC.split()
    assert set(plugrl.__all__) <= set(dir(plugrl))


def test_every_name_can_be_imported():
    for name in plugrl.__all__:
        assert getattr(plugrl, name) is not None


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match=r"^module 'plugrl' has no attribute 'trian'$"):
        getattr(plugrl, "trian")  # noqa: B009 - the name is the point


def test_importing_plugrl_and_its_light_names_loads_no_large_package():
    script = (
        "import sys, plugrl; plugrl.Registry, plugrl.register_trainer, plugrl.ConfigError; "
        "large = {'torch', 'omegaconf', 'transformers', 'pluggy', 'numpy', 'rich', 'typer'}; "
        "print(sorted(large & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
