"""Policy-gradient losses and their terms: values by hand, of TRL, and finite differences."""

import json
import math
from pathlib import Path

import peers
import pytest
import torch

from plugrl.core.config.check import configure
from plugrl.core.errors import ContractError
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, SAMPLER_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.policy_options import terms_of
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.self_hosted import SelfHostedTrainer
from plugrl.trainers.losses.gspo import GspoConfig

NUMBERS = {
    "logp": [[-1.0, -2.0, -0.5, -1.5], [-0.3, -1.2, -2.5, 0.0], [-2.0, -0.1, -0.9, -0.4]],
    "old": [[-1.1, -1.2, -0.6, -1.0], [-0.5, -1.0, -2.6, 0.0], [-1.0, -0.2, -0.9, -2.4]],
    "ref": [[-1.3, -2.2, -0.4, -1.5], [-0.4, -1.0, -2.0, 0.0], [-2.5, -0.3, -0.7, -0.9]],
    "mask": [[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 1, 1]],
    "advantages": [1.0, -0.5, 0.75],
}
SEQUENCE_WEIGHTS = [[2.0], [0.5], [0.0]]
CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
# Options of TRL; loss, its options, algorithm and aggregation here; the loss of TRL 1.16.0.
CASES = {
    "grpo": (
        {"loss_type": "grpo"}, ("clipped", CLIP, {}, "seq-mean-token-mean"), -0.3181009590625763,
    ),
    "dr_grpo": (
        {"loss_type": "dr_grpo"},
        ("clipped", CLIP, {}, "seq-mean-token-sum-norm"),
        -0.20441438257694244,
    ),
    "dapo": ({"loss_type": "dapo"}, ("clipped", CLIP, {}, "token-mean"), -0.3679458796977997),
    # TRL's bound is the weight itself, not what is over 1.
    "cispo": (
        {"loss_type": "cispo", "high": 2.0},
        ("cispo", {"clip_ratio_high": 1.0}, {}, "token-mean"),
        0.32371172308921814,
    ),
    "gspo": (
        {"loss_type": "grpo", "level": "sequence", "low": 3e-4, "high": 4e-4},
        ("gspo", {}, {}, "seq-mean-token-mean"),
        -0.33097484707832336,
    ),
    "gspo wide": (
        {"loss_type": "grpo", "level": "sequence", "low": 0.5, "high": 0.5},
        ("gspo", {"clip_ratio_low": 0.5, "clip_ratio_high": 0.5}, {}, "seq-mean-token-mean"),
        -0.42977797985076904,
    ),
    "kl": (
        {"loss_type": "dapo", "beta": 0.1},
        ("clipped", CLIP, {"kl": {"loss": {"coefficient": 0.1}}}, "token-mean"),
        -0.3632044196128845,
    ),
    "weights": (
        {"loss_type": "dapo", "beta": 0.1, "weights": SEQUENCE_WEIGHTS},
        ("clipped", CLIP, {"kl": {"loss": {"coefficient": 0.1}}}, "token-mean"),
        -0.5698662996292114,
    ),
}  # fmt: skip
# Gradients of the three most intricate of them, by TRL 1.16.0.
GRADIENTS = {
    "cispo": [
        [-0.1105171, -0.0449329, -0.1105171, -0.0606531],
        [0.0610701, 0.0409365, 0.0552585, 0.0],
        [-0.0275910, 0.0, -0.0750000, -0.1500000],
    ],
    "gspo wide": [
        [-0.0632977, -0.0632977, -0.0632977, -0.0632977],
        [0.0574386, 0.0574386, 0.0574386, 0.0],
        [-0.1163010, 0.0, -0.1163010, -0.1163010],
    ],
    "weights": [
        [-0.2184424, -0.0880531, -0.2220859, -0.1213061],
        [0.0314867, 0.0182542, 0.0211421, 0.0],
        [0.0039347, 0.0, -0.0022140, 0.0039347],
    ],
}


class Plain(SelfHostedTrainer):
    def _prepare_batch(self, batch):
        return batch, {}


def algorithm(**options):
    return configure(Plain, {"algorithm": options}).algorithm


def weighted(name, options=None, terms=None, values=False):
    function = default_registry().get("loss", name)
    added = tuple(terms_of(algorithm(**(terms or {})), values=values))
    return WeightedLoss(function, configure(function, options or {}), added)


