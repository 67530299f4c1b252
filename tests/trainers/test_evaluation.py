"""The trainer that trains nothing: one step, after which the run is over."""

import signal

import pytest

import plugrl
from plugrl.core.errors import UsageError
from plugrl.testing import tiny
from plugrl.trainers.evaluation import EvaluationTrainer


class Interrupting:
    """Asks for a stop when the only step has ended."""

    def __init__(self):
        self.steps = []

    @plugrl.hookimpl
    def plugrl_step_end(self, run, step, metrics):
        self.steps.append(step)
        signal.raise_signal(signal.SIGTERM)


def test_a_run_that_is_stopped_when_its_scores_are_there_is_done(config):
    tree = config("evaluation", **EvaluationTrainer.conformance)
    plugin = Interrupting()
    run = tiny.train(tree, plugin)
    assert plugin.steps == [0]
    assert run.status["state"] == "done"
    assert run.status["step"] == 0
    assert any(name.startswith("validation/") for name in run.last_metrics)


def test_before_its_step_it_is_not_complete_and_it_trains_nothing():
    trainer = EvaluationTrainer({"type": "evaluation"})
    assert not trainer.complete
    with pytest.raises(UsageError, match="trains nothing; choose another trainer.type"):
        trainer.train_step([])
