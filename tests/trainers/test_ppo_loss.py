"""The losses of PPO against hand-worked numbers and TorchRL's."""

import math

import pytest
import torch
from tensordict import TensorDict
from torchrl.objectives import ClipPPOLoss, KLPENPPOLoss

from plugrl.trainers.vanilla_ppo import PpoLoss
from tests.trainers.table_agent import TableAgent, gradients, random_agent, random_rows


def rows_of(ratios, advantages, *, targets=None, collected=None):
    """One row in state 0 for each ratio; action 0, which a fair coin takes now."""
    count = len(ratios)
    zeros = [0.0] * count
    return TensorDict(
        {
            "observation": torch.zeros(count, 1, dtype=torch.int64),
            "action": torch.zeros(count, dtype=torch.int64),
            "action_log_prob": torch.tensor([math.log(0.5 / ratio) for ratio in ratios]),
            "advantage": torch.tensor(advantages)[:, None],
            "value_target": torch.tensor(targets or zeros)[:, None],
            "state_value": torch.tensor(collected or zeros)[:, None],
        },
        batch_size=[count],
    )


def fair_coin(value=0.0):
    return TableAgent([[0.0, 0.0]], [value])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),  # the slope of -r A in log pi is -r A
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # clipped at 1.2
        (0.5, 2.0, -1.0, -1.0),  # at A > 0 a small ratio is not clipped
        (0.5, -2.0, 1.6, 0.0),  # clipped at 0.8
        (1.5, -2.0, 3.0, 3.0),  # at A < 0 a large ratio is not clipped
    ],
)
def test_both_sides_of_the_clip(ratio, advantage, loss, slope):
    agent = fair_coin()
    losses = PpoLoss(agent, clip_epsilon=0.2, normalize_advantage=False, critic_coef=0.0)(
        rows_of([ratio], [advantage])
    )
    assert losses["loss_objective"].item() == pytest.approx(loss)
    # The log-probability of action 0 has slope 1 - 1/2 in its logit and -1/2 in the other.
    logits, _ = gradients(agent, losses)
    assert logits[0].tolist() == pytest.approx([slope / 2, -slope / 2])


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_a_ratio_at_the_bound_itself_still_learns(advantage):
    agent = fair_coin()
    options = {"clip_epsilon": 0.0, "normalize_advantage": False, "critic_coef": 0.0}
    losses = PpoLoss(agent, **options)(rows_of([1.0], [advantage]))
    logits, _ = gradients(agent, losses)
    assert logits[0].tolist() == [-advantage / 2, advantage / 2]


def test_the_losses_can_be_differentiated_twice():
    agent = random_agent().double()
    rows = random_rows(agent, count=16).apply(lambda x: x.double() if x.is_floating_point() else x)
    objective = PpoLoss(agent, clip_value=0.2, entropy_eps=0.1)

    def total(logits, values):
        parameters = {"agent.logits": logits, "agent.values": values}
        losses = torch.func.functional_call(objective, parameters, (rows,))
        return sum(value for name, value in losses.items() if name.startswith("loss_"))

    assert torch.autograd.gradgradcheck(total, (agent.logits, agent.values))


def test_metrics_of_the_clip():
    losses = PpoLoss(fair_coin(), clip_epsilon=0.2)(
        rows_of([1.0, 1.1, 1.5, 0.5], [1.0, 2.0, 3.0, 4.0])
    )
    assert losses["clip_fraction"].item() == pytest.approx(2 / 4)
    # The mean of r - 1 - log r.
    expected = sum(r - 1 - math.log(r) for r in (1.0, 1.1, 1.5, 0.5)) / 4
    assert losses["kl"].item() == pytest.approx(expected)
    assert losses["entropy"].item() == pytest.approx(math.log(2))
    assert not any(losses[name].requires_grad for name in ("clip_fraction", "kl", "entropy"))


def test_advantages_are_scaled_within_the_minibatch():
    # 1 and 3 have mean 2 and deviation sqrt(2): -1/sqrt(2) and 1/sqrt(2).
    losses = PpoLoss(fair_coin(), normalize_advantage=True)(rows_of([1.0, 0.9], [1.0, 3.0]))
    expected = -(-1 / math.sqrt(2) + 0.9 / math.sqrt(2)) / 2
    assert losses["loss_objective"].item() == pytest.approx(expected, rel=1e-5)


def test_the_advantage_of_a_single_row_is_left_as_it_is():
    losses = PpoLoss(fair_coin(), normalize_advantage=True)(rows_of([1.1], [2.0]))
    assert losses["loss_objective"].item() == pytest.approx(-2.2)


