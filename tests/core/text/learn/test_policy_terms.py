"""Entropy, divergence and value terms of losses, and the correction for the sampler, by hand."""

import math

import pytest
import torch

from plugrl.core.config.check import Checker, configure
from plugrl.core.errors import ContractError
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.batch_shaping import Shaper, overlong_penalty
from plugrl.core.text.learn.dead_coefficients import dead_terms
from plugrl.core.text.learn.importance_correction import (
    SamplerCorrectionConfig,
    correct_for_sampler,
)
from plugrl.core.text.learn.kl import AdaptiveKl, FixedKl, KlController, kl_estimate, kl_loss
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, SAMPLER_WEIGHTS, Term, WeightedLoss
from plugrl.core.text.learn.policy_options import (
    KlRewardConfig,
    OverlongConfig,
    ValueConfig,
    terms_of,
    value_loss,
)
from plugrl.core.text.self_hosted import SelfHostedTrainer

KINDS = ("kl", "abs", "mse", "low_var_kl")


class Plain(SelfHostedTrainer):
    def _prepare_batch(self, batch):
        return batch, {}


def terms(values=False, **options):
    return tuple(terms_of(configure(Plain, {"algorithm": options}).algorithm, values=values))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("kl", [0.0, 0.5, -0.5]),
        ("abs", [0.0, 0.5, 0.5]),
        ("mse", [0.0, 0.125, 0.125]),
        # exp(-x) - 1 + x at 0, 0.5 and -0.5
        ("low_var_kl", [0.0, 0.1065307, 0.1487213]),
    ],
)
def test_kinds_of_divergence(kind, expected):
    logp, reference = torch.tensor([-1.0, -1.0, -1.5]), torch.tensor([-1.0, -1.5, -1.0])
    assert kl_estimate(logp, reference, kind).tolist() == pytest.approx(expected, abs=1e-6)
    assert kl_loss(logp, reference, kind).tolist() == pytest.approx(expected, abs=1e-6)


def test_the_low_variance_kind_is_k3_up_to_twenty_nats():
    logp = torch.tensor([-8.0, 8.0, -25.0], dtype=torch.float64, requires_grad=True)
    far = kl_estimate(logp, torch.zeros(3, dtype=torch.float64), "low_var_kl")
    # exp(-x) - 1 + x; beyond 20 the exponent stays there.
    values = [math.exp(8) - 9, math.exp(-8) + 7, math.exp(20) - 26]
    assert far.tolist() == pytest.approx(values)
    far.sum().backward()
    # 1 - exp(-x), which never ends: a token far below the reference is drawn up, one above down.
    slopes = [1 - math.exp(8), 1 - math.exp(-8), 1 - math.exp(20)]
    assert logp.grad.tolist() == pytest.approx(slopes)


def test_the_low_variance_kind_brings_a_distant_policy_back_to_the_reference():
    """Descent on the expected loss from probability 0.99, where the reference has 0.001."""
    logits = torch.tensor([0.99, 0.01], dtype=torch.float64).log().requires_grad_()
    reference = torch.tensor([0.001, 0.999], dtype=torch.float64).log()
    for _ in range(1500):
        logp = logits.log_softmax(0)
        loss = (logp.exp().detach() * kl_loss(logp, reference, "low_var_kl")).sum()
        (gradient,) = torch.autograd.grad(loss, logits)
        with torch.no_grad():
            logits -= gradient
    assert float(logits.softmax(0)[0].detach()) == pytest.approx(0.001, rel=0.2)


@pytest.mark.parametrize(
    ("kind", "slope"),
    [("kl", 0.5), ("abs", 1.0), ("mse", 0.5), ("low_var_kl", 1 - math.exp(-0.5))],
)
def test_the_gradient_of_each_kind_depends_on_the_reference(kind, slope):
    logp = torch.tensor([-1.0, -1.0], requires_grad=True)
    kl_loss(logp, torch.tensor([-1.5, -1.0]), kind).sum().backward()
    assert logp.grad.tolist() == pytest.approx([slope, 0.0], abs=1e-6)


def test_the_gradient_of_kl_is_that_of_the_divergence_in_expectation():
    """The mean over all tokens equals the derivative of the exact divergence."""
    logits = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.5, -1.0], dtype=torch.float64).log_softmax(0)
    exact = (logits.softmax(0) * (logits.log_softmax(0) - reference)).sum()
    (want,) = torch.autograd.grad(exact, logits)
    logp = logits.log_softmax(0)
    estimate = (logp.exp().detach() * kl_loss(logp, reference, "kl")).sum()
    (got,) = torch.autograd.grad(estimate, logits)
    torch.testing.assert_close(got, want)


