"""The loss contract: aggregation by hand, and what must not change the gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights

AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
)
# Losses that compare rows have tests of their own: their units cannot be split.
LOSSES = [
    record.name
    for record in default_registry().records("loss")
    if not getattr(default_registry().load(record), "compares_pairs", False)
]
MASK = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]])
VALUES = torch.tensor([[9.0, 1.0, 2.0, 3.0], [9.0, 6.0, 9.0, 9.0], [9.0, 9.0, 9.0, 9.0]])


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", (1 + 2 + 3 + 6) / 4),
        ("seq-mean-token-mean", (2 + 6) / 2),
        ("seq-mean-token-sum", (6 + 6) / 2),
        ("seq-mean-token-sum-norm", (6 + 6) / (2 * 8)),
    ],
)
def test_aggregations_by_hand(aggregation, expected):
    weights = aggregation_weights(MASK, aggregation, 8)
    assert float((weights * VALUES).sum()) == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_nothing_to_train_is_zero(aggregation):
    weights = aggregation_weights(torch.zeros(2, 3), aggregation, 8)
    assert torch.equal(weights, torch.zeros(2, 3))


def test_a_missing_length_and_an_unknown_name_are_refused():
    with pytest.raises(ConfigError, match="norm_length"):
        aggregation_weights(MASK, "seq-mean-token-sum-norm")
    with pytest.raises(ConfigError, match="mean-of-means"):
        aggregation_weights(MASK, "mean-of-means")


def weighted(name):
    function = default_registry().get("loss", name)
    return WeightedLoss(function, configure(function, {}))


def random_batch(rows, tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.randint(0, 2, (rows, tokens), generator=generator)
    mask[0, -1] = 1
    logp = -torch.rand(rows, tokens, generator=generator, dtype=torch.float64)
    values = {
        "input_ids": torch.zeros(rows, tokens, dtype=torch.long),
        "loss_mask": mask,
        "old_log_probs": -torch.rand(rows, tokens, generator=generator, dtype=torch.float64),
        "advantages": torch.randn(rows, tokens, generator=generator, dtype=torch.float64) * mask,
    }
    for name in ("ref_log_probs", "teacher_log_probs"):
        values[name] = -torch.rand(rows, tokens, generator=generator, dtype=torch.float64)
    preferred = (torch.arange(rows) % 2).double()
    return logp, Batch(values, {"batch_size": rows, "preferred": preferred, "kl_reference": 0.1})


def gradient(name, logp, batch, parts, aggregation="token-mean"):
    """The gradient of ``logp``, accumulated over the given parts of the rows."""
    batch = batch.copy()
    weights = aggregation_weights(batch.values["loss_mask"], aggregation, 8)
    batch.values[LOSS_WEIGHTS] = weights
    leaf = logp.clone().requires_grad_()
    for rows in parts:
        total, _ = weighted(name)(leaf[rows], batch.select(rows))
        total.backward()
    return leaf.grad


@pytest.mark.parametrize("name", LOSSES)
@given(
    aggregation=st.sampled_from(AGGREGATIONS),
    rows=st.integers(2, 6),
    tokens=st.integers(1, 5),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=25, deadline=None)
def test_micro_batches_and_row_order_change_nothing(name, aggregation, rows, tokens, seed):
    logp, batch = random_batch(rows, tokens, seed)
    whole = gradient(name, logp, batch, [torch.arange(rows)], aggregation)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    pieces = gradient(name, logp, batch, list(order.split(2)), aggregation)
    torch.testing.assert_close(pieces, whole)


@pytest.mark.parametrize("name", LOSSES)
def test_padding_changes_nothing(name):
    logp, batch = random_batch(4, 5, 3)
    rows = [torch.arange(4)]
    padded = Batch(
        {k: torch.nn.functional.pad(v, (0, 3)) for k, v in batch.values.items()}, batch.metadata
    )
    wide = gradient(name, torch.nn.functional.pad(logp, (0, 3)), padded, rows)
    torch.testing.assert_close(wide[:, :5], gradient(name, logp, batch, rows))
    assert torch.equal(wide[:, 5:], torch.zeros(4, 3, dtype=wide.dtype))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", LOSSES)
def test_masked_tokens_get_no_gradient_whatever_stands_there(name, poison):
    logp, batch = random_batch(4, 5, 7)
    masked = batch.values["loss_mask"] == 0
    clean = gradient(name, logp, batch, [torch.arange(4)])
    assert torch.equal(clean[masked], torch.zeros_like(clean[masked]))
    for key in ("advantages", "old_log_probs", "ref_log_probs", "teacher_log_probs"):
        batch.values[key] = batch.values[key].masked_fill(masked, poison)
    torch.testing.assert_close(gradient(name, logp, batch, [torch.arange(4)]), clean)


def test_a_loss_of_the_wrong_shape_is_named():
    def summed(logp, batch, config):
        return logp.sum(), {}

    logp, batch = random_batch(2, 3, 0)
    with pytest.raises(ValueError, match=r"summed \(.*returned shape"):
        WeightedLoss(summed, {})(logp, batch)


def clamped(logp, batch, config):
    return logp.clamp_(min=-1.0), {}


def shifted_view(logp, batch, config):
    logp[:, 1:].sub_(1.0)
    return logp, {}


def rescaled(logp, batch, config):
    batch.values["advantages"].mul_(2.0)
    return logp * batch.values["advantages"], {}


def centred(logp, batch, config):
    rewards = batch.metadata["rewards"]
    rewards -= rewards.mean()
    return logp * rewards[:, None], {}


@pytest.mark.parametrize(
    ("loss", "changed"),
    [
        (clamped, "logp"),
        (shifted_view, "logp"),
        (rescaled, r"batch\.values\['advantages'\]"),
        (centred, r"batch\.metadata\['rewards'\]"),
    ],
)
def test_a_loss_that_changes_what_it_is_given_is_named(loss, changed):
    logp, batch = random_batch(2, 3, 0)
    batch.metadata["rewards"] = torch.tensor([0.0, 1.0])
    batch.values[LOSS_WEIGHTS] = batch.values["loss_mask"].double()
    # No leaf, as a model gives them: torch itself refuses to change leaves.
    logp = logp * 1.0
    with pytest.raises(ContractError, match=rf"{loss.__name__} \(.*changed {changed} in place"):
        WeightedLoss(loss, {})(logp, batch)

    def fine(logp, batch, config):
        batch.values["own"] = logp.detach().clone().clamp_(max=-1.0)
        return logp * batch.values["own"], {}

    WeightedLoss(fine, {})(logp * 1.0, batch)
