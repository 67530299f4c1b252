"""Units stay whole in micro-batches, packed or padded, by rows or by tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.training.micro_batches import micro_batches


def batch(rows):
    """Rows of (unit, prompt, answer length)."""
    made = Batch.from_trajectories(
        [Trajectory([2 + prompt, 3, *range(4, 4 + n)], [0, 0, *[1] * n]) for _, prompt, n in rows]
    )
    made.metadata["unit"] = torch.tensor([unit for unit, _, _ in rows])
    return made


ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=12
)


@settings(max_examples=150, deadline=None)
@given(ROWS, st.integers(1, 5), st.none() | st.integers(1, 20), st.booleans())
def test_no_unit_is_split_and_budgets_hold(rows, size, tokens, packs):
    made = batch(rows)
    parts = list(micro_batches(made, size=size, tokens=tokens, packs=packs, device="cpu"))
    assert sorted(row for p in parts for row in p.rows.tolist()) == list(range(len(rows)))
    units = [set(p.batch.metadata["unit"].tolist()) for p in parts]
    assert sum(map(len, units)) == len(set().union(*units))
    for part, inside in zip(parts, units, strict=True):
        lengths = part.batch.values["attention_mask"].sum(1)
        cost = int(lengths.sum()) if packs else len(lengths) * int(lengths.max())
        if len(inside) > 1:
            assert len(lengths) <= size if tokens is None else cost <= tokens
    # Padded rows are as wide as the first, so that memory is tried at once.
    if not packs:
        widest = [int(p.batch.values["attention_mask"].sum(1).max()) for p in parts]
        assert widest == sorted(widest, reverse=True)


def test_no_rows_are_no_parts():
    none = batch([(0, 0, 1)]).select([])
    assert list(micro_batches(none, size=2, tokens=None, packs=False, device="cpu")) == []


def unit_loss(logp, batch, config):
    """The square of each unit's sum of log-probabilities, on every token of its rows."""
    _, place = batch.metadata["unit"].unique(return_inverse=True)
    sums = torch.zeros(int(place.max()) + 1).index_add(0, place, logp.sum(1))
    return sums.square()[place][:, None].expand(logp.shape), {}


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch_size": 1},
        {"micro_batch_size": 2, "packing": "never"},
        {"micro_batch_size": 3},
        {"micro_batch_tokens": 9},
        {"micro_batch_tokens": 14, "packing": "never"},
    ],
)
def test_a_loss_over_units_has_one_gradient_however_it_is_split(train_service, options):
    made = batch([(5, 0, 3), (1, 1, 2), (5, 0, 5), (2, 0, 1), (1, 1, 4), (2, 2, 2)])
    made.values[LOSS_WEIGHTS] = made.values["loss_mask"] / 7.0
    outcomes = []
    for chosen in ({}, options):
        service = train_service(**chosen)
        total = service.forward_backward(made, WeightedLoss(unit_loss, None))["loss"][0]
        gradients = [p.grad for p in service._model.parameters() if p.grad is not None]
        outcomes.append((total, torch.cat([g.flatten() for g in gradients])))
    assert outcomes[1][0] == pytest.approx(outcomes[0][0], rel=1e-5)
    torch.testing.assert_close(outcomes[1][1], outcomes[0][1], rtol=2e-4, atol=2e-5)
