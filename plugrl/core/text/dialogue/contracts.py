"""Checks of what the methods of environments and algorithms give, which anybody may override."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plugrl.core.errors import ContractError
from plugrl.core.plugins.user_code.error_location import location_suffix
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.scorer import LARGEST, Score, number_fault
from plugrl.core.text.dialogue.tree import RolloutNode


def method(owner: Any, name: str) -> str:
    """What messages call a method: the class, its name, the file and line of its code."""
    return f"{type(owner).__name__}.{name}{location_suffix(getattr(type(owner), name))}"


def validate_children(owner: Any, answer: Any, leaves: int) -> list[list[RolloutNode]]:
    """What ``expand`` gave: a list of exchanges for each leaf.

    Raises:
        ContractError: it is something else.
    """
    wanted = "a list of lists of RolloutNode is expected, one for each leaf"
    if not _is_list(answer):
        raise ContractError(f"{method(owner, 'expand')} returned {type(answer).__name__}; {wanted}")
    if len(answer) != leaves:
        count = f"{len(answer)} lists for {leaves} leaves"
        raise ContractError(f"{method(owner, 'expand')} returned {count}; {wanted}")
    for nodes in answer:
        if not _is_list(nodes):
            what = f"a list of {type(nodes).__name__}"
            raise ContractError(f"{method(owner, 'expand')} returned {what}; {wanted}")
        odd = next((node for node in nodes if not isinstance(node, RolloutNode)), None)
        if odd is not None:
            what = f"a {type(odd).__name__} in a list"
            raise ContractError(f"{method(owner, 'expand')} returned {what}; {wanted}")
    return [list(nodes) for nodes in answer]


def validate_dialogue(owner: Any, answer: Any) -> Dialogue:
    """What ``advance`` gave.

    Raises:
        ContractError: it is no dialogue.
    """
    if not isinstance(answer, Dialogue):
        raise ContractError(
            f"{method(owner, 'advance')} returned {type(answer).__name__}; a Dialogue is expected, "
            'such as context.with_message("tester", probe).with_message("target", response)'
        )
    return answer


def check_scores(owner: Any, answer: Any, nodes: Sequence[RolloutNode]) -> None:
    """See that ``score`` left each exchange with a score, or with the reason why it has none.

    Raises:
        ContractError: it left something else, or returned scores, which nobody would read.
    """
    if answer is not None:
        raise ContractError(
            f"{method(owner, 'score')} returned {type(answer).__name__}; it must set node.score of "
            "each exchange to a Score, and return nothing"
        )
    for node in nodes:
        if not node.failure and not isinstance(node.score, Score):
            raise ContractError(
                f"{method(owner, 'score')} left {type(node.score).__name__} as the score of an "
                "exchange; a Score is expected, or a failure"
            )


def validate_steps(owner: Any, answer: Any, name: str) -> list[Any]:
    """What ``flatten`` or ``prepare`` of an algorithm gave: a list of steps.

    Raises:
        ContractError: it is something else.
    """
    if not isinstance(answer, Iterable) or isinstance(answer, (str, bytes, Mapping)):
        raise ContractError(
            f"{method(owner, name)} returned {type(answer).__name__}; a list of steps is expected"
        )
    return list(answer)


def validate_logs(owner: Any, logs: Any) -> dict[str, float]:
    """What ``step`` of an algorithm gave beside the loss, as plain numbers.

    Raises:
        ContractError: it is no mapping, or a value is no number.
    """
    if logs is not None and not isinstance(logs, Mapping):
        raise ContractError(
            f"{method(owner, 'step')} returned {type(logs).__name__} as logs; a dict of numbers is "
            "expected"
        )
    found: dict[str, float] = {}
    for key, value in (logs or {}).items():
        try:
            found[str(key)] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ContractError(
                f"{method(owner, 'step')} logs {str(key)!r}, {value!r:.40}; a number is expected"
            ) from None
    return found


def validate_rewards(owner: Any, answer: Any, exchanges: int) -> list[dict[str, float]]:
    """What ``reward`` gave, as named parts of numbers.

    Raises:
        ContractError: it is no list, of another length, or a reward is no finite number.
    """
    wanted = "a list with a number, or named numbers, for each exchange is expected"
    if not _is_list(answer):
        raise ContractError(f"{method(owner, 'reward')} returned {type(answer).__name__}; {wanted}")
    if len(answer) != exchanges:
        raise ContractError(
            f"{method(owner, 'reward')} returned {len(answer)} rewards for {exchanges} exchanges; "
            "one for each is expected"
        )
    return [_numbers(owner, parts) for parts in answer]


def _numbers(owner: Any, parts: Any) -> dict[str, float]:
    named = parts if isinstance(parts, Mapping) else {"reward": parts}
    found: dict[str, float] = {}
    for key, value in named.items():
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError("a text that looks like a number is a mistake all the same")
            found[str(key)] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ContractError(
                f"{method(owner, 'reward')}: part {str(key)!r} is {value!r:.40}; a number is "
                "expected"
            ) from None
    told = [*((f"part {key!r}", number) for key, number in found.items())]
    for what, number in [*told, ("the sum of the parts", sum(found.values()))]:
        if not abs(number) <= LARGEST:
            raise ContractError(
                f"{method(owner, 'reward')}: {what} is {number:g}; {number_fault(number)}"
            )
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
