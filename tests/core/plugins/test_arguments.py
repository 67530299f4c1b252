"""Reward functions as arguments of a Python program."""

import asyncio
import functools
import json

import pytest

from plugrl.core.errors import UsageError
from plugrl.core.plugins.arguments import missing, resumed_rewards, reward_arguments
from plugrl.core.plugins.kinds import ARGUMENT
from plugrl.core.plugins.registry import Registry
from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget

ITEM = [({"prompt": "p"}, BaseEvaluationTarget("abc"))]


def length(completions, **kwargs):
    return [len(c) for c in completions]


class Judge:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, completions):
        return [self.factor * len(c) for c in completions]


class AsyncJudge(Judge):
    async def __call__(self, completions):
        return [self.factor * len(c) for c in completions]


def section_of(*arguments):
    objects, (empties, picks) = reward_arguments(*arguments)
    assert empties == "rollout_worker.evaluator="
    key, _, text = picks.partition("=")
    assert key == "rollout_worker.evaluator"
    return objects, json.loads(text)


def test_one_function_takes_the_place_of_the_evaluator():
    assert section_of(length) == ({"length": length}, {"type": "length"})


def test_several_are_added_up_with_their_weights():
    objects, section = section_of([length, Judge(2), "math"], [1, 0.5, 2])
    assert list(objects) == ["length", "Judge"]
    assert section == {
        "type": "weighted",
        "criteria": [
            {"evaluator": {"type": "length"}, "weight": 1.0, "name": "length"},
            {"evaluator": {"type": "Judge"}, "weight": 0.5, "name": "Judge"},
            {"evaluator": "math", "weight": 2.0, "name": "math"},
        ],
    }


def test_functions_of_one_name_get_others():
    objects, _ = section_of([lambda completions: 1, lambda completions: 2, length, length])
    assert list(objects) == ["lambda", "lambda_2", "length", "length_2"]


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (length, 3),
        (Judge(2), 6),
        (Judge(2).__call__, 6),
        (AsyncJudge(3), 9),
        (functools.partial(lambda factor, completions: [factor * len(completions[0])], 4), 12),
    ],
)
def test_anything_that_can_be_called_will_do(reward, expected):
    objects, _ = reward_arguments(reward)
    registry = Registry(())
    ((name, value),) = objects.items()
    with registry.arguments("evaluator", objects):
        evaluator = registry.load(registry.resolve("evaluator", name))()
    results = evaluator.evaluate_batch(ITEM)
    results = asyncio.run(results) if asyncio.iscoroutine(results) else results
    assert [result.reward for result in results] == [expected]


def test_they_are_there_for_a_while_and_come_before_others_of_the_name():
    registry = Registry()
    assert registry.resolve("evaluator", "math").distribution == "plugrl"
    with registry.arguments("evaluator", {"math": length}):
        record = registry.resolve("evaluator", "math")
        assert (record.source, record.distribution) == (ARGUMENT, None)
        assert registry.has_registered("evaluator", "math")
    assert registry.resolve("evaluator", "math").distribution == "plugrl"
    assert not registry.has_registered("evaluator", "math")


def test_what_was_registered_under_the_name_is_there_again():
    registry = Registry(())
    before = registry.register("evaluator", "mine", length)
    with registry.arguments("evaluator", {"mine": Judge(1).__call__}):
        assert registry.resolve("evaluator", "mine").source == ARGUMENT
    assert registry.resolve("evaluator", "mine") == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((3,), "reward must be a function or a list of them, not 3"),
        (([],), "reward is an empty list"),
        (([length, None],), "not None; write f(data, target); or f(prompts, completions"),
        ((length, [1, 2]), "reward_weights has 2 numbers for 1 rewards"),
        ((length, 5), "reward_weights must be a list of numbers, not 5; give one for each"),
        ((length, [None]), "reward_weights must be a list of numbers, not [None]"),
        ((length, "w"), "reward_weights must be a list of numbers, not 'w'"),
    ],
)
def test_what_is_no_reward_is_refused(arguments, said):
    with pytest.raises(UsageError) as caught:
        reward_arguments(*arguments)
    assert said in str(caught.value)


def test_a_resumed_run_gets_its_functions_by_their_names():
    assert resumed_rewards("runs/x", ["a", "b"], [length, "math", length]) == {
        "a": length,
        "b": length,
    }
    for names, reward, said in (
        (["a", "b"], length, "2 reward functions (a, b), not 1; give them in the same order"),
        ([], length, "runs/x was trained without functions of a program; leave reward out"),
        (["a"], None, "write plugrl.resume('runs/x', reward=a), or put it in a file below"),
        (["a", "b"], None, "plugrl.resume('runs/x', reward=[a, b])"),
    ):
        with pytest.raises(UsageError) as caught:
            resumed_rewards("runs/x", names, reward)
        assert said in str(caught.value)


def test_the_line_for_commands_names_a_file():
    said = missing("runs/x", ["a"], command="eval")
    assert said.endswith("@plugrl.register_evaluator('a') and write plugrl -p FILE.py eval runs/x")