@pytest.mark.parametrize(
    ("kind", "loss", "slope"), [("l2", 9.0, 6.0), ("l1", 3.0, 1.0), ("smooth_l1", 2.5, 1.0)]
)
def test_kinds_of_value_loss(kind, loss, slope):
    agent = fair_coin(value=4.0)
    losses = PpoLoss(agent, loss_critic_type=kind, critic_coef=0.5)(
        rows_of([1.0], [0.0], targets=[1.0])
    )
    assert losses["loss_critic"].item() == pytest.approx(0.5 * loss)
    assert gradients(agent, losses)[1].item() == pytest.approx(0.5 * slope)


@pytest.mark.parametrize(
    ("value", "loss", "slope"),
    [
        (0.1, 0.81, -1.8),  # within 0.2 of the collected 0: as without clipping
        (0.5, 0.64, 0.0),  # nearer to the target than 0.2 would be: it counts as 0.2
        (-0.5, 2.25, -3.0),  # the clipped -0.2 would make the loss smaller: it does not count
    ],
)
def test_clipped_values(value, loss, slope):
    agent = fair_coin(value)
    losses = PpoLoss(agent, clip_value=0.2, critic_coef=1.0)(
        rows_of([1.0], [0.0], targets=[1.0], collected=[0.0])
    )
    assert losses["loss_critic"].item() == pytest.approx(loss)
    assert gradients(agent, losses)[1].item() == pytest.approx(slope)


def test_an_annealed_clip_has_the_numbers_of_a_narrower_one():
    rows = rows_of([1.5, 0.5, 1.1], [2.0, -2.0, 1.0], targets=[1.0, 2.0, -1.0])
    rows["state_value"] = torch.tensor([[0.5], [-0.5], [0.04]])
    annealed = PpoLoss(fair_coin(), clip_epsilon=0.2, clip_value=0.2, anneal_clip=True)
    narrow = PpoLoss(fair_coin(), clip_epsilon=0.05, clip_value=0.05)
    assert annealed(rows)["loss_objective"].item() != pytest.approx(
        narrow(rows)["loss_objective"].item()
    )
    annealed.clip_epsilon.fill_(0.05)
    annealed.clip_value.fill_(0.05)
    for name, expected in narrow(rows).items():
        assert annealed(rows)[name].item() == pytest.approx(expected.item()), name
    assert annealed.state_dict().keys() == narrow.state_dict().keys()


def test_the_entropy_bonus():
    agent = TableAgent([[math.log(3.0), 0.0]], [0.0])
    losses = PpoLoss(agent, entropy_eps=0.1)(rows_of([1.0], [0.0]))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert losses["entropy"].item() == pytest.approx(entropy)
    assert losses["loss_entropy"].item() == pytest.approx(-0.1 * entropy)
    # d entropy / d logit_0 = -p_0 (log p_0 + entropy).
    slope = -0.1 * -0.75 * (math.log(0.75) + entropy)
    assert gradients(agent, losses)[0][0, 0].item() == pytest.approx(slope)


def penalty(agent, **options):
    return PpoLoss(agent, loss_type="kl_penalty", normalize_advantage=False, **options)


def test_the_penalty_on_the_divergence():
    agent = fair_coin()
    losses = penalty(agent, kl_beta=3.0, kl_target=0.1)(rows_of([1.5, 0.5], [2.0, -2.0]))
    divergence = ((1.5 - 1 - math.log(1.5)) + (0.5 - 1 - math.log(0.5))) / 2
    assert losses["kl"].item() == pytest.approx(divergence)
    assert losses["loss_objective"].item() == pytest.approx(-(3.0 - 1.0) / 2 + 3.0 * divergence)
    # Slope in log pi of row i: (-r A + beta (r - 1)) / 2; half of it in the logit.
    slope = ((-3.0 + 3.0 * 0.5) + (1.0 + 3.0 * -0.5)) / 2
    assert gradients(agent, losses)[0][0, 0].item() == pytest.approx(slope / 2)


@pytest.mark.parametrize(
    ("ratio", "beta"),
    [(1.0, 0.5), (1.16, 1.0), (1.3, 2.0)],  # divergences 0, 0.0116 and 0.0376 at a target of 0.01
)
def test_beta_is_steered_after_each_minibatch(ratio, beta):
    objective = penalty(fair_coin(), kl_beta=1.0)
    first = objective(rows_of([ratio], [1.0]))
    assert first["kl_beta"].item() == beta
    second = objective(rows_of([ratio], [1.0]))
    divergence = first["kl"].item()
    assert second["loss_objective"].item() == pytest.approx(-ratio + beta * divergence, rel=1e-4)


