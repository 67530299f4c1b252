"""Evaluators made of reward functions in the form of TRL: ``f(prompts, completions, **columns)``.

The function is called by name with lists, one entry for each answer: ``prompts`` and
``completions`` as texts, or as messages where the prompts are; ``completion_ids``, the tokens of
the answers; and the columns of the data that it names, or all of them where it takes ``**``. It
returns one number for each answer, or None where it does not apply.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    EvaluationItem,
    EvaluationRunResult,
    Evaluator,
    NotApplicableError,
)
from plugrl.core.text.inference.chat import is_messages

#: How a function is written that judges several answers at once.
FORM = "f(prompts, completions, **columns), which returns a list with one reward for each"
#: What a function gets besides columns.
_GIVEN = ("prompts", "completions", "completion_ids", "log_extra", "log_metric")
#: What TRL gives besides, and nothing here knows.
_ABSENT = ("trainer_state", "environments")
#: Columns that stand for what has names of its own above.
_RENAMED = ("prompt", "completion", "completion_ids")
Judged = EvaluationRunResult | EvaluationFailedError


class RewardFunctionEvaluator(Evaluator):
    """An evaluator made of a reward function that takes lists."""

    function: ClassVar[Callable[..., Any]]

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The columns that the function cannot be called without."""
        return {f"{path}.{name}": name for name in _columns_of(cls.function, required=True)}

    @classmethod
    def possible_metrics(
        cls, section: Mapping[str, Any], of: Callable[[str], Collection[str] | None]
    ) -> Collection[str] | None:
        """None of its own, unless it may log some."""
        return None if _takes(cls.function, "log_metric") else ()

    def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Call the function with lists of one entry."""
        items = [(data, evaluation_target)]
        call = _Call(self, items)
        return _one(call.results(self.function(**call.arguments)))

    def evaluate_batch(
        self, items: Sequence[EvaluationItem]
    ) -> Sequence[Any] | Awaitable[Sequence[Any]]:
        """Call the function once, with lists of all items."""
        call = _Call(self, items)
        return call.results(self.function(**call.arguments))


class AsyncRewardFunctionEvaluator(RewardFunctionEvaluator):
    """An evaluator made of an ``async`` reward function, called with lists."""

    async def evaluate(  # type: ignore[override]
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Call the function with lists of one entry and await it."""
        call = _Call(self, [(data, evaluation_target)])
        return _one(call.results(await self.function(**call.arguments)))

    async def evaluate_batch(self, items: Sequence[EvaluationItem]) -> Sequence[Any]:
        """Call the function once and await it."""
        call = _Call(self, items)
        return call.results(await self.function(**call.arguments))


class _Call:
    """One call of the function: its arguments, and what its answer means."""

    def __init__(self, evaluator: Evaluator, items: Sequence[EvaluationItem]) -> None:
        function = evaluator.function  # type: ignore[attr-defined]
        self._name = type(evaluator).__name__
        self._count = len(items)
        self._metrics: dict[str, list[float]] = {}
        self._extra: dict[str, Sequence[Any]] = {}
        prompts = [data.get(evaluator.prompt_key) for data, _ in items]
        answers = [
            [{"role": "assistant", "content": target.final_answer}]
            if is_messages(prompt)
            else target.final_answer
            for prompt, (_, target) in zip(prompts, items, strict=True)
        ]
        given: dict[str, Any] = {
            "prompts": prompts,
            "completions": answers,
            "completion_ids": [list(target.token_ids) for _, target in items],
            "log_extra": self._extra.__setitem__,
            "log_metric": lambda name, value: self._metrics.setdefault(name, []).append(value),
        }
        if _takes_any(function):
            columns = dict.fromkeys(key for data, _ in items for key in data)
            names = [key for key in columns if key not in (*_RENAMED, evaluator.prompt_key)]
        else:
            given = {name: value for name, value in given.items() if _takes(function, name)}
            names = []
        needed = _columns_of(function, required=True)
        optional = [
            name
            for name in _columns_of(function, required=False)
            if any(name in data for data, _ in items)
        ]
        held = {
            name: [data[name] if name in needed else data.get(name) for data, _ in items]
            for name in dict.fromkeys([*names, *needed, *optional])
        }
        self.arguments: dict[str, Any] = {**held, **given}

    def results(self, answer: Any) -> list[Judged]:
        """One judgement for each answer, in order."""
        rewards = answer.tolist() if hasattr(answer, "tolist") else answer
        if not isinstance(rewards, (list, tuple)) or len(rewards) != self._count:
            found = (
                f"{len(rewards)} rewards for {self._count} completions"
                if isinstance(rewards, (list, tuple))
                else type(answer).__name__
            )
            fault = f"{self._name} returned {found}; a list with one reward for each is expected"
            return [EvaluationFailedError(fault) for _ in range(self._count)]
        metrics = {name: sum(values) / len(values) for name, values in self._metrics.items()}
        return [
            NotApplicableError(f"{self._name} returned None: it does not apply to the answer")
            if reward is None
            else EvaluationRunResult(
                reward,
                metrics=dict(metrics),
                extra_info={
                    name: values[number]
                    for name, values in self._extra.items()
                    if number < len(values)
                },
            )
            for number, reward in enumerate(rewards)
        ]


def _one(results: Sequence[Judged]) -> EvaluationRunResult:
    (result,) = results
    if isinstance(result, EvaluationFailedError):
        raise result
    return result


def is_reward_function(function: Callable[..., Any]) -> bool:
    """Whether a function takes lists: it has a parameter ``completions``, or ``**`` alone."""
    named = inspect.signature(function).parameters
    return "completions" in named or [p.kind for p in named.values()] == [
        inspect.Parameter.VAR_KEYWORD
    ]


def reward_function_fault(function: Callable[..., Any]) -> str | None:
    """Why a reward function cannot be called by names; None: it can."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in _ABSENT and parameter.default is parameter.empty:
            return f"takes {parameter.name}, which there is not here; leave it out"
        if parameter.kind is parameter.POSITIONAL_ONLY:
            return f"takes {parameter.name} by position alone; leave the / out"
    return None


def _columns_of(function: Callable[..., Any], *, required: bool) -> list[str]:
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in (*_GIVEN, *_ABSENT)
        and (parameter.default is parameter.empty) == required
    ]


def _takes_any(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _takes(function: Callable[..., Any], name: str) -> bool:
    return name in inspect.signature(function).parameters or _takes_any(function)