def batch(aggregation="token-mean", dtype=torch.float32, **values):
    mask = torch.tensor(NUMBERS["mask"])
    given = {
        "loss_mask": mask,
        "old_log_probs": torch.tensor(NUMBERS["old"], dtype=dtype),
        "ref_log_probs": torch.tensor(NUMBERS["ref"], dtype=dtype),
        "teacher_log_probs": torch.tensor(NUMBERS["ref"], dtype=dtype),
        "advantages": torch.tensor(NUMBERS["advantages"], dtype=dtype)[:, None] * mask,
        LOSS_WEIGHTS: aggregation_weights(mask, aggregation, 6).to(dtype),
    }
    return Batch(given | values)


def outcome(loss, data, logp=None):
    logp = torch.tensor(NUMBERS["logp"]) if logp is None else logp
    logp = logp.clone().requires_grad_()
    value, metrics = loss(logp, data)
    value.backward()
    return value.item(), logp.grad, metrics


def ours(name):
    loss, options, terms, aggregation = CASES[name][1]
    data = batch(aggregation)
    if name == "weights":
        data.values[SAMPLER_WEIGHTS] = torch.tensor(SEQUENCE_WEIGHTS).expand(3, 4)
    return outcome(weighted(loss, options, terms), data)


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_trl(name):
    value, gradient, _ = ours(name)
    assert value == pytest.approx(CASES[name][2], rel=1e-5)
    if name in GRADIENTS:
        torch.testing.assert_close(gradient, torch.tensor(GRADIENTS[name]), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_losses_and_gradients_equal_those_of_trl_now(tmp_path):
    given = NUMBERS | {"cases": {name: case[0] for name, case in CASES.items()}}
    program = Path(__file__).with_name("trl_policy.py")
    theirs = json.loads(peers.answer(program, tmp_path, given=json.dumps(given)))
    assert theirs.keys() == CASES.keys()
    for name, (value, gradient) in theirs.items():
        assert value == pytest.approx(CASES[name][2], rel=1e-5)
        torch.testing.assert_close(ours(name)[1], torch.tensor(gradient), rtol=1e-4, atol=1e-6)


def test_cross_entropy_by_hand():
    value, gradient, metrics = outcome(weighted("cross_entropy"), batch())
    # Ten tokens: -5.0 in the first row, -4.0 in the second, -2.0 - 0.9 - 0.4 in the third.
    assert value == pytest.approx(12.3 / 10)
    assert gradient.tolist() == [pytest.approx([-0.1 * m for m in row]) for row in NUMBERS["mask"]]
    total, count = metrics["log_prob"]
    assert (float(total), float(count)) == (pytest.approx(-12.3), 10.0)


def test_importance_sampling_by_hand():
    # -A r of the trained tokens, by ten of them; the gradient in logp is the same.
    value, gradient, metrics = outcome(weighted("importance_sampling"), batch())
    first = [math.exp(0.1), math.exp(-0.8), math.exp(0.1), math.exp(-0.5)]
    second = [math.exp(0.2), math.exp(-0.2), math.exp(0.1)]
    third = [math.exp(-1.0), 1.0, math.exp(2.0)]
    expected = -(sum(first) - 0.5 * sum(second) + 0.75 * sum(third)) / 10
    assert value == pytest.approx(expected)
    assert gradient[2].tolist() == pytest.approx(
        [-0.075 * third[0], 0.0, -0.075 * third[1], -0.075 * third[2]]
    )
    assert metrics["ratio"] == pytest.approx((sum(first) + sum(second) + sum(third), 10.0))


def test_a_cispo_token_keeps_its_gradient_over_the_cap():
    # Ratios are 0.37, 1 and 7.39 in the last row; the cap is 2.
    _, gradient, metrics = outcome(weighted("cispo", {"clip_ratio_high": 1.0}), batch())
    assert gradient[2, 3].item() == pytest.approx(-0.75 * 2 / 10)
    assert metrics["clip_fraction"] == (1.0, 10.0)


@pytest.mark.parametrize("name", ["clipped", "importance_sampling", "gspo", "cispo", "reverse_kl"])
def test_each_loss_tells_the_divergence_from_the_sampler(name):
    """The mean of r - 1 - log(r) over the trained tokens (k3 of J. Schulman)."""
    numbers = zip(*(sum(NUMBERS[key], []) for key in ("logp", "old", "mask")), strict=True)
    gaps = [logp - old for logp, old, trained in numbers if trained]
    _, _, metrics = outcome(weighted(name), batch())
    expected = (sum(math.exp(gap) - 1 - gap for gap in gaps), float(len(gaps)))
    assert metrics["kl_to_sampler"] == pytest.approx(expected, rel=1e-5)


def test_tokens_of_a_gspo_row_may_have_advantages_of_their_own():
    data = batch()
    data.values["advantages"] = torch.tensor([[1.0, -2.0, 0.0, 0.5]] * 3)
    _, gradient, _ = outcome(weighted("gspo", GspoConfig(0.9, 9.0)), data)
    # s = exp(mean(0.1, -0.8, 0.1, -0.5)) for the whole row.
    ratio = math.exp(-1.1 / 4)
    assert gradient[0].tolist() == pytest.approx([-ratio / 10 * a for a in (1.0, -2.0, 0.0, 0.5)])


def test_reverse_kl_by_hand_and_by_its_teacher():
    loss = weighted("reverse_kl", {"coefficient": 0.5})
    value, gradient, _ = outcome(loss, batch())
    # Row 1: k = 0.5 (0.1, -0.2, -0.5) with ratios exp(0.2), exp(-0.2), exp(0.1).
    expected = [0.05 * math.exp(0.2), -0.1 * math.exp(-0.2), -0.25 * math.exp(0.1), 0.0]
    assert gradient[1].tolist() == pytest.approx([x / 10 for x in expected])
    assert value == pytest.approx(gradient.sum().item())
    other = batch(teacher_log_probs=torch.full((3, 4), -1.0))
    assert not torch.allclose(outcome(loss, other)[1], gradient)
    # A student that equals the teacher has nothing to learn.
    same = batch(teacher_log_probs=torch.tensor(NUMBERS["logp"]))
    assert outcome(loss, same)[0] == 0
    assert outcome(loss, same)[1].abs().max() == 0


def test_a_clipped_reverse_kl_by_hand():
    loss = weighted("reverse_kl", {"clip_ratio": 0.2})
    _, gradient, metrics = outcome(loss, batch())
    # Row 2: k = 0.5, -0.2, 0.5 at ratios 0.37, 1, 7.39. With k > 0 below, the clipped loss is
    # larger, so no gradient; with k > 0 above it is not.
    assert gradient[2].tolist() == pytest.approx([0.0, 0.0, -0.02, 0.05 * math.exp(2.0)])
    assert metrics["clip_fraction"][0] > 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("importance_sampling", {}),
        ("gspo", {"clip_ratio_low": 0.5, "clip_ratio_high": 0.5}),
        ("clipped", {"clip_ratio_dual": 3.0}),
    ],
)
def test_gradients_by_finite_differences(name, options):
    loss, data = weighted(name, options), batch(dtype=torch.float64)
    logp = torch.tensor(NUMBERS["logp"], dtype=torch.float64)
    _, gradient, _ = outcome(loss, data, logp)
    step = 1e-6
    for place in [(0, 0), (0, 3), (1, 2), (2, 0), (2, 3)]:
        seen = []
        for sign in (step, -step):
            moved = logp.clone()
            moved[place] += sign
            seen.append(outcome(loss, data, moved)[0])
        assert gradient[place].item() == pytest.approx((seen[0] - seen[1]) / (2 * step), abs=1e-6)


