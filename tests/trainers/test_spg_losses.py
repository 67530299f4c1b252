"""The losses of spg on steps whose frequencies are exact, against the games they come from."""

import itertools

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from plugrl.trainers.opponent_shaping import inverse_hessian
from plugrl.trainers.opponent_shaping.gradients import Game, best_responses, total_gradient
from plugrl.trainers.opponent_shaping.joint_steps import first_steps, joint_steps
from plugrl.trainers.spg import SpgLoss, clipped, gains, surrogate_losses
from tests.trainers.table_agent import TableAgent

#: What leader and follower earn for each pair of actions.
LEADER = torch.tensor([[2.0, 5.0], [1.0, 3.0]], dtype=torch.float64)
FOLLOWER = torch.tensor([[1.0, 0.0], [-2.0, 2.5]], dtype=torch.float64)
#: Log-odds of action 1: probabilities 3/4 of the leader, and of the follower 1/2 and 1/4 after the
#: leader's action 0 and 1, so that episodes can be counted.
THETA = torch.tensor([3.0], dtype=torch.float64).log()
PHI = torch.tensor([0.0, -np.log(3.0)], dtype=torch.float64)


def log_probs(logit, action):
    return torch.nn.functional.logsigmoid(torch.where(action == 1, logit, -logit))


def episodes(sees):
    """Each pair of actions as often as it is likely, of 16 or 32 episodes."""
    found = []
    for a, b in itertools.product((0, 1), (0, 1)):
        after = torch.sigmoid(PHI)[a if sees else 0]
        likely = (3 / 4 if a else 1 / 4) * (after if b else 1 - after)
        found += [(a, b)] * round(32 * float(likely))
    return torch.tensor(found).T


def expected(theta, phi, payoff, sees):
    """The expected payoff, which autograd can differentiate."""
    p = torch.stack([1 - theta.sigmoid(), theta.sigmoid()])[:, 0]
    q = phi.sigmoid() if sees else phi.sigmoid()[[0, 0]]
    return (p[:, None] * torch.stack([1 - q, q], -1) * payoff).sum()


def surrogate(theta, phi, payoff, sees):
    """The loss by which the same is estimated from the episodes."""
    first, second = episodes(sees)
    likely = [log_probs(theta, first), log_probs(phi[first if sees else first * 0], second)]
    ratios = [each - each.detach() for each in likely]
    mean = payoff[first, second].mean()
    if not sees:  # one step
        steps = {"first": ratios[0][:, None], "second": ratios[1][:, None]}
        worth = (payoff[first, second] - mean)[:, None]
    else:  # two steps, in which the other one waits
        none = torch.zeros_like(ratios[0])
        steps = {"first": torch.stack([ratios[0], none], 1)}
        steps["second"] = torch.stack([none, ratios[1]], 1)
        after = torch.stack([payoff[a][second[first == a]].mean() for a in (0, 1)])[first]
        worth = torch.stack([after - mean, payoff[first, second] - after], 1)
    begins = torch.zeros(worth.shape, dtype=torch.bool)
    begins[:, 0] = True
    return surrogate_losses(steps, {"i": worth}, {"i": len(worth)}, begins)["i"]


def derivatives(function, payoff, sees):
    theta, phi = THETA.clone().requires_grad_(), PHI.clone().requires_grad_()
    value = function(theta, phi, payoff, sees)
    first = torch.autograd.grad(value, [theta, phi], create_graph=True)
    mixed = torch.autograd.grad(first[0].sum(), phi, retain_graph=True)[0]
    own = torch.stack([torch.autograd.grad(x, phi, retain_graph=True)[0] for x in first[1]])
    return [*first, mixed, own]


@pytest.mark.parametrize("sees", [False, True], ids=["at once", "in turns"])
@pytest.mark.parametrize("payoff", [LEADER, FOLLOWER], ids=["leader", "follower"])
def test_derivatives_of_both_orders_are_those_of_the_expected_payoff(payoff, sees):
    exact = derivatives(expected, payoff, sees)
    for estimate, true in zip(derivatives(surrogate, payoff, sees), exact, strict=True):
        numbers = (-estimate.detach()).reshape(-1).tolist()
        assert numbers == pytest.approx(true.detach().reshape(-1).tolist(), abs=1e-9)
    assert exact[2].abs().max() > 0.04


