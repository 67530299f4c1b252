"""Values that may be written in two sections, brought to the one that uses them.

This runs once the interpolations are resolved, because the two spellings may refer to each other.
"""

from __future__ import annotations

from typing import Any

from plugrl.core.config.check import Checker
from plugrl.core.config.origins import KeyPath, dotted, move, nearest, place

#: Where a service may be written, and the key of a model that it becomes.
_SERVICES: tuple[tuple[KeyPath, str], ...] = (
    (("trainer", "train_service"), "train"),
    (("service", "inference_service"), "inference"),
)


def relocate(tree: dict[str, Any], checker: Checker, reads: frozenset[str]) -> None:
    """Move services to the one model and prompt limits to the worker, where these are read."""
    if "models" in reads:
        for path, key in _SERVICES:
            _to_model(tree, checker, path, key)
    if {"data", "rollout_worker"} <= reads:
        _prompt_limit(tree, checker)
    if {"data", "trajectory_pool"} <= reads:
        _pool_sizes(tree, checker)


def _to_model(tree: dict[str, Any], checker: Checker, path: KeyPath, key: str) -> None:
    parent = tree.get(str(path[0]))
    if not isinstance(parent, dict) or path[1] not in parent:
        return
    models = tree.get("models")
    models = models if isinstance(models, dict) else {}
    if len(models) != 1:
        names = ", ".join(models) or "none is named"
        checker.fault(path, f"fits one model only ({names}); write models.NAME.{key} instead")
        return
    name, model = next(iter(models.items()))
    new: KeyPath = ("models", name, key)
    if not isinstance(model, dict):
        return
    if model.get(key) is not None:
        other = nearest(checker.origins, new)
        checker.fault(path, f"is the same as {dotted(new)} ({other}); write it in one place only")
        return
    model[key] = parent.pop(path[1])
    move(checker.origins, path, new)
    if not parent and path[0] == "service":
        del tree["service"]


def _prompt_limit(tree: dict[str, Any], checker: Checker) -> None:
    data, worker = tree.get("data"), tree.get("rollout_worker")
    name = "max_prompt_length"
    if not isinstance(data, dict) or name not in data:
        return
    if isinstance(worker, str):
        worker = tree["rollout_worker"] = {"type": worker}
    elif worker is None:
        worker = tree["rollout_worker"] = {}
    if not isinstance(worker, dict):
        return
    here: KeyPath = ("data", name)
    if name not in worker:
        worker[name] = data.pop(name)
        move(checker.origins, here, ("rollout_worker", name))
        return
    if data.pop(name) != worker[name]:
        other = nearest(checker.origins, ("rollout_worker", name))
        checker.fault(
            here,
            f"differs from rollout_worker.{name}, {worker[name]} ({other}); write it once, there",
        )


#: Names for when a batch is ready that all mean what `sync` does: when the step's answers are in.
_READY = (
    "loaded_batch_finished",
    "batch_size",
    "batch_size_reached",
    "batch_size_reached_and_loaded_batch_finished",
)


def _pool_sizes(tree: dict[str, Any], checker: Checker) -> None:
    """Bring sizes of a training batch to those of the data: prompts, and samples of each."""
    pool = tree.get("trajectory_pool")
    if not isinstance(pool, dict):
        return
    data = tree["data"] = tree.get("data") or {}
    if not isinstance(data, dict):
        return
    _group_size(pool, data, checker)
    ready = pool.get("check_batch_ready_function")
    if ready in _READY:
        del pool["check_batch_ready_function"]
    elif ready is not None:
        checker.fault(
            ("trajectory_pool", "check_batch_ready_function"),
            f"must be one of {', '.join(_READY)}, not {ready!r}",
        )
        del pool["check_batch_ready_function"]
    _batch_size(pool, data, checker)


def _group_size(pool: dict[str, Any], data: dict[str, Any], checker: Checker) -> None:
    if "group_size" not in pool:
        return
    old: KeyPath = ("trajectory_pool", "group_size")
    new: KeyPath = ("data", "rollout_repeat_n")
    size = pool.pop("group_size")
    if "rollout_repeat_n" not in data:
        data["rollout_repeat_n"] = size
        move(checker.origins, old, new)
    elif data["rollout_repeat_n"] != size:
        message = f"differs from {place(checker.origins, new)}, {data['rollout_repeat_n']}"
        checker.fault(old, f"{message}; write it once, there")


def _batch_size(pool: dict[str, Any], data: dict[str, Any], checker: Checker) -> None:
    if "batch_size" not in pool:
        return
    old: KeyPath = ("trajectory_pool", "batch_size")
    new: KeyPath = ("data", "batch_size")
    size, samples = pool.pop("batch_size"), data.get("rollout_repeat_n", 1)
    if type(size) is not int or size < 1 or type(samples) is not int or samples < 1:
        checker.fault(old, "must be a positive whole number; write data.batch_size instead")
    elif size % samples:
        message = f"{size} answers are no whole number of prompts with {samples} samples each"
        checker.fault(old, f"{message}; write data.batch_size, the prompts of a step")
    elif "batch_size" not in data:
        data["batch_size"] = size // samples
        move(checker.origins, old, new)
    elif data["batch_size"] != size // samples:
        message = f"{size} answers are {size // samples} prompts with {samples} samples each"
        other = f"{place(checker.origins, new)} is {data['batch_size']}"
        checker.fault(old, f"{message}, but {other}; write only data.batch_size")
