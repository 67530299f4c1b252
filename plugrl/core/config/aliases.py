"""Other spellings that a configuration may use, brought to plugrl's own.

Keys move in each layer before layers are merged, so that precedence does not depend on the
spelling. Names of components are only tried when no package provides them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from plugrl.core.config.counterparts import NEUTRAL
from plugrl.core.config.merge import Indexed, Layer
from plugrl.core.config.origins import (
    Fault,
    KeyPath,
    as_written,
    bare_name,
    dotted,
    forget,
    mark,
    move,
    nearest,
)
from plugrl.core.errors import PlugrlDeprecationWarning

#: Keys that go away, old to new; using one warns, and later fails.
RENAMED: dict[str, str] = {}

#: Lasting second spellings of keys.
ALIASES: dict[str, str] = {
    "logger": "trackers",
    "algorithm": "trainer.algorithm",
    "trainer.algorithm.type": "trainer.algorithm.advantage",
    "train_service": "trainer.train_service",
    "service.train_service": "trainer.train_service",
    **{
        f"service.{vendor}_service.{key}": f"trainer.train_service.{key}"
        for vendor in ("tinker", "weaver")
        for key in ("base_url", "api_key", "lora_rank", "training_mode")
    },
    **{
        f"trainer.train_service.config.{key}": f"trainer.train_service.{key}"
        for key in ("learning_rate", "eps", "weight_decay", "grad_clip_norm", "beta1", "beta2")
    },
    "trainer.train_service.config.loss_fn": "trainer.algorithm.loss_fn",
    "trainer.train_service.config.kl_penalty_coef": "trainer.algorithm.kl_penalty_coef",
    "trainer.train_service.config.kl_discount_factor": "trainer.algorithm.kl_discount_factor",
    "trainer.algorithm.kl_penalty_coef": "trainer.algorithm.advantage.coefficient",
    "trainer.algorithm.kl_discount_factor": "trainer.algorithm.advantage.discount",
    "trainer.algorithm.entropy_coeff": "trainer.algorithm.entropy_coefficient",
    "trainer.algorithm.loss_agg_mode": "trainer.algorithm.aggregation",
    "trainer.algorithm.ppo_epochs": "trainer.algorithm.epochs",
    "trainer.algorithm.distillation_epochs": "trainer.algorithm.epochs",
    "trainer.algorithm.distillation_coeff": "trainer.algorithm.advantage.coefficient",
    "trainer.algorithm.do_old_log_prob_compute": "trainer.algorithm.sampler_correction.level",
    "trainer.algorithm.clip_ratio_low": "trainer.algorithm.loss.clip_ratio_low",
    "trainer.algorithm.clip_ratio_high": "trainer.algorithm.loss.clip_ratio_high",
    "trainer.algorithm.clip_ratio_c": "trainer.algorithm.loss.clip_ratio_dual",
    "trainer.save_freq": "settings.checkpoint_every",
    "runtime_monitor.rollout_progress_monitor.enabled": "settings.progress",
    "trainer.checkpoint_path": "settings.checkpoint_path",
    "trainer.remove_previous_ckpt": "settings.keep_checkpoints",
    "validate.eval.compute_interval": "validate.every",
    "validate.eval.validate_freq": "validate.every",
    "validate.validate_freq": "validate.every",
    "rollout_worker.evaluator_module_path": "rollout_worker.evaluator",
    "rollout_worker.custom_evaluator_module_path": (
        "rollout_worker.evaluator.custom_evaluator_module_path"
    ),
    "rollout_worker.custom_evaluator_class_name": (
        "rollout_worker.evaluator.custom_evaluator_class_name"
    ),
    "rollout_worker.nexau_agent_config_path": "rollout_worker.agent_config",
    "rollout_worker.nexau_agent_workspace": "rollout_worker.agent_workspace",
    "trainer.max_prompt_length": "rollout_worker.max_prompt_length",
    "trainer.max_response_length": "rollout_worker.max_response_length",
}

#: Second spellings of a component's name, by kind.
COMPONENT_NAMES: dict[str, dict[str, str]] = {
    "rollout_worker": {"nexau": "agent", "simple": "single_turn"},
    "parser": {"qwen": "hermes", "qwen25": "hermes", "qwen3": "hermes"},
    "train_service": {"nextrainer": "local", "self-hosted": "local", "self_hosted": "local"},
}

#: Second spellings of plain values, by path.
VALUES: dict[str, dict[Any, Any]] = {
    "data.type": {"torch": "files"},
    "environment.setup_script": {"": None},
}

_RED_TEAM, _ALGORITHM = "red_team", "trainer.algorithm."
#: Kinds that may write `backend` for `type`.
BACKEND_KINDS = frozenset({"train_service", "inference_service", "tracker"})


def second_spellings(path: KeyPath) -> list[str]:
    """The keys of the section at ``path`` that mean keys of elsewhere."""
    within = dotted(path)
    split = (old.rpartition(".") for old in ALIASES)
    return [key for section, _, key in split if section == within]


def canonical(
    layer: Layer, faults: list[Fault], prefix: KeyPath = (), below: dict[str, Any] | None = None
) -> None:
    """Rewrite the second spellings of one layer in place.

    The same thing written in both spellings is a fault. Where there is a section ``red_team``, the
    section ``trainer.algorithm`` is a component with keys of its own.

    Args:
        layer: whose keys move.
        faults: gets what is wrong.
        prefix: where the configuration begins in the layer.
        below: what the layer is merged over.
    """
    root = _look(layer.tree, prefix)
    if not isinstance(root, dict):
        return
    own = any(
        _look(tree, (*place, _RED_TEAM)) is not None
        for tree in (layer.tree, below or {})
        for place in (prefix, ())
    )
    for old, new in RENAMED.items():
        if _relocate(layer, prefix, old, new, faults):
            warnings.warn(
                f"{dotted((*prefix, *old.split('.')))} is now called {new}; write {new}",
                PlugrlDeprecationWarning,
                stacklevel=2,
            )
    for old, new in ALIASES.items():
        if not (own and old.startswith(_ALGORITHM)):
            _relocate(layer, prefix, old, new, faults)
    for path, neutral in NEUTRAL.items():
        _drop(layer, (*prefix, *path.split(".")), neutral, len(prefix))
    for path, values in VALUES.items():
        parent = _look(root, tuple(path.split(".")[:-1]))
        key = path.rpartition(".")[2]
        if isinstance(parent, dict) and isinstance(parent.get(key), str):
            parent[key] = values.get(parent[key], parent[key])
    phases = _look(root, ("trainer", "phases"))
    if isinstance(phases, (list, Indexed)):
        for index in range(len(phases)) if isinstance(phases, list) else list(phases):
            canonical(layer, faults, (*prefix, "trainer", "phases", index), below)


def _look(tree: Any, path: KeyPath) -> Any:
    """What is at ``path``; overrides write the number of an item as text."""
    for part in path:
        if isinstance(tree, list) and str(part).isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, dict) and part in tree:
            tree = tree[part]
        else:
            return None
    return tree


def _relocate(layer: Layer, prefix: KeyPath, old: str, new: str, faults: list[Fault]) -> bool:
    """Move the value at ``old`` to ``new``, both below ``prefix``."""
    old_path: KeyPath = (*prefix, *old.split("."))
    new_path: KeyPath = (*prefix, *new.split("."))
    parent = _look(layer.tree, old_path[:-1])
    if not isinstance(parent, dict) or old_path[-1] not in parent:
        return False
    value = written = parent.pop(str(old_path[-1]))
    reshape = _RESHAPE.get(old)
    origin = nearest(layer.origins, old_path)
    found = layer.origins.get(old_path)
    name = (found.key if found is not None else None) or as_written(old_path)
    _prune(layer, old_path[:-1], len(prefix))
    if reshape is not None:
        value, problem = reshape(value)
        if problem:
            faults.append(Fault(name, origin, problem))
            return False
    target = _opened(layer, new_path[:-1])
    if written is None and reshape is _evaluator and target and new_path[-1] in target:
        return False  # Only unset here, and what stands beside it is no file.
    if target is None or new_path[-1] in target:
        other = nearest(layer.origins, new_path)
        message = f"is the same as {as_written(new_path)} ({other}); write it in one place only"
        faults.append(Fault(name, origin, message))
        return False
    target[str(new_path[-1])] = value
    if reshape is not None and origin is not None:
        # Its inner keys are other ones now; the key that was written stands for them all.
        forget(old_path, layer.origins)
        mark(value, new_path, replace(origin, key=name), layer.origins)
    else:
        move(layer.origins, old_path, new_path)
    return True


def _drop(layer: Layer, path: KeyPath, neutral: tuple[Any, ...], keep: int) -> None:
    """Drop the key at ``path`` if its value is one of ``neutral``."""
    parent = _look(layer.tree, path[:-1])
    if not isinstance(parent, dict):
        return
    value = parent.get(str(path[-1]))
    if any(type(value) is type(known) and value == known for known in neutral):
        del parent[str(path[-1])]
        forget(path, layer.origins)
        _prune(layer, path[:-1], keep)


def _opened(layer: Layer, path: KeyPath) -> dict[str, Any] | None:
    """Give the mapping at ``path``, made when it is absent; a bare name becomes its ``type``."""
    node: Any = layer.tree
    for depth, part in enumerate(path):
        if isinstance(part, int):
            node = node[part]
            continue
        inner = node.get(part)
        if inner is None:
            inner = node[part] = {}
        elif isinstance(inner, str):
            inner = node[part] = {"type": inner}
            bare_name(layer.origins, path[: depth + 1])
        node = inner
    return node if isinstance(node, dict) else None


def _prune(layer: Layer, path: KeyPath, keep: int) -> None:
    """Drop the mappings on ``path`` that moving a key left empty."""
    while len(path) > keep:
        parent = _look(layer.tree, path[:-1])
        if not isinstance(parent, dict) or parent.get(str(path[-1])) != {}:
            return
        del parent[str(path[-1])]
        layer.origins.pop(path, None)
        path = path[:-1]


def _trackers(value: Any) -> tuple[Any, str | None]:
    """``logger: {backend: [a, b], a: {...}}`` to a list of trackers; the console is always on."""
    if isinstance(value, dict) and "backend" in value:
        rest = dict(value)
        names = rest.pop("backend")
        names = names if isinstance(names, list) else [names]
        entries: list[Any] = []
        for name in names:
            options = rest.pop(name, None) if isinstance(name, str) else None
            entries.append({"type": name, **options} if isinstance(options, dict) else name)
        if rest:
            return None, f"unknown keys: {', '.join(rest)}; write options as `trackers` does"
        value = entries
    elif isinstance(value, dict) and value and "type" not in value:
        key = next((f".{k}" for v in value.values() if isinstance(v, dict) for k in v), "")
        remedy = f"give `backend` too, or change the first tracker with trackers.0{key}"
        return None, f"has no `backend`, which says which trackers are used; {remedy}"
    elif not isinstance(value, list):
        value = [] if value is None else [value]
    return [item for item in value if item != "console"], None


def _evaluator(value: Any) -> tuple[Any, str | None]:
    """``file.py:Class`` to an evaluator given by its file."""
    if value is None:
        return dict.fromkeys(("custom_evaluator_module_path", "custom_evaluator_class_name")), None
    if isinstance(value, str):
        path, colon, name = value.rpartition(":")
        if colon and path and name.isidentifier():
            return {"custom_evaluator_module_path": path, "custom_evaluator_class_name": name}, None
    return None, f"must be file.py:ClassName, not {value!r}"


def _kept(value: Any) -> tuple[Any, str | None]:
    """Whether earlier checkpoints go, as the number of the newest ones that stay; None: all."""
    if value is None or isinstance(value, bool):
        return 1 if value else None, None
    return None, f"must be true or false, not {value!r}"


def _level(value: Any) -> tuple[Any, str | None]:
    """Whether the trainer computes log-probabilities of its own before an update."""
    if isinstance(value, bool):
        return "token" if value else "none", None
    return None, f"must be true or false, not {value!r}"


def _progress(value: Any) -> tuple[Any, str | None]:
    """Whether progress is shown."""
    if isinstance(value, bool):
        return "auto" if value else "none", None
    return None, f"must be true or false, not {value!r}"


_RESHAPE: dict[str, Callable[[Any], tuple[Any, str | None]]] = {
    "logger": _trackers,
    "rollout_worker.evaluator_module_path": _evaluator,
    "trainer.remove_previous_ckpt": _kept,
    "runtime_monitor.rollout_progress_monitor.enabled": _progress,
    "trainer.algorithm.do_old_log_prob_compute": _level,
}


def component_name(kind: str, name: str) -> str:
    """Give plugrl's own name for another spelling of a component's name."""
    return COMPONENT_NAMES.get(kind, {}).get(name, name)
