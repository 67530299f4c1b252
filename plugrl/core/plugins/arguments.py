"""Reward functions that a Python program gives as arguments: they live in its process alone."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import UsageError
from plugrl.core.plugins.kinds import KINDS
from plugrl.core.plugins.loading import import_target

if TYPE_CHECKING:
    from plugrl.core.plugins.registry import Registry

EVALUATOR = "evaluator"
#: Where a configuration names what rewards an answer.
_PLACE = "rollout_worker.evaluator"
#: The evaluator that adds up others.
_SUM = "weighted"


def reward_functions(reward: Any) -> list[Any]:
    """What a program gave as ``reward``, one function or several, as a list.

    Raises:
        UsageError: there is none, or one is neither a function nor an evaluator nor its name.
    """
    values = list(reward) if isinstance(reward, (list, tuple)) else [reward]
    if not values:
        raise UsageError("reward is an empty list; give at least one function")
    for value in values:
        if not isinstance(value, (str, Mapping)) and not callable(value):
            raise UsageError(
                f"reward must be a function or a list of them, not {value!r:.60}; write "
                f"{KINDS[EVALUATOR].form.partition('or ')[2]}"
            )
    return values


def reward_arguments(
    reward: Any, weights: Sequence[float] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The evaluators by name that ``reward`` stands for, and the overrides that pick them.

    Args:
        reward: a function or a class of evaluators, the name or section of one, or a list of such.
        weights: how much each counts; None: 1.

    Raises:
        UsageError: as :func:`reward_functions`, or there are not as many weights.
    """
    values = reward_functions(reward)
    weighted = _numbers(weights) if weights is not None else [1.0] * len(values)
    if len(weighted) != len(values):
        raise UsageError(
            f"reward_weights has {len(weighted)} numbers for {len(values)} rewards; give one each"
        )
    objects: dict[str, Any] = {}
    sections: list[Any] = []
    names: list[str] = []
    for value in values:
        if isinstance(value, (str, Mapping)):
            kind = value if isinstance(value, str) else str(value.get("type", EVALUATOR))
            sections.append(value if isinstance(value, str) else dict(value))
            names.append(_other_name(kind, names))
            continue
        names.append(_other_name(_name_of(value), names))
        objects[names[-1]] = _as_function(value)
        sections.append({"type": names[-1]})
    section: Any = sections[0]
    if len(values) > 1 or weights is not None:
        criteria = [
            {"evaluator": each, "weight": weight, "name": name}
            for each, weight, name in zip(sections, weighted, names, strict=True)
        ]
        section = {"type": _SUM, "criteria": criteria}
    # The first one empties the section, so that no option of another evaluator stays.
    return objects, [f"{_PLACE}=", f"{_PLACE}={json.dumps(section)}"]


def _numbers(weights: Any) -> list[float]:
    try:
        return [float(weight) for weight in weights]
    except (TypeError, ValueError):
        raise UsageError(
            f"reward_weights must be a list of numbers, not {weights!r:.60}; give one for each "
            "reward"
        ) from None


def resumed_rewards(run: str, saved: Sequence[str], reward: Any) -> dict[str, Any]:
    """The functions of a run by the names that it has for them.

    Args:
        run: the run, for messages.
        saved: the names, in the order in which they were given.
        reward: what the program gives now, in the same order.

    Raises:
        UsageError: there are not as many functions as names.
    """
    given = [] if reward is None else reward_functions(reward)
    functions = [value for value in given if not isinstance(value, (str, Mapping))]
    if len(functions) == len(saved):
        return {name: _as_function(f) for name, f in zip(saved, functions, strict=True)}
    if not saved:
        raise UsageError(f"{run} was trained without functions of a program; leave reward out")
    if reward is None:
        raise UsageError(missing(run, saved))
    raise UsageError(
        f"{run} was trained with {len(saved)} reward functions ({', '.join(saved)}), not "
        f"{len(functions)}; give them in the same order"
    )


def missing(run: str, names: Sequence[str], *, command: str = "resume") -> str:
    """The message that the reward functions of a run are not there."""
    one, them = names[0], "it" if len(names) == 1 else "them"
    given = one if len(names) == 1 else f"[{', '.join(names)}]"
    python = f"write plugrl.resume({run!r}, reward={given}), or " if command == "resume" else ""
    return (
        f"{run} was trained with reward={given} of a Python program, which no file of the run "
        f"holds; {python}put {them} in a file below @plugrl.register_evaluator({one!r}) and write "
        f"plugrl -p FILE.py {command} {run}"
    )


@contextmanager
def absent_rewards(
    registry: Registry, run: str, names: Sequence[str], command: str
) -> Iterator[None]:
    """Let a run be loaded without its reward functions; being judged by them is refused."""
    here = [name for name in names if not registry.has_registered(EVALUATOR, name)]
    base = import_target(KINDS[EVALUATOR].base or "") if here else object
    classes = {name: _absent(name, base, missing(run, here, command=command)) for name in here}
    with registry.arguments(EVALUATOR, classes):
        yield


def _absent(name: str, base: Any, said: str) -> type:
    def evaluate(self: Any, data: Any, evaluation_target: Any) -> Any:
        raise UsageError(said)

    def combine(self: Any, build: Any) -> None:
        raise UsageError(said)

    return type(name, (base,), {"evaluate": evaluate, "combine": combine, "__module__": __name__})


def _name_of(value: Any) -> str:
    """A name for a function that a configuration can have."""
    while isinstance(value, functools.partial):
        value = value.func
    name = getattr(value, "__name__", type(value).__name__)
    return re.sub(r"[^\w.-]", "_", name).strip("_.-") or "reward"


def _other_name(name: str, names: Sequence[str]) -> str:
    number, found = 2, name
    while found in names:
        found = f"{name}_{number}"
        number += 1
    return found


def _as_function(value: Any) -> Any:
    """A class as it is; any other callable as a plain function of the same parameters."""
    if inspect.isclass(value) or inspect.isfunction(value):
        return value
    call: Callable[..., Any] = value
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(
        getattr(value, "__call__", None)  # noqa: B004
    ):

        async def awaiting(*arguments: Any, **columns: Any) -> Any:
            return await call(*arguments, **columns)

        function: Any = awaiting
    else:

        def plain(*arguments: Any, **columns: Any) -> Any:
            return call(*arguments, **columns)

        function = plain
    function.__signature__ = inspect.signature(value)
    function.__name__ = function.__qualname__ = _name_of(value)
    function.__module__ = getattr(value, "__module__", None) or type(value).__module__
    function.__doc__ = value.__doc__
    return function
