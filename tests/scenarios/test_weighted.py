"""The evaluator ``weighted``: sums, names, failures of members, and runs in processes."""

import asyncio

import pytest

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare, start
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    EvaluationRunResult,
    evaluate,
)
from plugrl.core.text.rollout.judge import make_evaluator
from plugrl.scenarios.evaluators.weighted import WeightedEvaluator
from plugrl.testing import tiny


def made(criteria, **options):
    section = configure(WeightedEvaluator, {"type": "weighted", "criteria": criteria, **options})
    keys = {"reference_key": "truth", "prompt_key": "prompt"}
    return make_evaluator(Factory(default_registry()), section, "e", **keys)


def judged(answer, criteria, **options):
    return evaluate(made(criteria, **options), {"truth": "2"}, BaseEvaluationTarget(answer))


CRITERIA = [
    {"evaluator": "exact_match", "weight": 3.0, "name": "right"},
    {"evaluator": {"type": "regex", "pattern": r"\d", "format_reward": 0.5}, "weight": 2.0},
]


def test_rewards_are_weighted_and_metrics_keep_their_criterion():
    result = judged("2", CRITERIA)
    assert result.reward == 5.0
    assert result.ground_truth == "2"
    result = judged("3", CRITERIA)
    assert result.reward == 1.0  # 3 * 0 + 2 * 0.5
    assert result.metrics == {
        "right": 0.0,
        "right/exact_match": 0.0,
        "regex": 0.5,
        "regex/correct": 0.0,
        "regex/extracted": 1.0,
    }
    assert judged("3", CRITERIA, normalize=True).reward == pytest.approx(0.2)


def fails(data, target):
    raise LookupError("gone")


def leaves(data, target):
    raise SystemExit(2)


async def waits(data, target):
    await asyncio.sleep(0)
    return EvaluationRunResult(0.25)


@pytest.mark.parametrize(
    ("member", "says"),
    [(fails, "fails raised LookupError: gone"), (leaves, "leaves raised SystemExit: 2")],
)
def test_a_member_that_fails_makes_the_whole_invalid(registry, member, says):
    registry.register("evaluator", "bad", member)
    with pytest.raises(EvaluationFailedError, match=f"of criterion 'bad': {says}"):
        judged("2", [*CRITERIA, {"evaluator": "bad"}])


def test_async_and_nested_members(registry):
    registry.register("evaluator", "waits", waits)
    inner = {"type": "weighted", "criteria": [{"evaluator": "waits", "weight": 2.0}]}
    result = judged("2", [{"evaluator": inner, "name": "deep"}, {"evaluator": "exact_match"}])
    assert result.reward == 1.5
    assert result.metrics["deep/waits"] == 0.25


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"criteria": []}, "criteria is empty|criteria: is empty"),
        ({"criteria": [{"evaluator": "exact_match"}] * 2}, "two criteria are named 'exact_match'"),
        ({"criteria": [{"weight": 1.0}]}, "evaluator.*is missing"),
        (
            {"criteria": [{"evaluator": "exat_match"}]},
            "unknown evaluator 'exat_match'; did you mean exact_match",
        ),
        ({"criteria": [{"evaluator": "regex", "name": "a/b"}]}, "without slashes"),
        (
            {"criteria": [{"evaluator": "regex", "weight": 0.0}], "normalize": True},
            "nothing above 0",
        ),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, says):
    with pytest.raises(ConfigError, match=says) as caught:
        configure(WeightedEvaluator, options)
    assert "NoneType" not in str(caught.value)


MEMBER = """
from plugrl import EvaluationRunResult

def halves(data, target):
    return EvaluationRunResult(0.5 if target.final_answer.startswith("a") else 0.0)
"""


def test_members_from_files_judge_in_processes_as_in_the_driver(tmp_path):
    (tmp_path / "member.py").write_text(MEMBER, "utf-8")
    member = {
        "custom_evaluator_module_path": str(tmp_path / "member.py"),
        "custom_evaluator_class_name": "halves",
    }
    criteria = [{"evaluator": member, "weight": 2.0}, {"evaluator": "exact_match", "weight": 0.5}]
    found = []
    for processes in (0, 1):
        worker = {
            "processes": processes,
            "evaluator": {"type": "weighted", "criteria": criteria},
        }
        tree = tiny.config("self_hosted_grpo", tmp_path, {"rollout_worker": worker})
        run = start(prepare(tree))
        assert run.metrics[0]["validation/halves"] >= 0
        kept = ("rollout/halves", "rollout/exact_match", "rollout/reward", "validation/reward")
        found.append([{k: m.get(k) for k in kept} for m in run.metrics])
    assert found[0] == found[1]
    assert found[0][1]["rollout/reward"] == pytest.approx(
        2 * found[0][1]["rollout/halves"] + 0.5 * found[0][1]["rollout/exact_match"]
    )


def test_a_column_that_a_member_reads_is_looked_up_early(tmp_path):
    member = {"type": "exact_match", "answer_key": "gone"}
    worker = {"evaluator": {"type": "weighted", "criteria": [{"evaluator": member}]}}
    tree = tiny.config("self_hosted_grpo", tmp_path, {"rollout_worker": worker})
    with pytest.raises(ConfigError, match=r"criteria\[0\]\.evaluator\.answer_key.*'gone'"):
        prepare(tree)
