"""Trajectories as columns of numbers, for checkpoints: thousands of lists are a few tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

from plugrl.core.text.trajectory import Trajectory

#: Lists with a number for each token, and the first type that is tried for all of them.
_COLUMNS = {
    "tokens": "int32",
    "loss_mask": "uint8",
    "versions": "int32",
    "logprobs": "float64",
    "token_advantages": "float64",
    "token_rewards": "float64",
}
_WIDER = {"uint8": "int64", "int32": "int64"}
#: What other fields are where nobody says anything, by name.
_DEFAULTS = Trajectory([0], [0]).state_dict()


def pack(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What :func:`unpack` makes equal trajectories of: tensors, and what is no column beside them.

    ``lengths`` are the numbers of tokens; a column has the numbers of those trajectories that
    ``has`` it, one after another; ``rest`` are the other fields that differ from their defaults.
    """
    import numpy as np
    import torch

    columns: dict[str, Any] = {}
    has: dict[str, Any] = {}
    for name, kind in _COLUMNS.items():
        there = [_is_column(t, name) for t in trajectories]
        if not any(there):
            continue
        owners = [t for t, own in zip(trajectories, there, strict=True) if own]
        count = sum(len(t.tokens) for t in owners)
        columns[name] = torch.from_numpy(_flat(name, owners, kind, count))
        has[name] = None if all(there) else torch.tensor(there)
    lengths = np.fromiter((len(t.tokens) for t in trajectories), np.int64, len(trajectories))
    rest = [
        {name: value for name, value in t.state_dict().items() if _is_rest(t, name, value)}
        for t in trajectories
    ]
    return {"lengths": torch.from_numpy(lengths), "columns": columns, "has": has, "rest": rest}


def unpack(packed: Mapping[str, Any]) -> list[Trajectory]:
    """The trajectories that :func:`pack` packed."""
    lengths = packed["lengths"].tolist()
    values: list[dict[str, Any]] = [dict(rest) for rest in packed["rest"]]
    for name, column in packed["columns"].items():
        numbers, there = column.numpy(), packed["has"][name]
        owners = range(len(lengths)) if there is None else there.nonzero().flatten().tolist()
        ends = accumulate(lengths[i] for i in owners)
        for i, end in zip(owners, ends, strict=True):
            values[i][name] = numbers[end - lengths[i] : end].tolist()
    return [Trajectory(**own) for own in values]


def _is_column(trajectory: Trajectory, name: str) -> bool:
    """Whether a field is a list with a number for each token, and nothing else."""
    value = getattr(trajectory, name)
    return isinstance(value, list) and len(value) == len(trajectory.tokens)


def _is_rest(trajectory: Trajectory, name: str, value: Any) -> bool:
    if name in _COLUMNS:
        return value is not None and not _is_column(trajectory, name)
    return bool(value != _DEFAULTS[name])


def _flat(name: str, owners: Sequence[Trajectory], kind: str, count: int) -> Any:
    import numpy as np

    def numbers() -> Any:
        return chain.from_iterable(getattr(t, name) for t in owners)

    try:
        return np.fromiter(numbers(), kind, count)
    except OverflowError:
        return np.fromiter(numbers(), _WIDER[kind], count)
