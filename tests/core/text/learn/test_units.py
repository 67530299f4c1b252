"""Units: rows that are compared stay together in minibatches, whatever the order of the rows."""

import pytest
import torch

from plugrl import SelfHostedTrainer
from plugrl.core.errors import ContractError
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import WeightedLoss
from plugrl.core.text.learn.minibatches import (
    repeated_units,
    rows_of_units,
    unit_count,
    with_their_units,
)
from plugrl.core.text.trajectory import Trajectory


def rows(units, masks=None):
    masks = masks or [1] * len(units)
    made = Batch.from_trajectories([Trajectory([2, 3 + i], [0, m]) for i, m in enumerate(masks)])
    made.metadata["unit"] = torch.tensor(units)
    return made


def test_rows_come_by_unit_in_order_of_appearance():
    batch = rows([7, 3, 7, 5, 3])
    assert unit_count(batch) == 3
    # Units in order of appearance: 7 (rows 0, 2), 3 (rows 1, 4), 5 (row 3).
    assert rows_of_units(batch, torch.tensor([2, 0, 1])).tolist() == [3, 0, 2, 1, 4]


def test_without_numbers_each_row_is_a_unit():
    batch = rows([0, 0])
    del batch.metadata["unit"]
    assert unit_count(batch) == 2
    assert rows_of_units(batch, torch.tensor([1, 0])).tolist() == [1, 0]


def test_one_row_of_a_unit_keeps_the_others():
    batch = rows([4, 1, 4, 2])
    found = with_their_units(batch, torch.tensor([True, False, False, False]))
    assert found.tolist() == [True, False, True, False]


def test_copies_have_units_of_their_own():
    assert repeated_units(rows([0, 2, 0]), 2).tolist() == [0, 2, 0, 3, 5, 3]


@pytest.mark.parametrize(
    "unit", [[0, 1], torch.tensor([0.0, 1.0]), torch.tensor([0]), torch.tensor([[0, 1]])]
)
def test_numbers_of_another_form_are_named(unit):
    batch = rows([0, 1])
    batch.metadata["unit"] = unit
    with pytest.raises(ContractError, match=r"metadata\['unit'\] is .*torch.long.* each of 2 rows"):
        unit_count(batch)


class Plain(SelfHostedTrainer):
    """Prepares nothing."""

    _step = 0

    def _prepare_batch(self, batch):
        return batch, {}

    @property
    def hyper_params(self):
        class Params:
            seed = 0

        return Params


@pytest.mark.parametrize("minibatches", [1, 2, 3, 5])
def test_minibatches_hold_whole_units(minibatches):
    algorithm = {"loss": "cross_entropy", "minibatches": minibatches, "epochs": 2}
    trainer = Plain({"algorithm": algorithm})
    # Row 3 trains nothing, but its unit does.
    batch = rows([0, 1, 2, 0, 1, 2, 8, 9], masks=[1, 1, 1, 0, 1, 1, 1, 0])
    batch.metadata["row"] = torch.arange(8)
    loss = WeightedLoss(lambda logp, batch, config: (-logp, {}), None)
    parts = list(trainer._minibatches(batch, loss))
    seen = [part.metadata["unit"].tolist() for part in parts]
    for units in seen:
        for unit in (0, 1, 2):
            assert units.count(unit) in (0, 2)
    assert sorted(sum((p.metadata["row"].tolist() for p in parts), [])) == sorted(
        [0, 1, 2, 3, 4, 5, 6] * 2
    )