def test_controllers():
    fixed, adaptive = FixedKl(0.1), AdaptiveKl(0.1, target=6.0, horizon=1000)
    for controller in (fixed, adaptive):
        controller.update(9.0, 50)
    assert fixed.value == 0.1
    # 9 / 6 - 1 is clipped at 0.2: 0.1 (1 + 0.2 * 50 / 1000)
    assert adaptive.value == pytest.approx(0.101)
    adaptive.update(5.4, 100)
    assert adaptive.value == pytest.approx(0.101 * (1 - 0.1 * 0.1))
    section = configure_kl(coefficient=0.3, controller="adaptive")
    assert isinstance(KlController.of(section), AdaptiveKl)
    assert isinstance(KlController.of(configure_kl(coefficient=0.3)), FixedKl)


def configure_kl(**options):
    return configure(Plain, {"algorithm": {"kl": {"reward": options}}}).algorithm.kl.reward


def batch(**values):
    mask = torch.tensor([[0, 1, 1], [0, 1, 0]])
    given = {
        "loss_mask": mask,
        "old_log_probs": torch.tensor([[0.0, -1.0, -2.0], [0.0, -0.5, 0.0]]),
        "ref_log_probs": torch.tensor([[0.0, -1.5, -2.0], [0.0, -1.5, 0.0]]),
        "entropy": torch.tensor([[0.0, 0.5, 0.7], [0.0, 0.2, 0.0]], requires_grad=True),
        LOSS_WEIGHTS: mask / 3,
    }
    return Batch(given | values)


def plain(logp, batch, config):
    return -logp, {}


def test_terms_are_added_with_their_coefficients():
    loss = WeightedLoss(plain, {}, terms(entropy_coefficient=0.1, kl={"loss": {"coefficient": 2}}))
    assert loss.needs == ("entropy",)
    logp = batch().values["old_log_probs"].clone().requires_grad_()
    total, metrics = loss(logp, batch())
    # low_var_kl at x = 0.5, 0, 1: exp(-x) - 1 + x
    kl = 0.1065307 + math.exp(-1)
    assert total.item() == pytest.approx((3.5 - 0.1 * 1.4 + 2 * kl) / 3)
    assert metrics["entropy"] == pytest.approx((1.4, 3.0))
    assert metrics["kl"] == pytest.approx((kl, 3.0))


def test_weights_of_the_sampler_leave_terms_alone():
    weights = torch.tensor([[0.0, 2.0, 0.0], [0.0, 1.0, 0.0]])
    data = batch(**{SAMPLER_WEIGHTS: weights})
    loss = WeightedLoss(plain, {}, terms(entropy_coefficient=0.1))
    total, _ = loss(data.values["old_log_probs"].clone().requires_grad_(), data)
    assert total.item() == pytest.approx((2 * 1.0 + 0.5 - 0.1 * 1.4) / 3)


def test_without_terms_a_loss_stays_as_lean():
    def skipping(logp, batch, config):
        return -logp, {}

    skipping.skips_zero_advantage = True
    assert terms() == ()
    assert WeightedLoss(skipping, {}, terms()).skips_zero_advantage
    # With a term, rows without an advantage have a gradient.
    assert not WeightedLoss(skipping, {}, terms(entropy_coefficient=0.1)).skips_zero_advantage


def test_a_term_that_reaches_no_gradient_is_found():
    still = Term("kl.loss.coefficient", 0.5, lambda logp, batch: (logp.detach(), {}))
    live = terms(values=True, entropy_coefficient=0.1, kl={"loss": {"coefficient": 0.2}})
    data = batch(old_values=torch.zeros(2, 3), returns=torch.ones(2, 3))
    assert len(live) == 3
    assert dead_terms(WeightedLoss(plain, {}, live), data) == {}
    assert dead_terms(WeightedLoss(plain, {}, (*live, still)), data) == {"kl.loss.coefficient": 0.5}


def test_the_value_loss_by_hand():
    values = torch.tensor([[1.0, 2.0, 0.0]], requires_grad=True)
    data = Batch(
        {
            "values": values,
            "old_values": torch.tensor([[0.5, 1.9, 0.0]]),
            "returns": torch.tensor([[2.0, 2.5, 0.0]]),
            "loss_mask": torch.tensor([[1, 1, 0]]),
        }
    )
    loss, metrics = value_loss(data, 0.2)
    # Values moved by 0.5 and 0.1, at most 0.2 count: errors (0.7 - 2)^2 over (1 - 2)^2, and 0.5^2.
    assert loss[0].tolist() == pytest.approx([1.69 / 2, 0.25 / 2, 0.0])
    loss.sum().backward()
    assert values.grad[0].tolist() == pytest.approx([0.0, -0.5, 0.0])
    assert [float(x) for x in metrics["value_clip_fraction"]] == [1.0, 2.0]
    assert value_loss(data, None)[0][0].tolist() == pytest.approx([0.5, 0.125, 0.0])
    del data.values["returns"]
    with pytest.raises(ContractError, match="returns"):
        value_loss(data, 0.2)


