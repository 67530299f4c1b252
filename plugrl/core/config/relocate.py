"""Values that may be written in two sections, brought to the one that uses them.

This runs once the interpolations are resolved, because the two spellings may refer to each other.
"""

from __future__ import annotations

from typing import Any

from plugrl.core.config.check import Checker
from plugrl.core.config.origins import KeyPath, dotted, move, nearest

#: Where a service may be written, and the key of a model that it becomes.
_SERVICES: tuple[tuple[KeyPath, str], ...] = (
    (("trainer", "train_service"), "train"),
    (("service", "inference_service"), "inference"),
)


def relocate(tree: dict[str, Any], checker: Checker, reads: frozenset[str]) -> None:
    """Move services to the one model and prompt limits to the worker, where these are read."""
    if "models" in reads:
        _names(tree, checker)
        for path, key in _SERVICES:
            _to_model(tree, checker, path, key)
    if {"data", "rollout_worker"} <= reads:
        _prompt_limit(tree, checker)


def _names(tree: dict[str, Any], checker: Checker) -> None:
    """Names that a path in the configuration could not be told from."""
    models = tree.get("models")
    for name in models if isinstance(models, dict) else ():
        if isinstance(name, str) and any(character in name for character in ".[]"):
            checker.fault(("models", name), "the name of a model has no dot and no bracket")


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