@pytest.mark.parametrize("sees", [False, True], ids=["at once", "in turns"])
def test_the_leader_follows_the_total_derivative_of_the_game(sees):
    def leading(function, sign):
        theta, phi = THETA.clone().requires_grad_(), PHI.clone().requires_grad_()
        losses = [sign * function(theta, phi, each, sees) for each in (LEADER, FOLLOWER)]
        game = Game({"l": losses[0], "f": losses[1]}, {"l": [theta], "f": [phi]})

        def solve(product, vector):
            return inverse_hessian.exact(product, vector, rho=0.5)

        answer = best_responses(solve, joint=True)
        alone = game.gradient("l", "l").item()
        return total_gradient(game, "l", [["f"]], answer).item(), alone

    found, alone = leading(surrogate, 1)
    assert (found, alone) == pytest.approx(leading(expected, -1), abs=1e-9)
    assert abs(found - alone) > 0.05


def test_what_happened_in_another_episode_has_no_influence():
    theta, phi = (torch.zeros(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    none = torch.zeros(2, dtype=torch.float64)
    # One row of four steps, of which the last two are another episode.
    ratios = {
        "first": torch.stack([theta[0], none[0], theta[2], none[1]])[None],
        "second": torch.stack([none[0], phi[1], none[1], phi[3]])[None],
    }
    begins = torch.tensor([[True, False, True, False]])
    worth = torch.tensor([[0.0, 2.0, 0.0, 5.0]], dtype=torch.float64)
    loss = surrogate_losses(ratios, {"i": worth}, {"i": 1}, begins)["i"]
    (by_phi,) = torch.autograd.grad(loss, phi, create_graph=True)
    mixed = torch.stack([torch.autograd.grad(x, theta, retain_graph=True)[0] for x in by_phi])
    expected = torch.zeros(4, 4, dtype=torch.float64)
    expected[1, 0], expected[3, 2] = -2, -5
    assert mixed.tolist() == expected.tolist()


def test_alone_it_is_the_clipped_loss_of_ppo():
    # Ratios 2, 1/2, 1.1 with worth 1, -1, 3 and bounds 0.8 and 1.2.
    log_ratio = torch.tensor([2.0, 0.5, 1.1]).log()
    found = gains(log_ratio, clipped(log_ratio, 0.2), torch.tensor([1.0, -1.0, 3.0]))
    assert found.tolist() == pytest.approx([1.2, -0.8, 3.3])
    free = gains(log_ratio, clipped(log_ratio, None), torch.tensor([1.0, -1.0, 3.0]))
    assert free.tolist() == pytest.approx([2.0, -0.5, 3.3])


def test_the_objective_alone_by_hand():
    # Probabilities 3/4 and 1/4 were 1/2 each; values 0 should be 1 and 3.
    agent = TableAgent([[np.log(3.0), 0.0]], [0.0])
    rows = TensorDict(
        {
            "observation": torch.zeros(2, 1, dtype=torch.int64),
            "action": torch.tensor([0, 1]),
            "action_log_prob": torch.tensor([0.5, 0.5]).log(),
            "advantage": torch.tensor([[2.0], [-4.0]]),
            "value_target": torch.tensor([[1.0], [3.0]]),
        },
        batch_size=[2],
    )
    losses = SpgLoss(agent, critic_coef=0.5)(rows)
    assert losses["loss_objective"].item() == pytest.approx(-(1.5 * 2 - 0.5 * 4) / 2)
    assert losses["loss_critic"].item() == pytest.approx(0.5 * (1 + 9) / 2)
    bounded = SpgLoss(agent, clip_epsilon=0.2, critic_coef=0.5)(rows)
    assert bounded["loss_objective"].item() == pytest.approx(-(1.2 * 2 - 0.8 * 4) / 2)


# What steps were worth


def batch(**columns):
    """A batch of one environment from lists over its steps."""
    size = [1, len(columns["valid"])]
    flags = {
        n: torch.tensor([columns[n]], dtype=torch.bool)
        for n in ("valid", "acting", "waiting")
        if n in columns
    }
    numbers = {
        n: torch.tensor([columns[n]], dtype=torch.float32).unsqueeze(-1)
        for n in ("advantage", "value_target", "state_value")
        if n in columns
    }
    done = torch.tensor([columns["done"]], dtype=torch.bool).unsqueeze(-1)
    ends = torch.tensor([columns.get("terminated", columns["done"])], dtype=torch.bool)
    reward = torch.tensor([columns.get("reward", [0] * size[1])], dtype=torch.float32)
    following = {"done": done, "terminated": ends.unsqueeze(-1), "reward": reward.unsqueeze(-1)}
    return TensorDict({**flags, **numbers, "next": TensorDict(following, size)}, batch_size=size)


def test_steps_of_others_are_worth_what_came_of_them():
    # Steps 0 and 2 are the agent's own; the episode ends in step 3, and another one begins.
    own = batch(
        acting=[1, 0, 1, 0, 0, 1],
        waiting=[0, 1, 0, 1, 1, 0],
        valid=[1, 0, 1, 0, 0, 0],
        done=[0, 0, 0, 1, 0, 0],
        reward=[0.1, 0.2, 0.3, 4.0, 0.5, 0.6],
        state_value=[1.0, 0, 2.0, 0, 0, 3.0],
        value_target=[1.5, 0, 2.5, 0, 0, 3.0],
        advantage=[0.5, 0, 0.5, 0, 0, 0],
    )
    begins = first_steps({"policy": own}, 1)
    assert begins.tolist() == [[True, False, False, False, True, False]]
    steps = joint_steps({"agent": own}, begins, 0.5)
    # Step 1: 0.2 + 2.5 / 2 - 1; step 3: 4 - 2; step 4, without a step before: less itself.
    found = steps.worth["agent"][0].tolist()
    assert found == pytest.approx([0.5, 0.2 + 1.25 - 1, 0.5, 4.0 - 2.0, 0.0, 0.0])
    assert steps.known["agent"][0].tolist() == [True] * 5 + [False]
    assert steps.acts["agent"][0].tolist() == [True, False, True, False, False, False]


def test_what_follows_a_batch_is_not_known():
    own = batch(
        acting=[1, 0],
        waiting=[0, 1],
        valid=[0, 0],
        done=[0, 0],
        reward=[0, 7.0],
        state_value=[1.0, 0],
        value_target=[1.0, 0],
        advantage=[0, 0],
    )
    steps = joint_steps({"agent": own}, first_steps({"policy": own}, 1), 0.5)
    assert steps.worth["agent"].abs().sum() == 0
    assert not steps.known["agent"].any()


def test_what_was_cut_off_is_not_known_and_an_end_is():
    """Step 3 follows the last own step, and nothing tells what would have come of it."""
    columns = {
        "acting": [1, 0, 1, 0, 1, 0],
        "waiting": [0, 1, 0, 1, 0, 1],
        "valid": [1, 0, 1, 0, 1, 0],
        "done": [0, 0, 0, 1, 0, 1],
        "terminated": [0, 0, 0, 0, 0, 1],
        "reward": [0.1, 0.2, 0.3, 4.0, 0.5, 6.0],
        "state_value": [1.0, 0, 2.0, 0, 3.0, 0],
        "value_target": [1.5, 0, 2.5, 0, 3.5, 0],
        "advantage": [0.5, 0, 0.5, 0, 0.5, 0],
    }
    own = batch(**columns)
    begins = first_steps({"policy": own}, 1)
    assert begins.tolist() == [[True, False, False, False, True, False]]
    steps = joint_steps({"agent": own}, begins, 0.5)
    assert steps.known["agent"][0].tolist() == [True, True, True, False, True, True]
    # Step 1: 0.2 + 2.5 / 2 - 1; step 5, an end: 6 - 3.
    found = steps.worth["agent"][0].tolist()
    assert found == pytest.approx([0.5, 0.2 + 1.25 - 1, 0.5, 0.0, 0.5, 6.0 - 3.0])


def test_an_episode_goes_on_until_the_last_agent_has_ended():
    one = batch(valid=[1, 1, 0, 1], done=[0, 1, 0, 0])
    other = batch(valid=[1, 1, 1, 1], done=[0, 0, 1, 0])
    both = torch.cat([one.select("next"), other.select("next")])
    assert first_steps({"policy": both}, 1).tolist() == [[True, False, False, True]]


def test_advantages_are_scaled_by_the_own_steps():
    own = batch(
        acting=[1, 1, 0, 0],
        waiting=[0, 0, 1, 1],
        valid=[1, 1, 0, 0],
        done=[0, 0, 0, 1],
        reward=[0, 0, 0, 8.0],
        state_value=[0, 0, 0, 0],
        value_target=[2.0, 6.0, 0, 0],
        advantage=[2.0, 6.0, 0, 0],
    )
    steps = joint_steps({"agent": own}, first_steps({"policy": own}, 1), 0.5)
    rows = torch.tensor([0])
    assert steps.advantages("agent", rows, False).tolist() == [[2, 6, 4, 8]]
    # Own: mean 4, deviation sqrt 8; those of the other have mean 6 and the same scale.
    expected = [x / 8**0.5 for x in (-2, 2, -2, 2)]
    assert steps.advantages("agent", rows, True)[0].tolist() == pytest.approx(expected)
