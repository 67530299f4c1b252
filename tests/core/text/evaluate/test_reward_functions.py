"""Reward functions in the form of TRL, wherever an evaluator may stand."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

from plugrl.core.component import build
from plugrl.core.errors import PluginError
from plugrl.core.plugins.registry import Registry
from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    EvaluationRunResult,
    NotApplicableError,
)
from plugrl.core.text.evaluate.function_evaluator import as_evaluator
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.core.text.rollout.worker import RolloutWorker, trajectory_of
from plugrl.scenarios.evaluators.weighted import WeightedEvaluator

sys.path.insert(0, str(Path(__file__).parent.parent))
from engines import Unloaded

#: What TRL 1.16.0 (GRPOTrainer._calculate_rewards, then its weighted nansum with reward_weights
#: [0.5, 2.0]) gave for these rows, answers and the functions below.
ROWS = [
    {"prompt": "a", "task": "maths", "solution": "1"},
    {"prompt": "b", "task": "verse", "solution": "2"},
    {"prompt": "a", "task": "maths", "solution": "3"},
]
ANSWERS, TOKENS = ["a1", "bbb", "x"], [[1, 2], [3], [4]]
LENGTHS, MATHS = [2.0, 3.0, 1.0], [1.0, None, 0.0]
SUMS = [3.0, 1.5, 0.5]


def length(completions, **kwargs):
    return [float(len(c)) for c in completions]


def maths(prompts, completions, task, **kwargs):
    rows = zip(prompts, completions, task, strict=True)
    return [1.0 if p + "1" == c else 0.0 if t == "maths" else None for p, c, t in rows]


def think_format_reward(completions, **kwargs):
    """``trl.rewards.think_format_reward`` of TRL 1.16.0, as it stands there."""
    pattern = r"^<think>(?!.*<think>)(.*?)</think>.*$"
    contents = [completion[0]["content"] for completion in completions]
    matches = [re.match(pattern, content, re.DOTALL | re.MULTILINE) for content in contents]
    return [1.0 if match else 0.0 for match in matches]


def items(rows=ROWS, answers=ANSWERS):
    return [
        (row, BaseEvaluationTarget(answer, token_ids=tokens))
        for row, answer, tokens in zip(rows, answers, TOKENS, strict=False)
    ]


def batch(function, given=None):
    results = as_evaluator(function)().evaluate_batch(items() if given is None else given)
    results = asyncio.run(results) if asyncio.iscoroutine(results) else results
    return [r.reward if isinstance(r, EvaluationRunResult) else r for r in results]


def test_rewards_are_those_of_trl():
    assert batch(length) == LENGTHS
    first, second, third = batch(maths)
    assert (first, third) == (1.0, 0.0)
    assert isinstance(second, NotApplicableError)


def test_one_by_one_they_are_the_same():
    evaluator = as_evaluator(maths)()
    assert [evaluator.evaluate(*items()[i]).reward for i in (0, 2)] == [1.0, 0.0]
    with pytest.raises(NotApplicableError, match="maths returned None"):
        evaluator.evaluate(*items()[1])


def test_the_function_gets_what_trl_gives():
    seen = {}

    def looks(**kwargs):
        seen.update(kwargs)
        return [0.0] * len(kwargs["completions"])

    batch(looks)
    assert callable(seen.pop("log_metric"))
    assert callable(seen.pop("log_extra"))
    assert seen == {
        "prompts": ["a", "b", "a"],
        "completions": ANSWERS,
        "completion_ids": TOKENS,
        "task": ["maths", "verse", "maths"],
        "solution": ["1", "2", "3"],
    }


def test_a_function_without_kwargs_gets_what_it_names():
    def few(completions, solution, absent="default"):
        assert absent == "default"
        return [float(s) for s in solution]

    assert batch(few) == [1.0, 2.0, 3.0]


def test_completions_are_messages_where_prompts_are():
    rows = [{"prompt": [{"role": "user", "content": "?"}]}] * 2
    # The example of TRL's own documentation.
    answers = [
        "<think>\nThis is my reasoning.\n</think>\nThis is my answer.",
        "<think>\nThis is my reasoning.\nThis is my answer.",
    ]
    assert batch(think_format_reward, items(rows, answers)) == [1.0, 0.0]


def test_async_functions_are_awaited():
    async def slow(completions, **kwargs):
        await asyncio.sleep(0)
        return [float(len(c)) for c in completions]

    assert batch(slow) == LENGTHS
    assert asyncio.run(as_evaluator(slow)().evaluate(*items()[1])).reward == 3.0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (1.0, "returned float; a list with one reward for each is expected"),
        ([1.0, 2.0], "returned 2 rewards for 3 completions; a list with one reward for each"),
        (None, "returned NoneType"),
        ("abc", "returned str"),
    ],
)
def test_another_answer_makes_all_attempts_invalid(answer, said):
    def wrong(completions):
        return answer

    results = batch(wrong)
    assert len(results) == 3
    assert all(isinstance(r, EvaluationFailedError) and said in str(r) for r in results)


def test_logged_metrics_are_means_and_extra_values_stand_with_their_answers():
    def logs(completions, log_metric, log_extra):
        log_metric("share", 0.0)
        log_metric("share", 1.0)
        log_extra("extracted", [c[-1] for c in completions])
        return [0.0] * len(completions)

    results = as_evaluator(logs)().evaluate_batch(items())
    assert [r.metrics for r in results] == [{"share": 0.5}] * 3
    assert [r.extra_info["extracted"] for r in results] == ["1", "b", "x"]


def test_columns_without_which_it_cannot_be_called_are_looked_up_early():
    cls = as_evaluator(maths)
    assert cls.columns({}, {}, "rollout_worker.evaluator", is_val=False) == {
        "rollout_worker.evaluator.task": "task"
    }


def combined(*functions, **config):
    # The members are made below; the section needs the name of some evaluator that there is.
    criteria = [{"evaluator": "exact_match", "name": f.__name__, "weight": w} for f, w in functions]
    evaluator = build(WeightedEvaluator, {"criteria": criteria, **config})
    members = iter(functions)
    evaluator.combine(lambda place: as_evaluator(next(members)[0])())
    return evaluator


def test_weights_add_up_what_applies_as_trl_does():
    evaluator = combined((length, 0.5), (maths, 2.0))
    results = [asyncio.run(evaluator.evaluate(*item)) for item in items()]
    assert [r.reward for r in results] == SUMS
    assert [r.metrics for r in results] == [
        {"length": 2.0, "maths": 1.0},
        {"length": 3.0},
        {"length": 1.0, "maths": 0.0},
    ]


def test_normalised_weights_are_those_of_what_applies():
    evaluator = combined((length, 1.0), (maths, 3.0), normalize=True)
    assert asyncio.run(evaluator.evaluate(*items()[1])).reward == 3.0


def test_an_answer_to_which_nothing_applies_has_no_reward():
    with pytest.raises(NotApplicableError, match="no criterion applies"):
        asyncio.run(combined((maths, 1.0)).evaluate(*items()[1]))


class Echo(Unloaded):
    def generate(self, requests):
        return [Completion([97, 98], [-1.0, -1.0], "stop", 3) for _ in requests]


class Worker(RolloutWorker):
    async def rollout(self, task):
        prompt = task.tokenizers["policy"].encode(task.prompt)
        completion = await task.ask("policy", prompt, task.sampling)
        trajectory = trajectory_of(task, "policy", prompt, completion)
        return await self.judged(task, trajectory, "ab")


def test_in_rollouts_it_is_called_once_for_all_and_none_is_left_out_of_training():
    calls = []

    def judge(prompts, completions, completion_ids):
        calls.append((list(prompts), completion_ids))
        return [None if p == "b" else 1.0 for p in prompts]

    worker = build(Worker, {})
    worker.evaluator = as_evaluator(judge)()
    rollouts = LockstepRollouts(worker, {"policy": Echo()}, seed=3)
    tasks = [Prompt({"prompt": text}, i, 0, f"g{i}", i) for i, text in enumerate("abc")]
    found = rollouts.collect(tasks, 0, SamplingParams(max_new_tokens=2))
    assert calls == [(["a", "b", "c"], [[97, 98]] * 3)]
    assert [t.valid for t in found] == [True, False, True]
    assert "does not apply" in found[1].failure


def test_functions_for_one_answer_work_as_before():
    def one(data, target):
        return len(target.final_answer)

    assert as_evaluator(one)().evaluate(*items()[1]).reward == 3.0


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def f(a): ...", "f(a) has the wrong parameters; write f(data, target) or"),
        ("def f(prompt, completion): ...", "parameter 'prompt' and none named completions"),
        ("def f(solution_str, ground_truth): ...", "parameter 'solution_str' and none named"),
        (
            "def f(data_source, solution_str, ground_truth, extra_info=None): ...",
            "parameter 'data_source' and none named completions",
        ),
        ("def f(completions, /): ...", "takes completions by position alone"),
        ("def f(completions, trainer_state): ...", "takes trainer_state, which there is not here"),
    ],
)
def test_a_function_that_fits_no_form_is_refused_with_the_forms(code, said):
    scope = {}
    exec(code, scope)
    registry = Registry(())
    with pytest.raises(PluginError) as caught:
        registry.load(registry.register("evaluator", "f", scope["f"]))
    assert said in str(caught.value)
    if "write" in said or "named" in said:
        assert "f(prompts, completions, **columns)" in str(caught.value)
    assert "\n" not in str(caught.value)
