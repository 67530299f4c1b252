"""Nested state as JSON plus named tensors, so that a checkpoint needs no pickle."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import RunError
from plugrl.core.run.checkpoints.shards import SavedShards, Shard, ShardedState

if TYPE_CHECKING:
    import torch

#: Marks a JSON object that stands for something JSON has no word for.
_TAG = "$plugrl"


@dataclass
class Encoder:
    """Splits a nested value into a JSON tree and a table of CPU tensors.

    Tensors that are one and the same (tied weights) are stored once. What other processes save goes
    to :attr:`shards`, by the name of its folder. With ``lenient``, values of unknown types become
    their ``repr`` instead of an error.

    Raises:
        RunError: a value has a type that a checkpoint cannot hold; the message names its place.
    """

    lenient: bool = False
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    shards: dict[str, ShardedState] = field(default_factory=dict)
    _seen: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _originals: list[torch.Tensor] = field(default_factory=list)
    _addresses: set[int] = field(default_factory=set)

    def encode(self, value: Any, path: str = "") -> Any:
        """Return the JSON tree of ``value``; its tensors go to :attr:`tensors`."""
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
        if isinstance(value, ShardedState):
            name = f"shards-{len(self.shards)}"
            self.shards[name] = value
            return {_TAG: "shards", "folder": name, "tree": self.encode(value.tree, path)}
        if isinstance(value, Shard):
            return {_TAG: "shard", "name": value.name}
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, (list, tuple)):
            items = [self.encode(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return items if isinstance(value, list) else {_TAG: "tuple", "items": items}
        if isinstance(value, (bytes, bytearray)):
            return {_TAG: "bytes", "value": base64.b64encode(value).decode("ascii")}
        return self._array(value, path)

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        if all(isinstance(key, str) for key in value) and _TAG not in value:
            return {key: self.encode(item, f"{path}.{key}") for key, item in value.items()}
        pairs = [
            [self.encode(key, path), self.encode(item, f"{path}.{key}")]
            for key, item in value.items()
        ]
        return {_TAG: "dict", "items": pairs}

    def _array(self, value: Any, path: str) -> Any:
        import numpy as np
        import torch

        if isinstance(value, torch.Tensor):
            return {_TAG: "tensor", "name": self._store(value, path)}
        if isinstance(value, (np.ndarray, np.generic)):
            try:
                tensor = torch.from_numpy(np.array(value, order="C"))
            except TypeError:
                return self._unknown(value, path, f"NumPy array of {value.dtype}")
            kind = "numpy" if isinstance(value, np.ndarray) else "numpy_scalar"
            return {_TAG: kind, "name": self._store(tensor, path)}
        return self._unknown(value, path, type(value).__name__)

    def _unknown(self, value: Any, path: str, kind: str) -> Any:
        if self.lenient:
            return repr(value)
        raise RunError(
            f"the state at {path.lstrip('.') or 'its root'} is a {kind}, which a checkpoint cannot "
            "hold; state_dict() may give dicts, lists, tensors, arrays, numbers, text and bytes"
        )

    def _store(self, tensor: torch.Tensor, path: str) -> str:
        import torch

        if tensor.layout is not torch.strided or tensor.is_quantized:
            return str(self._unknown(tensor, path, f"tensor of layout {tensor.layout}"))
        tensor = tensor.detach()
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and place in self._seen:
            return self._seen[place]
        name = path.lstrip(".") or "value"
        while name in self.tensors:
            name += "'"
        copy = tensor.cpu().contiguous()
        is_view = copy.untyped_storage().nbytes() != copy.numel() * copy.element_size()
        if is_view or self._is_stored(copy):
            copy = copy.clone()
        # Kept, so that no later tensor can get the address of this one.
        self._originals.append(tensor)
        self.tensors[name] = copy
        self._seen[place] = name
        return name

    def _is_stored(self, tensor: torch.Tensor) -> bool:
        address = tensor.data_ptr()
        if not tensor.numel() or address in self._addresses:
            return tensor.numel() > 0
        self._addresses.add(address)
        return False


def decode(value: Any, tensors: Mapping[str, torch.Tensor], folder: Path = Path()) -> Any:
    """Rebuild what :class:`Encoder` took apart.

    Args:
        value: the tree.
        tensors: by name.
        folder: holds the folders of what other processes saved.

    Raises:
        KeyError, ValueError: the tree and the tensors do not belong together.
    """
    if isinstance(value, list):
        return [decode(item, tensors, folder) for item in value]
    if not isinstance(value, dict):
        return value
    tag = value.get(_TAG)
    if tag is None:
        return {key: decode(item, tensors, folder) for key, item in value.items()}
    if tag == "dict":
        return {
            decode(key, tensors, folder): decode(item, tensors, folder)
            for key, item in value["items"]
        }
    if tag == "tuple":
        return tuple(decode(item, tensors, folder) for item in value["items"])
    if tag == "float":
        return float(value["value"])
    if tag == "bytes":
        return base64.b64decode(value["value"])
    if tag == "shards":
        return SavedShards(folder / value["folder"], decode(value["tree"], tensors, folder))
    if tag == "shard":
        return Shard(value["name"])
    if tag not in ("tensor", "numpy", "numpy_scalar"):
        raise ValueError(f"unknown kind of value {tag!r}")
    tensor = tensors[value["name"]]
    if tag == "tensor":
        return tensor
    array = tensor.numpy()
    return array if tag == "numpy" else array[()]
