"""``Labelled``: what a task asks about and the right answers, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plugrl.core.errors import ContractError


@dataclass(frozen=True)
class Labelled:
    """M items of a data set, with the label of each.

    Attributes:
        arrays: what there is of each item, ``[M, *shape]``, by name.
        labels: ``[M]``, from 0 on.
        groups: ``[M]``, the place in ``group_names`` of the group that an item is counted in.
        group_names: the groups that results are reported of, besides all items; empty: none.

    Raises:
        ContractError: an array has another number of items, or a label or group is out of range.
    """

    arrays: Mapping[str, np.ndarray]
    labels: np.ndarray
    groups: np.ndarray | None = None
    group_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        rows = {name: len(array) for name, array in self.arrays.items()}
        if self.groups is not None:
            rows["groups"] = len(self.groups)
        wrong = [f"{count} of {name}" for name, count in rows.items() if count != len(self.labels)]
        if wrong:
            raise ContractError(
                f"a data set has {len(self.labels)} labels, but {', '.join(wrong)}; give one of "
                "each an item"
            )
        if (self.groups is None) != (not self.group_names):
            raise ContractError("a data set has groups without names, or names without groups")
        if len(self) and self.labels.min() < 0:
            raise ContractError("a data set has a negative label; labels count from 0")
        if self.groups is not None and not np.isin(self.groups, range(len(self.group_names))).all():
            raise ContractError(
                f"a data set has groups beyond its {len(self.group_names)} names of groups"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, items: np.ndarray) -> Labelled:
        """These items alone, in this order."""
        return Labelled(
            {name: array[items] for name, array in self.arrays.items()},
            self.labels[items],
            None if self.groups is None else self.groups[items],
            self.group_names,
        )
