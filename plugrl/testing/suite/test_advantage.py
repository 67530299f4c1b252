"""The contract of advantages.

Run it with ``--plugrl-advantage NAME``, or subclass :class:`AdvantageContract` with an attribute
``plugrl_advantage``. An advantage gives as attribute ``conformance``: ``config``, its section, and
``prepare``, a function that adds to a batch what else it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from plugrl.core.text.learn.advantages import Advantage, compute
from plugrl.core.text.trajectory import Trajectory
from plugrl.testing.batches import batch_of, changed, contents, trajectories, widened
from plugrl.testing.contract import ComponentContract


class AdvantageContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_advantage``."""

    kind = "advantage"
    defaults: ClassVar[Mapping[str, Any]] = {"prepare": None}

    @pytest.fixture
    def advantages(
        self, cls: Advantage, section: Any, example: Mapping[str, Any]
    ) -> Callable[[Sequence[Trajectory]], torch.Tensor]:
        """Advantages of trajectories, as a trainer has them computed."""
        return lambda rows: compute(cls, batch_of(rows, example["prepare"]), section)

    def test_every_trajectory_gets_a_finite_number(
        self, advantages: Callable[[Sequence[Trajectory]], torch.Tensor]
    ) -> None:
        found = advantages(trajectories())
        assert found.dtype == torch.float32
        assert torch.isfinite(found).all()
        assert found.abs().sum() > 0, "nothing is learned from rewards that differ"

    def test_rewards_that_are_all_equal_give_finite_numbers(
        self, advantages: Callable[[Sequence[Trajectory]], torch.Tensor]
    ) -> None:
        for reward in (0.0, 1.0):
            rows = [replace(row, reward=reward) for row in trajectories()]
            assert torch.isfinite(advantages(rows)).all()

    def test_one_trajectory_gets_a_finite_number(
        self, advantages: Callable[[Sequence[Trajectory]], torch.Tensor]
    ) -> None:
        assert torch.isfinite(advantages(trajectories()[:1])).all()

    def test_invalid_trajectories_change_no_other(
        self, advantages: Callable[[Sequence[Trajectory]], torch.Tensor]
    ) -> None:
        rows = trajectories()
        valid = torch.tensor([row.valid for row in rows])
        other = [row if row.valid else replace(row, reward=-1e6) for row in rows]
        torch.testing.assert_close(advantages(rows)[valid], advantages(other)[valid])

    def test_the_order_of_trajectories_does_not_matter(
        self, advantages: Callable[[Sequence[Trajectory]], torch.Tensor]
    ) -> None:
        rows = trajectories()
        backwards = advantages(rows[::-1]).flip(0)
        torch.testing.assert_close(backwards, advantages(rows), rtol=1e-4, atol=1e-5)

    def test_equal_batches_get_equal_advantages(
        self, advantages: Callable[[Sequence[Trajectory]], torch.Tensor]
    ) -> None:
        first = advantages(trajectories())
        advantages(trajectories()[2:])
        assert torch.equal(advantages(trajectories()), first)

    def test_it_leaves_the_batch_as_it_was(
        self, cls: Advantage, section: Any, example: Mapping[str, Any]
    ) -> None:
        batch = batch_of(trajectories(), example["prepare"])
        for name in ("returns", "advantages"):
            del batch.values[name]  # Advantages may write these.
        before = contents(batch)
        compute(cls, batch, section)
        assert changed(batch, before) == []

    def test_padding_changes_nothing(
        self, cls: Advantage, section: Any, example: Mapping[str, Any]
    ) -> None:
        batch = batch_of(trajectories(), example["prepare"])
        narrow = compute(cls, batch.copy(), section)
        wide = compute(cls, widened(batch, 3), section)
        if wide.dim() == 2:
            assert (wide[:, narrow.shape[1] :] == 0).all(), "padding has an advantage"
            wide = wide[:, : narrow.shape[1]]
        torch.testing.assert_close(wide, narrow)


class TestAdvantage(AdvantageContract):
    """The contract for every ``--plugrl-advantage``."""

    __test__ = True
