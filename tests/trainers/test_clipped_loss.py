"""The clipped loss against values worked by hand, and its gradient against finite differences."""

import math

import pytest
import torch

from plugrl.core.errors import ContractError
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import WeightedLoss
from plugrl.trainers.self_hosted_grpo import ClippedConfig, clipped


def loss_of(ratio, advantage, config=None):
    config = config or ClippedConfig()
    logp = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    batch = Batch(
        {
            "advantages": torch.tensor([[advantage]], dtype=torch.float64),
            "old_log_probs": torch.zeros(1, 1, dtype=torch.float64),
            "loss_mask": torch.ones(1, 1),
        }
    )
    value, _ = clipped(logp, batch, config)
    value.sum().backward()
    return value.item(), logp.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # the gradient of -A r in log p is -A r
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # clipped above at 1.2
        (0.5, 2.0, -1.0, -1.0),  # below, with A > 0, the unclipped one is the larger loss
        (0.5, -2.0, 1.6, 0.0),  # clipped below at 0.8
        (1.5, -2.0, 3.0, 3.0),
    ],
)
def test_both_sides(ratio, advantage, loss, gradient):
    assert loss_of(ratio, advantage) == pytest.approx((loss, gradient))


def test_asymmetric_ranges():
    config = ClippedConfig(clip_ratio_low=0.1, clip_ratio_high=0.3)
    assert loss_of(1.25, 1.0, config) == pytest.approx((-1.25, -1.25))
    assert loss_of(1.4, 1.0, config) == pytest.approx((-1.3, 0.0))
    assert loss_of(0.85, -1.0, config) == pytest.approx((0.9, 0.0))


def test_the_dual_clip_bounds_the_loss_of_negative_advantages():
    config = ClippedConfig(clip_ratio_dual=3.0)
    assert loss_of(5.0, -1.0, config) == pytest.approx((3.0, 0.0))
    assert loss_of(2.0, -1.0, config) == pytest.approx((2.0, 2.0))
    assert loss_of(5.0, 1.0, config) == pytest.approx((-1.2, 0.0))


@pytest.mark.parametrize("advantage", [1.5, -1.5])
@pytest.mark.parametrize("ratio", [0.6, 0.95, 1.1, 1.7])
def test_gradient_by_finite_differences(ratio, advantage):
    step = 1e-6
    up, _ = loss_of(ratio * math.exp(step), advantage)
    down, _ = loss_of(ratio * math.exp(-step), advantage)
    assert loss_of(ratio, advantage)[1] == pytest.approx((up - down) / (2 * step), abs=1e-6)


def test_metrics_by_hand():
    batch = Batch(
        {
            "advantages": torch.tensor([[1.0, 1.0, 1.0]]),
            "old_log_probs": torch.zeros(1, 3),
            "loss_mask": torch.tensor([[1, 1, 0]]),
        }
    )
    logp = torch.tensor([[math.log(1.5), 0.0, math.log(9.0)]])
    _, metrics = clipped(logp, batch, ClippedConfig())
    assert [float(x) for x in metrics["clip_fraction"]] == [1.0, 2.0]
    # r - 1 - log r at 1.5, and 0 at 1
    assert float(metrics["kl_to_sampler"][0]) == pytest.approx(0.5 - math.log(1.5))


@pytest.mark.parametrize("missing", ["advantages", "old_log_probs"])
def test_what_it_needs_is_named(missing):
    values = {
        "advantages": torch.ones(1, 1),
        "old_log_probs": torch.zeros(1, 1),
        "loss_mask": torch.ones(1, 1),
    }
    del values[missing]
    with pytest.raises(ContractError, match=missing):
        WeightedLoss(clipped, ClippedConfig())(torch.zeros(1, 1), Batch(values))