@pytest.mark.parametrize("filler", [50.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["clipped", "importance_sampling", "gspo", "cispo", "reverse_kl"])
def test_what_stands_outside_the_mask_changes_nothing(name, filler):
    loss = weighted(name)
    clean, dirty = batch(), batch()
    logp = torch.tensor(NUMBERS["logp"])
    masked = torch.tensor(NUMBERS["mask"]) == 0
    for key in ("old_log_probs", "teacher_log_probs", "advantages"):
        dirty.values[key] = dirty.values[key].masked_fill(masked, filler)
    one, other = outcome(loss, clean, logp), outcome(loss, dirty, logp.masked_fill(masked, -70.0))
    assert one[0] == other[0]
    assert torch.equal(one[1], other[1])
    assert {n: list(map(float, m)) for n, m in one[2].items()} == {
        n: list(map(float, m)) for n, m in other[2].items()
    }


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("importance_sampling", "advantages"),
        ("gspo", "old_log_probs"),
        ("cispo", "advantages"),
        ("reverse_kl", "teacher_log_probs"),
        ("reverse_kl", "old_log_probs"),
    ],
)
def test_what_a_loss_needs_is_named(name, missing):
    data = batch()
    del data.values[missing]
    with pytest.raises(ContractError, match=rf"loss {name} needs batch.values\['{missing}'\]"):
        outcome(weighted(name), data)
