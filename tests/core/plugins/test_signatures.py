"""Components whose methods or functions cannot be called are refused when they are loaded."""

import re
from pathlib import Path

import pytest

import plugrl
from plugrl import Evaluator, RolloutWorker, SelfHostedTrainer, Tracker
from plugrl.core.errors import PluginError
from plugrl.core.plugins.kinds import KINDS
from plugrl.core.plugins.user_code.signatures import FUNCTIONS

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


@pytest.mark.parametrize(
    ("kind", "value", "answer"),
    [
        ("loss", lambda logp: 0, ") -> (per_token[B, T], {name: (sum, count)})"),
        ("advantage", lambda rewards: 0, ") -> [R] or [R, T]"),
        ("evaluator", cls(Evaluator, evaluate=lambda s: 0), " | Awaitable[EvaluationRunResult]"),
        ("tracker", cls(Tracker, log=lambda s: 0), ") -> None"),
    ],
)
def test_the_right_form_says_what_is_returned(registry, kind, value, answer):
    with pytest.raises(PluginError) as caught:
        registry.load(registry.register(kind, "mine", value))
    assert str(caught.value).endswith(answer)


def test_every_kind_says_what_is_written_in_the_docs_and_at_its_decorator():
    page = (Path(__file__).parents[3] / "docs" / "component-kinds.md").read_text("utf-8")
    table = page.partition("| Kind | Signature and answer |")[2].partition("\n\n")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| `(.*)` \|$", table, re.MULTILINE))
    assert shown == {name: kind.form for name, kind in KINDS.items()}
    for name, kind in KINDS.items():
        assert kind.form in getattr(plugrl, f"register_{name}").__doc__
        assert " -> " in kind.form


def test_the_docs_list_every_kind_with_its_contract():
    page = (Path(__file__).parents[3] / "docs" / "component-kinds.md").read_text("utf-8")
    table = page.partition("| Kind | What it is | Contract |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?`) \| .* \| (\w+) \|$", table, re.MULTILINE)
    listed = {name: word for names, word in rows for name in re.findall(r"`(\w+)`", names)}
    assert listed == {n: "stable" if k.stable else "provisional" for n, k in KINDS.items()}


def test_the_forms_of_functions_have_the_parameters_that_are_checked():
    for kind, names in FUNCTIONS.items():
        written = re.sub(r"\[[A-Z, ]*\]", "", KINDS[kind].form.partition(" -> ")[0])
        assert written == f"f({', '.join(names)})"
