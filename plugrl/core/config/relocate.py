"""Values that may be written in two sections, brought to the one that uses them.

This runs once the interpolations are resolved, because the two spellings may refer to each other.
"""

from __future__ import annotations

from typing import Any

from plugrl.core.config.check import Checker
from plugrl.core.config.origins import KeyPath, dotted, forget, move, nearest

#: Where a service may be written, and the key of a model that it becomes.
_SERVICES: tuple[tuple[KeyPath, str], ...] = (
    (("trainer", "train_service"), "train"),
    (("service", "inference_service"), "inference"),
)


def _by_type(service: Any, path: KeyPath, checker: Checker) -> None:
    """Let ``backend``, the other name of ``type``, be the type where a later layer wrote it."""
    if not isinstance(service, dict) or "backend" not in service:
        return
    old, new = (*path, "backend"), (*path, "type")
    if "type" not in service or _layer(checker, old) > _layer(checker, new):
        service["type"] = service.pop("backend")
        forget(new, checker.origins)
        move(checker.origins, old, new)


def _united(checker: Checker, here: Any, path: KeyPath, there: Any, new: KeyPath) -> Any:
    """What two spellings of one mapping say together: of a key in both, the later layer counts."""
    first, second = _mapping(here), _mapping(there)
    if first is None or second is None:
        return there
    for key, value in first.items():
        old, into = (*path, key), (*new, key)
        mine, other = _layer(checker, old), _layer(checker, into)
        if key in second and mine == other:
            where = nearest(checker.origins, into)
            message = f"is the same as {dotted(into)} ({where}); write it in one place only"
            checker.fault(old, message)
        elif key not in second or mine > other:
            second[key] = value
            forget(into, checker.origins)
            move(checker.origins, old, into)
    return second


def _mapping(value: Any) -> dict[str, Any] | None:
    return {"type": value} if isinstance(value, str) else value if isinstance(value, dict) else None


def _layer(checker: Checker, path: KeyPath) -> int:
    origin = nearest(checker.origins, path)
    return -1 if origin is None else origin.layer


#: Other places of the path of the one model.
_SOURCES: tuple[KeyPath, ...] = (
    ("rollout_worker", "tokenizer"),
    ("trainer", "algorithm", "inference_service", "model"),
    ("trainer", "algorithm", "inference_service", "tokenizer"),
)
_ONCE = "write it once, there"


def relocate(tree: dict[str, Any], checker: Checker, reads: frozenset[str]) -> None:
    """Move services to the one model and prompt limits to the worker, where these are read."""
    if "trajectory_pool" in reads:
        _batch_size(tree, checker)
    if "models" in reads:
        _names(tree, checker)
        _source(tree, checker)
        for path, key in _SERVICES:
            _to_model(tree, checker, path, key)
        _betas(tree, checker)
    if "validate" in reads:
        _validated(tree)
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
    _by_type(parent[path[1]], path, checker)
    held = model.get(key)
    if held is None:
        model[key] = parent.pop(path[1])
        move(checker.origins, path, new)
    elif _layer(checker, path) == _layer(checker, new):
        other = nearest(checker.origins, new)
        checker.fault(path, f"is the same as {dotted(new)} ({other}); write it in one place only")
        return
    else:
        _by_type(held, new, checker)
        model[key] = _united(checker, parent.pop(path[1]), path, held, new)
    if not parent and path[0] == "service":
        del tree["service"]


def _take(tree: dict[str, Any], path: KeyPath) -> Any:
    """Take the value at ``path`` out of ``tree``, with mappings that it leaves empty."""
    *outer, key = path
    parent: Any = tree
    for part in outer:
        parent = parent.get(part) if isinstance(parent, dict) else None
    if not isinstance(parent, dict) or key not in parent:
        return None
    value = parent.pop(key)
    if not parent and len(outer) > 1:
        _take(tree, tuple(outer))
    return value


def _batch_size(tree: dict[str, Any], checker: Checker) -> None:
    """The batch size of an algorithm is that of the pool; a custom trainer may have its own."""
    here: KeyPath = ("trainer", "algorithm", "batch_size")
    trainer, pool = tree.get("trainer"), tree.get("trajectory_pool")
    if isinstance(trainer, dict) and "custom_trainer_module_path" in trainer:
        return
    size = _take(tree, here)
    if size is None:
        return
    there: KeyPath = ("trajectory_pool", "batch_size")
    pool = tree.setdefault("trajectory_pool", {})
    if not isinstance(pool, dict) or pool.get("batch_size", size) == size:
        if isinstance(pool, dict) and "batch_size" not in pool:
            pool["batch_size"] = size
            move(checker.origins, here, there)
        return
    other = nearest(checker.origins, there)
    checker.fault(here, f"differs from {dotted(there)}, {pool['batch_size']} ({other}); {_ONCE}")


def _source(tree: dict[str, Any], checker: Checker) -> None:
    """Names of the model that other sections have, where there is one model."""
    worker, models = tree.get("rollout_worker"), tree.get("models")
    custom = isinstance(worker, dict) and "custom_rollout_worker_module_path" in worker
    for here in _SOURCES:
        if custom and here[0] == "rollout_worker":
            continue
        text = _take(tree, here)
        if text is None:
            continue
        if not isinstance(text, str):
            checker.fault(here, f"must be text, not {text!r}")
            continue
        models = tree.setdefault("models", {"policy": {}})
        if not isinstance(models, dict) or len(models) != 1:
            names = ", ".join(models) if isinstance(models, dict) else "none is named"
            checker.fault(here, f"fits one model only ({names}); write models.NAME.source.path")
            continue
        name, model = next(iter(models.items()))
        source = model.setdefault("source", {}) if isinstance(model, dict) else None
        if not isinstance(source, dict):
            continue
        there: KeyPath = ("models", name, "source", "path")
        if source.get("path") is None:
            # What a file below built for want of a model goes with its tokenizer.
            source.pop("config", None)
            source.pop("tokenizer", None)
            source["path"] = text
            move(checker.origins, here, there)
        elif source["path"] != text:
            other = nearest(checker.origins, there)
            held = f"{dotted(there)}, {source['path']} ({other})"
            checker.fault(here, f"differs from {held}; {_ONCE}")


def _betas(tree: dict[str, Any], checker: Checker) -> None:
    """Two numbers of an optimizer, each with a key of its own, as one list."""
    models = tree.get("models")
    for name, model in models.items() if isinstance(models, dict) else ():
        train = model.get("train") if isinstance(model, dict) else None
        if not isinstance(train, dict) or not {"beta1", "beta2"} <= train.keys():
            continue
        if "custom_train_service_module_path" in train or "betas" in train:
            continue
        path: KeyPath = ("models", name, "train")
        train["betas"] = [train.pop("beta1"), train.pop("beta2")]
        for index, key in enumerate(("beta1", "beta2")):
            move(checker.origins, (*path, key), (*path, "betas", index))


def _validated(tree: dict[str, Any]) -> None:
    """Decide whether there is something to validate on, where a part of a recipe cannot know."""
    section = tree.get("validate")
    if isinstance(section, dict) and section.get("enabled") == "auto":
        data = section.get("data")
        files = isinstance(data, dict) and bool(data.get("data_files"))
        section["enabled"] = files or tree.get("scenario") is not None


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
