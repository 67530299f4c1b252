"""The attributes of a trainer at several moments, to name what a resumed run has forgotten."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from enum import Enum
from pathlib import PurePath
from typing import Any

#: Attributes of attributes are looked at down to so many names in a row.
DEPTH = 4
#: Objects of these packages are not looked into: they belong to the run, or are kept by it.
_CLOSED = ("plugrl", "torch", "numpy", "logging", "concurrent", "threading", "omegaconf")
#: Where a value ends that says nothing, such as a function.
_PLAIN = (str, bytes, int, float, complex, bool, type(None), Enum, PurePath)


class Attributes:
    """The attributes of a trainer in one run, as digests by name; a callback of that run.

    Numbers, texts, containers, arrays, tensors, networks, optimizers and generators of random
    numbers are compared by content; attributes of its own objects are called ``name.name``. What
    cannot be compared, such as a function, is left out.

    Args:
        trainer: its class.

    Attributes:
        before: when ``train`` was called, in a resumed run after everything was restored.
        after: at the end of each step.
    """

    def __init__(self, trainer: type) -> None:
        self.before: dict[str, str] = {}
        self.after: list[dict[str, str]] = []
        self._trainer = trainer

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at the attributes of a trainer of the class that trains inside."""
        own = self._trainer.__dict__.get("train")
        train: Any = self._trainer.train  # type: ignore[attr-defined]

        def watched(trainer: Any) -> Any:
            self.before = snapshot(trainer)
            return train(trainer)

        self._trainer.train = watched  # type: ignore[attr-defined]
        try:
            yield
        finally:
            if own is None:
                del self._trainer.train  # type: ignore[attr-defined]
            else:
                self._trainer.train = own  # type: ignore[attr-defined]

    def plugrl_step_end(self, run: Any) -> None:
        """Look at them at the end of a step."""
        self.after.append(snapshot(run.trainer))


def snapshot(owner: object) -> dict[str, str]:
    """The digests of an object's attributes by name."""
    return dict(_attributes(owner, "", DEPTH, {id(owner)}))


def forgotten(whole: Attributes, resumed: Attributes, step: int) -> list[str]:
    """Names of attributes that training changed and that a resumed trainer does not have back.

    What a trainer restores later than before its first step is not among them.

    Args:
        whole: of the uninterrupted run.
        resumed: of the run that went on after ``step``.
        step: how many steps the resumed run had behind it.
    """
    saved, following = whole.after[step - 1], whole.after[step]
    return sorted(
        name
        for name, value in saved.items()
        if whole.before.get(name) != value
        and resumed.before.get(name) != value
        and resumed.after[0].get(name) != following.get(name)
    )


def _attributes(
    owner: object, prefix: str, depth: int, seen: set[int]
) -> Iterator[tuple[str, str]]:
    for name, value in getattr(owner, "__dict__", {}).items():
        if id(value) in seen and not isinstance(value, _PLAIN):
            continue
        content = _content(value)
        if content is not None:
            yield prefix + name, hashlib.sha256(content.encode()).hexdigest()
        elif depth > 1 and _package(value) not in _CLOSED:
            seen.add(id(value))
            yield from _attributes(value, f"{prefix}{name}.", depth - 1, seen)


def _package(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def _content(value: Any) -> str | None:
    """What a value holds, as text; None: it cannot be compared."""
    import numpy as np
    import torch

    if _package(value) == "plugrl":
        return None
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, torch.Tensor):
        held = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        return f"tensor {value.dtype} {tuple(value.shape)} {hashlib.sha256(held).hexdigest()}"
    if isinstance(value, np.ndarray) and value.dtype != object:
        held = np.ascontiguousarray(value).tobytes()
        return f"array {value.dtype} {value.shape} {hashlib.sha256(held).hexdigest()}"
    if isinstance(value, np.generic):
        return f"{value.dtype} {value!r}"
    if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        return _content(value.state_dict())
    if isinstance(value, torch.Generator):
        return _content(value.get_state())
    if isinstance(value, random.Random):
        return repr(value.getstate())
    if isinstance(value, np.random.Generator):
        return _content(value.bit_generator.state)
    return _content_of_container(value)


def _content_of_container(value: Any) -> str | None:
    if isinstance(value, Mapping):
        parts = [(_content(key), _content(held)) for key, held in value.items()]
        known = all(None not in part for part in parts)
        return "{" + ", ".join(f"{key}: {held}" for key, held in parts) + "}" if known else None
    if isinstance(value, (list, tuple, Set)):
        items = [_content(held) for held in value]
        if isinstance(value, Set):
            items.sort(key=str)
        return None if None in items else f"[{', '.join(map(str, items))}]"
    return None
