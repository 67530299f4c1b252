"""Components whose methods or functions cannot be called are refused when they are loaded."""

import pytest

from plugrl import Evaluator, RolloutWorker, SelfHostedTrainer, Tracker
from plugrl.core.errors import PluginError
from plugrl.core.kinds import KINDS
from plugrl.core.registry import default_registry

EVALUATE = "evaluate(self, data, evaluation_target)"
ROLLOUT = "rollout(self, task)"
LOSS = "(logp, batch, config)"
ADVANTAGE = "(rewards, group, run, valid, batch, config)"


def cls(base, **methods):
    return type("Mine", (base,), methods)


WRONG = [
    ("evaluator", cls(Evaluator, evaluate=lambda self: None), EVALUATE),
    ("evaluator", cls(Evaluator, evaluate=lambda self, data: None), EVALUATE),
    ("evaluator", cls(Evaluator, evaluate=lambda self, data, target, more: None), EVALUATE),
    ("evaluator", cls(Evaluator, evaluate=staticmethod(lambda data: None)), EVALUATE),
    ("evaluator", cls(Evaluator, evaluate=1.0), EVALUATE),
    ("rollout_worker", cls(RolloutWorker, rollout=lambda self: None), ROLLOUT),
    (
        "rollout_worker",
        cls(RolloutWorker, rollout=lambda self, task: None, judge=lambda self, task: None),
        "judge(self, task, trajectory, final_answer)",
    ),
    (
        "trainer",
        cls(SelfHostedTrainer, _prepare_batch=lambda self, b: (b, {}), train_step=lambda self: {}),
        "train_step(self, trajectories)",
    ),
    ("tracker", cls(Tracker, log=lambda self, metrics: None), "log(self, step, metrics)"),
    ("loss", lambda logp, batch: None, LOSS),
    ("advantage", lambda rewards, group: None, ADVANTAGE),
]
RIGHT = [
    ("evaluator", cls(Evaluator, evaluate=lambda self, row, answer: None)),
    ("evaluator", cls(Evaluator, evaluate=lambda self, *arguments: None)),
    ("evaluator", cls(Evaluator, evaluate=lambda self, data, target, more=1: None)),
    ("evaluator", cls(Evaluator, evaluate=staticmethod(lambda data, target: None))),
    ("loss", lambda logp, batch, config, scale=1.0: None),
    ("advantage", lambda *arguments: None),
]


@pytest.fixture
def registry():
    registry = default_registry()
    before = registry.snapshot()
    yield registry
    registry.restore(before)


@pytest.mark.parametrize(("kind", "value", "form"), WRONG)
def test_a_wrong_signature_is_refused_with_the_right_form(registry, kind, value, form):
    record = registry.register(kind, "mine", value)
    with pytest.raises(PluginError) as caught:
        registry.load(record)
    assert form in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "value"), RIGHT)
def test_whatever_can_be_called_is_accepted(registry, kind, value):
    assert registry.load(registry.register(kind, "mine", value)) is value


def test_every_component_of_plugrl_is_accepted(registry):
    records = [r for r in registry.records() if r.distribution == "plugrl"]
    assert {r.kind for r in records} == set(KINDS)
    for record in records:
        registry.load(record)
