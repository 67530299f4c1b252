"""Frozen weights with what an adapter adds to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass(frozen=True)
class Product:
    """The change of a weight: ``scaling * up @ down``, the other way round where ``transposed``."""

    down: torch.Tensor
    up: torch.Tensor
    scaling: float
    transposed: bool

    def cpu(self) -> Product:
        """The same on the CPU."""
        return self.to(device="cpu")

    def to(self, **place: Any) -> Product:
        """The same elsewhere, as of ``Tensor.to``."""
        return replace(self, down=self.down.to(**place), up=self.up.to(**place))


class MergedWeights(Mapping[str, torch.Tensor]):
    """Frozen weights with the products of an adapter added, in the data type of the weights.

    Each is computed when it is asked for, so that whoever copies them one by one, as an engine
    does, has memory for one of them.

    Args:
        base: the frozen weights.
        products: what is added to some of them.
    """

    def __init__(self, base: Mapping[str, torch.Tensor], products: Mapping[str, Product]) -> None:
        self._base, self._products = base, products

    @torch.no_grad()
    def __getitem__(self, name: str) -> torch.Tensor:
        weight, product = self._base[name], self._products.get(name)
        if product is None:
            return weight
        # As they are computed with, should they be held more precisely.
        down, up = (part.to(weight.dtype).float() for part in (product.down, product.up))
        change = product.scaling * (up @ down)
        change = change.T if product.transposed else change
        return (weight.float() + change).to(weight.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)


def merge(
    base: Mapping[str, torch.Tensor], products: Mapping[str, Product]
) -> dict[str, torch.Tensor]:
    """All of :class:`MergedWeights` at once."""
    return dict(MergedWeights(base, products))
