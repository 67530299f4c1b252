"""What trainers on trajectories may be given by the methods that a subclass writes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import torch

from plugrl.core.plugins.user_code.error_location import location_suffix
from plugrl.core.renamed_methods import words_in
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.advantages import metadata_fault
from plugrl.core.text.rollout.validate_rollout import logprobs_fault
from plugrl.core.text.trajectory import Trajectory


def check_parameters(cls: type, name: str, count: int, form: str) -> None:
    """Refuse a class whose own method of that name has other parameters.

    Args:
        cls: the class.
        name: of the method.
        count: how many parameters it has, ``self`` among them.
        form: how it is written, for the message.

    Raises:
        TypeError: it has another number of them.
    """
    method = cls.__dict__.get(name)
    if method is not None and len(inspect.signature(method).parameters) != count:
        raise TypeError(f"{cls.__name__}.{name} has the wrong signature; write {name}{form}")


def run_ids_warning(cls: type) -> str | None:
    """What is to be said of a trainer whose code knows runs and no groups; None: nothing.

    In similar frameworks equal run ids are attempts at one prompt. Here they are the first, second,
    ... attempts at all prompts, so that a trainer that groups by them compares different prompts,
    and nothing fails.
    """
    names = _words_of(cls)
    if "run_id" not in names or "group_id" in names:
        return None
    return (
        f"{cls.__name__}{location_suffix(cls)} reads run_id and never group_id: here run_id "
        "numbers the attempts at a prompt, 0 for the first at each, so that a group of equal run "
        "ids holds different prompts; group by group_id"
    )


def _words_of(cls: type) -> set[str]:
    """Names and texts in the methods of a user's class, and in the functions that they call."""
    waiting = [
        value
        for base in cls.__mro__
        if not _is_own(base.__module__)
        for value in vars(base).values()
    ]
    seen: set[int] = set()
    words: set[str] = set()
    while waiting:
        value = waiting.pop()
        function = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)))
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        own = words_in(function.__code__)
        words |= own
        called = (function.__globals__.get(name) for name in own)
        waiting += [f for f in called if not _is_own(getattr(f, "__module__", None) or __name__)]
    return words


def _is_own(module: str) -> bool:
    return module.partition(".")[0] in ("plugrl", "builtins", "abc")


def batch_fault(prepared: Any) -> str | None:
    """What is wrong with the answer of ``_prepare_batch``; None: nothing."""
    if not (isinstance(prepared, tuple) and len(prepared) == 2):
        return f"returned {type(prepared).__name__}; `return batch, metrics` is expected"
    batch, metrics = prepared
    if not isinstance(batch, Batch) or not isinstance(metrics, Mapping):
        kinds = f"{type(batch).__name__} and {type(metrics).__name__}"
        return f"returned {kinds}; a Batch and a dict are expected"
    return _metrics_fault(metrics) or _values_fault(batch) or metadata_fault(batch)


def _values_fault(batch: Batch) -> str | None:
    """What is wrong with the tensors, [B, T], that every loss relies on; None: nothing."""
    ids = batch.values.get("input_ids")
    if not isinstance(ids, torch.Tensor):
        return "gave a batch without the tensor values['input_ids']; return the one it was given"
    for name in ("loss_mask", "attention_mask", "advantages"):
        value = batch.values.get(name)
        if value is None and name == "advantages":
            continue
        expected = f"a tensor of shape {tuple(ids.shape)} is expected"
        if not isinstance(value, torch.Tensor):
            return f"gave values[{name!r}] as {type(value).__name__}; {expected}"
        if value.shape != ids.shape:
            return f"gave values[{name!r}] of shape {tuple(value.shape)}; {expected}"
    return None


def trajectories_fault(prepared: Any, metrics: Mapping[str, Any], temperature: float) -> str | None:
    """What is wrong with the answer of ``_prepare_trajectories``; None: nothing.

    Args:
        prepared: the answer.
        metrics: what it added to.
        temperature: of trajectories that name none.
    """
    if not isinstance(prepared, list) or not all(isinstance(t, Trajectory) for t in prepared):
        kind = type(prepared).__name__
        return f"returned {kind}; `return trajectories`, a list of Trajectory, is expected"
    if len({t.model for t in prepared}) > 1:
        return "returned trajectories of several models; return those it was given"
    fault = _metrics_fault(metrics)
    if fault is not None:
        return fault
    for t in prepared:
        t.check()
        fault = logprobs_fault(t)
        if fault is not None:
            return fault
        if (t.temperature or temperature) != 1:
            return (
                f"returned a trajectory of temperature {t.temperature or temperature:g}; a service "
                "of named losses trains at temperature 1, so let the rollout worker sample at 1"
            )
    return None


def _metrics_fault(metrics: Mapping[str, Any]) -> str | None:
    for key, value in metrics.items():
        if isinstance(value, (str, bytes)) or getattr(value, "numel", lambda: 1)() != 1:
            return f"gave metric {key!r} as {type(value).__name__}; a number is expected"
    return None