def test_beta_comes_back_from_a_long_time_without_divergence():
    objective = penalty(fair_coin(), kl_beta=1.0)
    for _ in range(200):
        objective(rows_of([1.0], [1.0]))
    lowest = objective.beta.item()
    objective(rows_of([1.5], [1.0]))
    assert objective.beta.item() == 2 * lowest > 0


def test_beta_is_not_steered_in_evaluation():
    objective = penalty(fair_coin(), kl_beta=1.0).eval()
    objective(rows_of([1.5], [1.0]))
    assert objective.beta.item() == 1.0


def test_beta_is_part_of_the_state():
    before, after = penalty(fair_coin()), penalty(fair_coin())
    before(rows_of([1.5], [1.0]))
    before(rows_of([1.5], [1.0]))
    after.load_state_dict(before.state_dict())
    assert after.beta.item() == 4.0


@pytest.mark.parametrize("kind", ["l2", "smooth_l1", "l1"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("clip_value", [None, 0.2])
def test_the_clip_equals_torchrl(kind, normalize, clip_value):
    agent = random_agent()
    rows = random_rows(agent)
    ours = PpoLoss(
        agent,
        clip_epsilon=0.2,
        critic_coef=0.7,
        entropy_eps=0.03,
        normalize_advantage=normalize,
        loss_critic_type=kind,
        clip_value=clip_value,
    )(rows)
    theirs = ClipPPOLoss(
        *agent.operators(),
        clip_epsilon=0.2,
        critic_coeff=0.7,
        entropy_coeff=0.03,
        normalize_advantage=normalize,
        loss_critic_type=kind,
        clip_value=clip_value,
        functional=False,
    )(rows.clone())
    for name in ("loss_objective", "loss_critic", "loss_entropy", "entropy", "clip_fraction"):
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-6, rtol=1e-5)
    expected = gradients(agent, {k: theirs[k] for k in ours if k.startswith("loss_")})
    for one, other in zip(gradients(agent, ours), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def rows_by_frequency():
    """Old probabilities 1/2, 1/4, 1/4 and rows of these frequencies, so that means are exact."""
    old = torch.tensor([0.5, 0.25, 0.25]).log()
    action = torch.tensor([0, 0, 1, 2])
    return TensorDict(
        {
            "observation": torch.zeros(4, 1, dtype=torch.int64),
            "action": action,
            "action_log_prob": old[action],
            "logits": old.expand(4, 3).clone(),
            "advantage": torch.tensor([1.0, 1.0, -2.0, 0.5])[:, None],
            "value_target": torch.tensor([1.0, 0.0, 2.0, 0.5])[:, None],
        },
        batch_size=[4],
    )


def both_penalties(agent, *, increment):
    options = {"loss_critic_type": "l2", "normalize_advantage": False}
    theirs = KLPENPPOLoss(
        *agent.operators(),
        dtarg=0.01,
        increment=increment,
        entropy_bonus=False,
        critic_coeff=0.5,
        functional=False,
        **options,
    )
    ours = PpoLoss(agent, loss_type="kl_penalty", kl_target=0.01, kl_increment=increment, **options)
    return ours, theirs


def test_the_penalty_equals_torchrl():
    # TorchRL works the divergence out instead of estimating it.
    agent = TableAgent([[0.3, -0.2, 0.4]], [0.5])
    ours, theirs = both_penalties(agent, increment=2.0)
    for beta in (2.0, 4.0, 8.0):
        mine, other = ours(rows_by_frequency()), theirs(rows_by_frequency())
        for name in ("loss_objective", "loss_critic"):
            torch.testing.assert_close(mine[name], other[name], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(mine["kl"], other["kl"].mean(), atol=1e-6, rtol=1e-5)
        assert ours.beta.item() == theirs.beta.item() == beta


def test_the_gradient_of_the_penalty_equals_torchrl():
    # With a fixed beta: when TorchRL steers it, its backward pass uses the new one.
    agent = TableAgent([[0.3, -0.2, 0.4]], [0.5])
    ours, theirs = both_penalties(agent, increment=1.0)
    mine, other = ours(rows_by_frequency()), theirs(rows_by_frequency())
    expected = gradients(agent, {k: other[k] for k in mine if k.startswith("loss_")})
    for one, reference in zip(gradients(agent, mine), expected, strict=True):
        torch.testing.assert_close(one, reference, atol=1e-6, rtol=1e-5)
