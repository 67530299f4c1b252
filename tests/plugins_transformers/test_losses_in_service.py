"""Every registered loss, through the service: what the split into passes must not change."""

import itertools

import pytest
import torch

from plugrl.core.config.check import configure
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.minibatches import unit_numbers
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory

LOSSES = [record.name for record in default_registry().records("loss")]
AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
)
# Two answers to one prompt, two turns in one sequence, one row without a trained token.
ROWS = [
    ([2, 3, 4, 5, 6, 1], [0, 0, 1, 1, 1, 1]),
    ([2, 3, 7, 1], [0, 0, 1, 1]),
    ([4, 5, 6, 7, 8, 9, 2, 1], [0, 1, 1, 0, 0, 0, 1, 1]),
    ([3, 3, 3], [0, 0, 0]),
    ([9, 8], [0, 1]),
]
# For losses that compare: pairs of rows 0 and 1, and of 2 and 4.
UNITS, PREFERRED = [3, 3, 7, 5, 7], [1.0, 0.0, 0.0, 0.0, 1.0]
SPLITS = [
    {"micro_batch_size": 1},
    {"micro_batch_size": 2},
    {"micro_batch_tokens": 9},
    {"micro_batch_tokens": 9, "packing": "never"},
    {"micro_batch_size": 64, "packing": "never"},
    {"head_chunk_tokens": 3, "gradient_checkpointing": True},
]


def weighted(name):
    function = default_registry().get("loss", name)
    return WeightedLoss(function, configure(function, {}))


def batch(name, aggregation, order=(0, 1, 2, 3, 4), width=0):
    made = Batch.from_trajectories([Trajectory(*ROWS[row]) for row in order])
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(len(ROWS), 8, 2, generator=generator)[list(order)]
    mask = made.values["loss_mask"].float()
    made.values["advantages"] = values[..., 0] * mask
    # Ratios on both sides of every clip.
    made.values["old_log_probs"] = (-2.3 + values[..., 1]) * mask
    made.values["ref_log_probs"] = (-2.3 + values[..., 0]) * mask
    made.values["teacher_log_probs"] = (-2.3 + values[..., 0]) * mask
    made.metadata |= {"preferred": torch.tensor(PREFERRED)[list(order)], "kl_reference": 0.4}
    if getattr(default_registry().get("loss", name), "compares_pairs", False):
        made.metadata["unit"] = torch.tensor(UNITS)[list(order)]
    made.values[LOSS_WEIGHTS] = aggregation_weights(made.values["loss_mask"], aggregation, 8)
    made.values = {
        name: torch.nn.functional.pad(value, (0, width)) for name, value in made.values.items()
    }
    return made


@pytest.fixture
def service_for(gradient_service):
    """Makes a service with what a loss needs."""

    def make(name, **options):
        if "values" not in weighted(name).needs:
            return gradient_service(**options)
        service = gradient_service(value_head=True, **options)
        weight, _ = service.parameters()[-2:]
        weight.data = torch.linspace(-1, 1, weight.shape[1])[None]
        return service

    return make


def outcome(service, data, loss):
    totals = service.forward_backward(data, loss)
    gradients = {
        n: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for n, p in service.module.named_parameters()
    }
    service.module.zero_grad()
    return totals, gradients


def assert_alike(got, want):
    for name, pair in want[0].items():
        assert got[0][name] == pytest.approx(pair, rel=1e-4, abs=1e-6), name
    for name, gradient in want[1].items():
        torch.testing.assert_close(got[1][name], gradient, rtol=2e-4, atol=2e-6, msg=name)


@pytest.mark.parametrize("name", LOSSES)
def test_split_packing_padding_and_order_change_nothing(service_for, name):
    """Each way of splitting beside one way of aggregating, which is a factor of each token."""
    loss, wanted = weighted(name), {}
    for aggregation in AGGREGATIONS:
        wanted[aggregation] = outcome(service_for(name), batch(name, aggregation), loss)
        assert any(gradient.count_nonzero() for gradient in wanted[aggregation][1].values())
    for options, aggregation in zip(SPLITS, itertools.cycle(AGGREGATIONS), strict=False):
        service, data = service_for(name, **options), batch(name, aggregation)
        assert_alike(outcome(service, data, loss), wanted[aggregation])
    check_order_and_padding(service_for, name, AGGREGATIONS[2], wanted[AGGREGATIONS[2]])


def check_order_and_padding(service_for, name, aggregation, want):
    loss, service = weighted(name), service_for(name)
    assert_alike(outcome(service, batch(name, aggregation, [4, 2, 0, 3, 1]), loss), want)
    assert_alike(outcome(service, batch(name, aggregation, width=5), loss), want)


@pytest.mark.integration
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_every_split_beside_every_aggregation(service_for, name, aggregation):
    loss = weighted(name)
    want = outcome(service_for(name), batch(name, aggregation), loss)
    for options in SPLITS:
        assert_alike(outcome(service_for(name, **options), batch(name, aggregation), loss), want)
    check_order_and_padding(service_for, name, aggregation, want)


@pytest.mark.parametrize("name", LOSSES)
def test_copies_for_a_world_of_several_processes_change_nothing(service_for, name):
    loss, service = weighted(name), service_for(name)
    want = outcome(service, batch(name, "token-mean"), loss)
    padded = batch(name, "token-mean").pad_to_world_size(4)
    padded.values[LOSS_WEIGHTS] = aggregation_weights(padded.values["loss_mask"], "token-mean")
    # What is compared stays in one process.
    rank_of = unit_numbers(padded) % 4
    shares = [padded.select((rank_of == rank).nonzero().flatten()) for rank in range(4)]
    # Weights are of the whole step, so that gradients of the processes add up.
    parts = [outcome(service, share, loss) for share in shares]
    gradients = {n: sum(part[1][n] for part in parts) for n in want[1]}
    total = sum(part[0]["loss"][0] for part in parts)
    assert total == pytest.approx(want[0]["loss"][0], rel=1e-4)
    for name_, gradient in want[1].items():
        torch.testing.assert_close(gradients[name_], gradient, rtol=2e-4, atol=2e-6)
