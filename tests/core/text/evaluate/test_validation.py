"""Validation of written attempts: whose metrics are whose, and what must be there."""

import pytest

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.evaluate.pass_at_k import Passing
from plugrl.core.text.evaluate.validation import REFERENCE, Validation
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.trajectory import Trajectory

PROBLEMS = {
    "validation": [
        {"prompt": "a", "answer": "1", "data_source": "x"},
        {"prompt": "b", "answer": "2", "data_source": "y"},
        {"prompt": "c", "answer": "3"},
    ]
}


class Written:
    """Rollouts that give what ``judge`` makes of a problem and the number of its attempt."""

    def __init__(self, judge):
        self.judge = judge
        self.asked = []

    def collect(self, prompts, step, sampling, *, is_val=False):
        self.asked.append((step, sampling, is_val))
        return [
            Trajectory(
                [1, 2], [0, 1], group_id=p.group_id, run_id=p.run_id,
                **self.judge(p.data["prompt"], p.run_id),
            )
            for p in prompts
        ]  # fmt: skip


def validation(judge, datasets=PROBLEMS, **more):
    rollouts = Written(judge)
    sampling = SamplingParams(temperature=0.25, top_p=0.5, max_new_tokens=7)
    options = {"temperature": 1.5, "keys": ("prompt", "answer"), **more}
    return Validation(rollouts, datasets, sampling, **options), rollouts


def test_metrics_are_of_splits_and_of_their_sources():
    rewards = {"a": 1.0, "b": 0.25, "c": 0.25}
    validate, rollouts = validation(lambda prompt, run: {"reward": rewards[prompt]})
    metrics, trajectories = validate(3)
    assert metrics["validation/reward"] == pytest.approx(0.5)
    assert metrics["validation/x/reward"] == 1.0
    assert metrics["validation/y/reward"] == 0.25
    assert {t.extra_fields[REFERENCE] for t in trajectories} == {"1", "2", "3"}
    ((step, sampling, is_val),) = rollouts.asked
    # All that is sampled otherwise than in training.
    assert (step, is_val) == (3, True)
    assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens) == (1.5, 1.0, 7)


def test_several_splits_are_told_apart():
    splits = {"easy": PROBLEMS["validation"][:1], "hard": PROBLEMS["validation"][1:2]}
    validate, _ = validation(lambda prompt, run: {"reward": float(prompt == "a")}, splits)
    metrics, trajectories = validate(0)
    assert (metrics["easy/reward"], metrics["hard/reward"]) == (1.0, 0.0)
    assert len(trajectories) == 2


def test_samples_of_a_problem_are_compared_with_each_other():
    # Of four attempts at a one passes, of those at b none, of those at c all.
    passes = {"a": [0], "b": [], "c": [0, 1, 2, 3]}
    validate, _ = validation(
        lambda prompt, run: {"reward": float(run in passes[prompt])}, samples=4
    )
    metrics, _ = validate(0)
    assert metrics["validation/pass@1"] == pytest.approx((1 / 4 + 0 + 1) / 3)
    # Of six pairs three hold the one that passes.
    assert metrics["validation/pass@2"] == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert metrics["validation/x/pass@4"] == 1.0


def test_the_metric_that_passes_must_be_there_once():
    """An evaluator may leave it out later, such as where nothing was found to be measured."""
    given = {"there": False}

    def judge(prompt, run):
        return {"reward": 1.0, "metrics": {"solved": 1.0} if given["there"] else {"other": 0.0}}

    options = {"samples": 2, "passing": Passing("solved", 1.0)}
    validate, _ = validation(judge, **options)
    with pytest.raises(ConfigError, match="no attempt has a metric 'solved'; they have: other"):
        validate(0)
    given["there"] = True
    assert validate(0)[0]["validation/pass@1"] == 1.0
    given["there"] = False
    assert validate(1)[0]["validation/pass@1"] == 0.0
    # Of one attempt nobody asks whether it has passed.
    validation(judge, **{**options, "samples": 1})[0](0)


def test_a_split_without_a_valid_attempt_ends_the_run_and_one_valid_is_enough():
    def judge(prompt, run):
        return {"valid": prompt == "b" and lenient, "failure": "the judge is down"}

    lenient = True
    assert len(validation(judge)[0](0)[1]) == 3
    lenient = False
    with pytest.raises(RunError, match="none of the 3 attempts of validation.*the judge is down"):
        validation(judge)[0](0)
