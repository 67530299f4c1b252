"""State whose tensors are spread over several processes, and is saved by them in parts.

A part is a safetensors file as :class:`torch.distributed.HuggingFaceStorageWriter` makes
it, which needs no pickle: it says of each tensor where in the whole it begins.
"""

from __future__ import annotations

import shutil
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Shard:
    """Stands in the tree of a state for a tensor of this name."""

    name: str


class ShardedState(Mapping[str, Any]):
    """A state whose tensors are elsewhere; as a mapping it holds them whole, each when it is read.

    Args:
        tree: the nested state, with a :class:`Shard` in place of each such tensor.
    """

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.tree = tree

    @abstractmethod
    def read(self, names: Iterable[str]) -> Mapping[str, torch.Tensor]:
        """Whole tensors by name, on the CPU."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the parts of all tensors to a new folder, which all processes must reach."""

    def __getitem__(self, key: str) -> Any:
        value = self.tree[key]
        return filled(value, self.read(dict.fromkeys(_names(value))))

    def __iter__(self) -> Iterator[str]:
        return iter(self.tree)

    def __len__(self) -> int:
        return len(self.tree)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return dict(self)


class SavedShards(ShardedState):
    """Such a state in a folder.

    Args:
        folder: holds the parts.
        tree: see :class:`ShardedState`.
    """

    def __init__(self, folder: Path, tree: Mapping[str, Any]) -> None:
        super().__init__(tree)
        self.folder = folder

    def read(self, names: Iterable[str]) -> Mapping[str, torch.Tensor]:
        """Whole tensors by name, put together from their parts.

        Raises:
            KeyError: the parts hold no such tensor.
        """
        wanted = list(names)
        return read_parts(self.folder, wanted) if wanted else {}

    def write(self, folder: Path) -> None:
        """Copy the parts."""
        shutil.copytree(self.folder, folder)


def read_parts(folder: Path, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Whole tensors of a folder of parts, by name.

    Raises:
        KeyError: the folder holds no such tensor.
    """
    import torch
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    there: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    found = {
        name: torch.empty(there[name].size, dtype=there[name].properties.dtype) for name in names
    }
    with warnings.catch_warnings():
        # It warns that this process alone loads.
        warnings.simplefilter("ignore", UserWarning)
        load(found, storage_reader=reader, no_dist=True)
    return found


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, Shard):
        yield value.name
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _names(item)


def filled(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The value with tensors in place of their names."""
    if isinstance(value, Shard):
        return tensors[value.name]
    if isinstance(value, Mapping):
        return {key: filled(item, tensors) for key, item in value.items()}
    return value