def corrected(level, mode, **bounds):
    data = batch()
    trainer = data.values["old_log_probs"] + torch.tensor([[0.0, 1.0, 0.2], [0.0, -0.5, 9.0]])
    config = SamplerCorrectionConfig(level, mode, **bounds)
    metrics = correct_for_sampler(data, trainer, config)
    return data, metrics


def test_ratios_of_tokens():
    data, metrics = corrected("token", "truncate")
    e = math.exp
    expected = [0.0, 2.0, e(0.2), 0.0, e(-0.5), 0.0]
    assert data.values[SAMPLER_WEIGHTS].flatten().tolist() == pytest.approx(expected)
    assert data.values["sampler_log_probs"][0, 1] == -1.0
    assert data.values["old_log_probs"][0, 1] == 0.0
    assert metrics == pytest.approx(
        {
            "sampler_ratio": (e(1) + e(0.2) + e(-0.5)) / 3,
            "sampler_ratio_min": e(-0.5),
            "sampler_ratio_max": e(1),
            "sampler_outside": 1 / 3,
            "sampler_kl": (e(1) + e(0.2) + e(-0.5) - 3 - 0.7) / 3,
        }
    )
    masked, _ = corrected("token", "mask", floor=0.7)
    expected = [0.0, 0.0, e(0.2), 0.0, 0.0, 0.0]
    assert masked.values[SAMPLER_WEIGHTS].flatten().tolist() == pytest.approx(expected)


def test_ratios_of_sequences():
    data, metrics = corrected("sequence", "truncate", cap=3.0)
    expected = [0.0, 3.0, 3.0, 0.0, math.exp(-0.5), 0.0]
    assert data.values[SAMPLER_WEIGHTS].flatten().tolist() == pytest.approx(expected)
    assert metrics["sampler_outside"] == 0.5
    assert metrics["sampler_ratio_max"] == pytest.approx(math.exp(1.2))
    masked, _ = corrected("sequence", "mask", cap=3.0)
    expected = [0.0, 0.0, 0.0, 0.0, math.exp(-0.5), 0.0]
    assert masked.values[SAMPLER_WEIGHTS].flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_equal_weights_are_not_corrected_and_extremes_are_finite(level, mode):
    data = batch()
    same = data.values["old_log_probs"].clone()
    metrics = correct_for_sampler(data, same, SamplerCorrectionConfig(level, mode))
    assert torch.equal(data.values[SAMPLER_WEIGHTS], data.values["loss_mask"].float())
    assert (metrics["sampler_ratio"], metrics["sampler_kl"]) == (1.0, 0.0)
    far = batch()
    extreme = torch.tensor([[0.0, 400.0, 300.0], [0.0, -900.0, 0.0]])
    found = correct_for_sampler(far, extreme, SamplerCorrectionConfig(level, mode))
    assert all(math.isfinite(value) for value in found.values())
    assert far.values[SAMPLER_WEIGHTS].isfinite().all()


def test_the_penalty_of_long_answers():
    # DAPO's equation 13 with 16 tokens, the last 4 of them punished.
    lengths = torch.tensor([0, 12, 13, 14, 16, 20])
    expected = [0.0, 0.0, -0.25, -0.5, -1.0, -1.0]
    assert overlong_penalty(lengths, 16, 4).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("controller", "expected"), [("fixed", 0.3), ("adaptive", 0.7)])
def test_a_checkpoint_brings_back_what_was_adapted_alone(controller, expected):
    section = {"reward": {"coefficient": 0.3, "controller": controller}}
    shaper = Shaper(configure(Plain, {"algorithm": {"kl": section}}).algorithm, None)
    shaper.load_state_dict({"policy": 0.7})
    assert shaper.state_dict() == {"policy": expected}


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (KlRewardConfig, {"coefficient": -1.0}),
        (KlRewardConfig, {"target": 0.0}),
        (KlRewardConfig, {"controller": "adaptive"}),
        (ValueConfig, {"coefficient": 0.0}),
        (ValueConfig, {"clip": 0.0}),
        (OverlongConfig, {"buffer": -1}),
        (OverlongConfig, {"length": 3, "buffer": 4}),
        (SamplerCorrectionConfig, {"cap": 0.5}),
        (SamplerCorrectionConfig, {"floor": 1.5}),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make, options):
    checker = Checker()
    checker.fields(options, make, ())
    assert any(next(iter(options)) in str(fault) for fault in checker.faults)
