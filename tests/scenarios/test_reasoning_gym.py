"""The scenario and the evaluator ``reasoning_gym``: seeds, splits, tasks, and their own scores."""

import json

import pytest

from plugrl.core.component import build
from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare, start
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    evaluate,
)
from plugrl.scenarios.reasoning_gym.evaluator import ReasoningGymEvaluator
from plugrl.scenarios.reasoning_gym.scenario import ReasoningGymScenario
from plugrl.testing import tiny

SUM = {"name": "chain_sum", "config": {"min_terms": 2, "max_terms": 2, "max_digits": 2}}
SORT = {"name": "number_sorting", "weight": 3.0, "label": "sorting"}


def built(seed=0, **options):
    options = {"train": 40, "validation": 20, "tasks": [SUM, SORT], **options}
    return build(ReasoningGymScenario, options).build(seed).datasets


def test_tasks_have_their_shares_and_held_out_problems_do_not_depend_on_the_seed():
    first, second = built(0), built(1)
    for split, count in (("train", 40), ("validation", 20)):
        sources = [item["data_source"] for item in first[split]]
        assert sources.count("sorting") == pytest.approx(count * 0.75, abs=2)
        assert set(sources) == {"chain_sum", "sorting"}
    assert first["validation"] == second["validation"]
    assert first["train"] != second["train"]
    assert built(1) == second
    assert json.dumps(second["train"])


def test_no_held_out_problem_is_trained():
    # Sums of two numbers of one digit: 100 to 200 problems, so that most come again.
    few = {"name": "chain_sum", "config": {"min_terms": 2, "max_terms": 2, "max_digits": 1}}
    splits = built(tasks=[few], train=300, validation=60, demonstrations=50)
    held_out = {item["prompt"] for item in splits["validation"]}
    for split in ("train", "demonstrations"):
        assert splits[split]
        assert not held_out & {item["prompt"] for item in splits[split]}


def test_the_answer_of_a_problem_has_the_full_score_of_its_task():
    evaluator = build(ReasoningGymEvaluator, {})
    for item in built(train=0, validation=8)["validation"]:
        result = evaluate(evaluator, item, BaseEvaluationTarget(item["answer"]))
        assert result.reward == 1.0
        assert result.metrics == {"score": 1.0, "solved": 1.0, "extracted": 1.0}
        assert evaluate(evaluator, item, BaseEvaluationTarget("no")).reward < 1.0


def test_the_rules_of_the_task_decide_and_not_the_letters():
    # Any order of the same digits is right for a Countdown task as long as the value is.
    task = {"name": "countdown", "config": {"min_numbers": 3, "max_numbers": 3}}
    item = built(tasks=[task], train=0, validation=1)["validation"][0]
    evaluator = build(ReasoningGymEvaluator, {"tag": "answer"})
    other = f"It is <answer>0</answer>, no: <answer>({item['answer']})</answer>"
    assert evaluate(evaluator, item, BaseEvaluationTarget(other)).reward == 1.0
    without = evaluate(evaluator, item, BaseEvaluationTarget(item["answer"]))
    assert (without.reward, without.metrics["extracted"]) == (0.0, 0.0)


def test_a_problem_of_something_else_is_a_failure():
    with pytest.raises(EvaluationFailedError, match="KeyError: 'reasoning_gym'; data has: prompt"):
        evaluate(build(ReasoningGymEvaluator, {}), {"prompt": "x"}, BaseEvaluationTarget("x"))


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([{"name": "chain_sums"}], r"no task 'chain_sums'; did you mean chain_sum"),
        ([{"name": "chain_sum", "config": {"terms": 2}}], "task 'chain_sum' with .*'terms'"),
        ([{"name": "chain_sum", "config": {"min_terms": 0}}], "min_terms must be positive"),
    ],
)
def test_tasks_and_options_that_are_not_there_are_named(tasks, says):
    with pytest.raises(ConfigError, match=says):
        built(tasks=tasks)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tasks": []}, "tasks: is empty"),
        ({"tasks": [{"weight": 1.0}]}, "name: is missing"),
        ({"tasks": [SUM], "template": "x"}, r"template:? has no \{question\}"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        configure(ReasoningGymScenario, options)


def test_a_run_reports_each_task(tmp_path):
    tree = tiny.config("self_hosted_grpo", tmp_path)
    tree["scenario"] = {
        "type": "reasoning_gym",
        "tasks": [SUM, {**SUM, "label": "more"}],
        "train": 8,
        "validation": 6,
        "template": "a",
    }
    tree["models"]["policy"]["source"]["tokenizer"]["characters"] = "ab0123456789"
    tree["data"].pop("data_files")
    tree["validate"] = {"every": 1}
    tree["rollout_worker"]["evaluator"] = "reasoning_gym"
    tree["trainer"]["total_train_steps"] = 1
    with pytest.raises(ConfigError, match=r"template:? has no"):
        prepare(tree)
    tree["scenario"]["template"] = "{question}"
    tree["models"]["policy"]["source"]["tokenizer"]["characters"] = "".join(
        map(chr, range(32, 127))
    )
    tree["models"]["policy"]["source"]["config"]["max_position_embeddings"] = 128
    run = start(prepare(tree))
    names = {"validation/chain_sum/score", "validation/more/score", "rollout/score"}
    assert names <= set(run.last_metrics)


def test_how_many_problems_are_made_is_said_before_they_are(caplog):
    with caplog.at_level("INFO", "plugrl"):
        built(train=1000, validation=128)
    said = caplog.messages[0]
    assert said.startswith("scenario reasoning_gym: making 1,128 problems of chain_sum, number_sor")
