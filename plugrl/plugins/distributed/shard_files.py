"""Checkpoints of ranks: each writes its parts of the tensors to a safetensors file, through DCP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor

from plugrl.core.run.checkpoints.shards import SavedShards, Shard, filled
from plugrl.plugins.transformers.training.spread import storage_of


def describe(
    value: Any, spread: dict[str, torch.Tensor], names: dict[int, str], path: str = ""
) -> Any:
    """The tree of a state, with a :class:`Shard` for each tensor that is spread over ranks.

    Args:
        value: the state, or a part of it.
        spread: gets the tensors, by name.
        names: gets the name of each storage, so that one tensor has one name.
        path: of the part.
    """
    if isinstance(value, DTensor):
        name = names.setdefault(storage_of(value), path)
        spread.setdefault(name, value)
        return Shard(name)
    if isinstance(value, Mapping):
        below = f"{path}." if path else ""
        return {k: describe(v, spread, names, f"{below}{k}") for k, v in value.items()}
    return value


def save(spread: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write this rank's part of all tensors; every rank does so."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    dcp_save(dict(spread), storage_writer=writer)


def load(saved: SavedShards, like: Callable[[Sequence[Any]], DTensor | None]) -> dict[str, Any]:
    """A state that was saved in parts, by any number of ranks; every rank reads its own.

    Args:
        saved: the state.
        like: gives the tensor that the one at these keys of the state is spread like; None: it is
            read whole.

    Returns:
        The state with its tensors.
    """
    spread: dict[str, torch.Tensor] = {}
    whole: list[str] = []
    for keys, name in _places(saved.tree):
        if name not in spread and name not in whole:
            own = like(keys)
            if own is None:
                whole.append(name)
            else:
                spread[name] = torch.empty_like(own)
    reader = HuggingFaceStorageReader(str(saved.folder))
    dcp_load(spread, storage_reader=reader)
    return filled(saved.tree, {**spread, **saved.read(whole)})


def _places(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, Shard):
        yield keys, value.name
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _places(item, (*keys, key))
