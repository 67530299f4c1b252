"""``Layout``: the named parts of an observation that is one vector of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
import numpy as np

from plugrl.core.errors import ContractError

if TYPE_CHECKING:
    import torch

    Numbers = TypeVar("Numbers", np.ndarray[Any, Any], torch.Tensor)

#: The part that says which choices of the next action are allowed.
ACTION_MASK = "action_mask"


@dataclass(frozen=True)
class Layout:
    """Where the parts of an observation are, which is one flat vector in float32.

    A part called ``action_mask`` has a number for each choice of a ``Discrete`` or
    ``MultiDiscrete`` action, one choice after the other: above 0.5 where it is allowed. Policies,
    random ones too, then never take another.

    Attributes:
        fields: the shape of each part, in their order.
    """

    fields: Mapping[str, tuple[int, ...]]

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each part is in the last dimension."""
        found, start = {}, 0
        for name, shape in self.fields.items():
            stop = start + math.prod(shape)
            found[name], start = slice(start, stop), stop
        return found

    @property
    def size(self) -> int:
        """The numbers of an observation."""
        return sum(math.prod(shape) for shape in self.fields.values())

    def __contains__(self, name: object) -> bool:
        return name in self.fields

    def space(self) -> gymnasium.spaces.Box:
        """The space of observations."""
        return gymnasium.spaces.Box(-np.inf, np.inf, (self.size,), np.float32)

    def pack(self, parts: Mapping[str, Any]) -> np.ndarray:
        """Parts ``[N, *shape]`` as observations ``[N, size]``.

        Raises:
            ContractError: a part is missing, is not in the layout, or has another shape.
        """
        if parts.keys() != self.fields.keys():
            raise ContractError(
                f"an observation consists of {', '.join(self.fields)}, not of {', '.join(parts)}"
            )
        number = len(next(iter(parts.values()))) if parts else 0
        packed = np.empty((number, self.size), np.float32)
        for name, part in parts.items():
            array, wanted = np.asarray(part), (number, *self.fields[name])
            if array.shape != wanted:
                raise ContractError(
                    f"part {name!r} of an observation has shape {list(array.shape)}; give "
                    f"{list(wanted)}"
                )
            packed[:, self.slices[name]] = array.reshape(number, -1)
        return packed

    def view(self, flat: Numbers, name: str) -> Numbers:
        """A part ``[..., *shape]`` of observations ``[..., size]``; shares memory where it can.

        Raises:
            ContractError: there is no such part.
        """
        if name not in self.fields:
            raise ContractError(
                f"observations have no part {name!r}; they consist of {', '.join(self.fields)}"
            )
        part = flat[..., self.slices[name]]
        return part.reshape(*flat.shape[:-1], *self.fields[name])
