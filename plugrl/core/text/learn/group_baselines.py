"""Means over the runs of a group, which advantages compare rewards with."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Grouping:
    """The valid trajectories of a batch by run and group; every run counts once in its group.

    ``rows`` ([V]) are the valid trajectories, ``run_of_row`` ([V]) the run of each among N runs,
    ``group_of_run`` ([N]) the group of each run among G, and ``means`` ([N], float64) the mean
    reward of each run.
    """

    rows: torch.Tensor
    run_of_row: torch.Tensor
    group_of_run: torch.Tensor
    means: torch.Tensor

    @classmethod
    def of(
        cls, rewards: torch.Tensor, group: torch.Tensor, run: torch.Tensor, valid: torch.Tensor
    ) -> Grouping:
        """Group R trajectories, by the arguments of an advantage function."""
        rows = valid.nonzero().flatten()
        # One number for each pair of a group and a run: pairs themselves are sorted far slower.
        _, groups = torch.unique(group[rows], return_inverse=True)
        names, runs = torch.unique(run[rows], return_inverse=True)
        each = max(1, len(names))
        pairs, run_of_row = torch.unique(groups * each + runs, return_inverse=True)
        means = mean_by(rewards[rows].double(), run_of_row, len(pairs))
        return cls(rows, run_of_row, pairs // each, means)

    @property
    def runs(self) -> torch.Tensor:
        """Runs of each group, [G]."""
        return torch.bincount(self.group_of_run)

    @property
    def baseline(self) -> torch.Tensor:
        """Mean over the runs of each group, [G]."""
        return mean_by(self.means, self.group_of_run, len(self.runs))

    @property
    def centred(self) -> torch.Tensor:
        """The mean of each run less that of its group, [N]; 0 for a run that is alone."""
        return self.relative(None)

    def relative(self, epsilon: float | None) -> torch.Tensor:
        """The mean of each run relative to those of its group, [N]; see :func:`relative`."""
        return relative(self.means, self.group_of_run, len(self.runs), epsilon)

    def spread(self, of_run: torch.Tensor, size: int) -> torch.Tensor:
        """A number of each run as one of each of ``size`` trajectories; invalid ones get 0."""
        numbers = torch.zeros(size, dtype=torch.float32)
        numbers[self.rows] = of_run[self.run_of_row].float()
        return numbers


def relative(
    values: torch.Tensor, index: torch.Tensor, size: int, epsilon: float | None
) -> torch.Tensor:
    """``values`` less the mean of their group, over its sample deviation plus ``epsilon``.

    Args:
        values: float64, [V].
        index: the group of each, among ``size`` groups, [V].
        size: how many groups there are.
        epsilon: None: nothing is divided.

    Returns:
        [V]; 0 in groups whose values are equal up to rounding.
    """
    means = mean_by(values, index, size)
    centred = values - means[index]
    if epsilon is None:
        return centred
    count = torch.bincount(index, minlength=size)
    squares = mean_by(centred.square(), index, size) * count
    deviation = (squares / (count - 1).clamp_min(1)).sqrt()
    # Rewards are float32, so a relative deviation below 1e-9 is rounding: they are equal.
    scale = torch.where(deviation > 1e-9 * means.abs(), deviation + epsilon, torch.inf)
    return centred / scale[index]


def mean_by(values: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
    """Mean of ``values`` for each number in ``index``: [size]; 0 for numbers without any."""
    totals = torch.zeros(size, dtype=values.dtype).index_add_(0, index, values)
    return totals / torch.bincount(index, minlength=size).clamp_min(1)
