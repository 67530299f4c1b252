"""The losses of REINFORCE and A2C against hand-worked numbers and TorchRL's."""

import math

import pytest
import torch
from tensordict import TensorDict
from torchrl import objectives

from plugrl.trainers.a2c import A2cLoss
from plugrl.trainers.reinforce import ReinforceLoss
from tests.trainers.table_agent import TableAgent, gradients, random_agent, random_rows


def hand_rows():
    """Action 0 earned 2 and action 1 earned -4; the value of their state should be 1 and 3."""
    return TensorDict(
        {
            "observation": torch.zeros(2, 1, dtype=torch.int64),
            "action": torch.tensor([0, 1]),
            "advantage": torch.tensor([[2.0], [-4.0]]),
            "value_target": torch.tensor([[1.0], [3.0]]),
        },
        batch_size=[2],
    )


def hand_agent():
    """Probabilities 3/4 and 1/4; a value of 0."""
    return TableAgent([[math.log(3.0), 0.0]], [0.0])


#: Mean of -log pi A: (-2 log 3/4 + 4 log 1/4) / 2.
POLICY_LOSS = (-2 * math.log(0.75) + 4 * math.log(0.25)) / 2
#: Its slope in logit 0: mean of -A (1[action 0] - 3/4) = (-2 (1/4) + 4 (-3/4)) / 2.
POLICY_SLOPE = (-2 * 0.25 + 4 * -0.75) / 2


def test_reinforce_by_hand():
    agent = hand_agent()
    losses = ReinforceLoss(agent)(hand_rows())
    assert set(losses) == {"loss_objective", "entropy"}
    assert losses["loss_objective"].item() == pytest.approx(POLICY_LOSS)
    logits, values = gradients(agent, losses)
    assert logits[0].tolist() == pytest.approx([POLICY_SLOPE, -POLICY_SLOPE])
    assert values is None


@pytest.mark.parametrize("make", [A2cLoss, lambda *a, **k: ReinforceLoss(*a, critic=True, **k)])
def test_with_a_critic_by_hand(make):
    agent = hand_agent()
    losses = make(agent, critic_coef=0.5, entropy_eps=0.1, normalize_advantage=False)(hand_rows())
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert losses["loss_objective"].item() == pytest.approx(POLICY_LOSS)
    assert losses["loss_critic"].item() == pytest.approx(0.5 * (1 + 9) / 2)
    assert losses["loss_entropy"].item() == pytest.approx(-0.1 * entropy)
    logits, values = gradients(agent, losses)
    slope = POLICY_SLOPE + 0.1 * 0.75 * (math.log(0.75) + entropy)
    assert logits[0].tolist() == pytest.approx([slope, -slope])
    assert values.item() == pytest.approx(0.5 * (-2 - 6) / 2)


def test_advantages_can_be_scaled():
    # 2 and -4 have mean -1 and deviation sqrt(18): 1/sqrt(2) and -1/sqrt(2).
    losses = A2cLoss(hand_agent(), normalize_advantage=True)(hand_rows())
    expected = (-math.log(0.75) + math.log(0.25)) / math.sqrt(2) / 2
    assert losses["loss_objective"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["l2", "smooth_l1", "l1"])
def test_a2c_equals_torchrl(kind):
    agent = random_agent()
    rows = random_rows(agent)
    ours = A2cLoss(agent, critic_coef=0.7, entropy_eps=0.03, loss_critic_type=kind)(rows)
    theirs = objectives.A2CLoss(
        *agent.operators(),
        critic_coeff=0.7,
        entropy_coeff=0.03,
        loss_critic_type=kind,
        functional=False,
    )(rows.clone())
    for name in ("loss_objective", "loss_critic", "loss_entropy", "entropy"):
        torch.testing.assert_close(ours[name], theirs[name].squeeze(), atol=1e-6, rtol=1e-5)
    expected = gradients(agent, {k: theirs[k] for k in ours if k.startswith("loss_")})
    for one, other in zip(gradients(agent, ours), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_reinforce_equals_torchrl():
    agent = random_agent()
    rows = random_rows(agent)
    ours = ReinforceLoss(agent, critic=True, critic_coef=1.0)(rows)
    theirs = objectives.ReinforceLoss(*agent.operators(), loss_critic_type="l2", functional=False)(
        rows.clone()
    )
    for name, their_name in (("loss_objective", "loss_actor"), ("loss_critic", "loss_value")):
        torch.testing.assert_close(ours[name], theirs[their_name], atol=1e-6, rtol=1e-5)
    expected = gradients(agent, theirs)
    for one, other in zip(gradients(agent, ours), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
