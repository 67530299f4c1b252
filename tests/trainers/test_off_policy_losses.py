"""The losses of DQN, SAC and TD3 against work by hand and against TorchRL's loss modules."""

from __future__ import annotations

import copy
import math

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Bounded
from torchrl.modules import Actor, QValueActor
from torchrl.objectives import DQNLoss, SACLoss, TD3Loss

from plugrl.core.tensordict.agents.agent import Agent
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.agents.distributions.choice import Squash
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces
from plugrl.trainers.critics import Critics, polyak_update
from plugrl.trainers.dqn import DqnLoss
from plugrl.trainers.sac import SacLoss
from plugrl.trainers.td3 import Td3Loss

GAMMA = 0.9
ROWS = 64


def agent_for(
    observation: gymnasium.Space, action: gymnasium.Space, hidden: list[int], squash: Squash = False
) -> Agent:
    settings = {"body": {"type": "mlp", "hidden": hidden}, "policy_head": {"gain": 1.0}}
    policies = build_agents(
        {"agent": AgentSpaces(observation, action)},
        {"_default": settings},
        critic=False,
        squash=squash,
        seed=1,
    )
    return policies.policies["agent"]


def box(size: int, bound: float = np.inf) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-bound, bound, (size,), np.float32)


def batch(action: torch.Tensor, observations: int, seed: int = 0) -> TensorDict:
    """Random steps; of each four one terminated, one was truncated and two went on."""
    draw = torch.Generator().manual_seed(seed)
    row = torch.arange(ROWS).unsqueeze(-1) % 4
    following = {
        "observation": torch.randn(ROWS, observations, generator=draw),
        "reward": torch.randn(ROWS, 1, generator=draw),
        "terminated": row == 0,
        "done": row <= 1,
    }
    return TensorDict(
        {
            "observation": torch.randn(ROWS, observations, generator=draw),
            "action": action,
            "next": TensorDict(following, batch_size=[ROWS]),
        },
        batch_size=[ROWS],
    )


def shaken(module: nn.Module, seed: int) -> None:
    """Move weights, so that target networks differ from those they follow."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))


def gradients(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])


# -- DQN -------------------------------------------------------------------------------------


def table(values: list[list[float]], start: int = 0) -> Agent:
    """An agent whose Q-values are a table: one linear layer over one-hot observations."""
    spaces = gymnasium.spaces.Discrete(len(values)), gymnasium.spaces.Discrete(2, start=start)
    agent = agent_for(*spaces, hidden=[])
    written(agent, values)
    return agent


def written(agent: Agent, values: list[list[float]]) -> None:
    weight, bias = agent.policy_head.parameters()
    with torch.no_grad():
        weight.copy_(torch.tensor(values).T)
        bias.zero_()


def three_steps(start: int = 0) -> TensorDict:
    """0, action 1: on to 1. 1, action 0: terminates in 2. 2, action 1: truncated in 0."""
    following = {
        "observation": torch.tensor([1, 2, 0]),
        "reward": torch.tensor([[1.0], [2.0], [3.0]]),
        "terminated": torch.tensor([[False], [True], [False]]),
        "done": torch.tensor([[False], [True], [True]]),
    }
    return TensorDict(
        {
            "observation": torch.tensor([0, 1, 2]),
            "action": torch.tensor([1, 0, 1]) + start,
            "next": TensorDict(following, batch_size=[3]),
        },
        batch_size=[3],
    )


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize(
    ("double", "targets"),
    [
        # Q' of state 1 is (8, 5), of state 0 (6, 9).
        (False, (1 + 0.9 * 8, 2.0, 3 + 0.9 * 9)),
        # Q prefers action 1 in state 1, and action 0 in state 0.
        (True, (1 + 0.9 * 5, 2.0, 3 + 0.9 * 6)),
    ],
)
def test_dqn_by_hand(double: bool, targets: tuple[float, ...], start: int) -> None:
    agent = table([[4.0, 3.0], [1.0, 2.0], [7.0, 7.5]], start)
    loss = DqnLoss(agent, gamma=GAMMA, double=double, distance="l2")
    written(loss.target, [[6.0, 9.0], [8.0, 5.0], [1.0, 1.0]])
    given = loss(three_steps(start))
    errors = [q - target for q, target in zip((3.0, 1.0, 7.5), targets, strict=True)]
    assert given["loss_qvalue"].item() == pytest.approx(sum(e * e for e in errors) / 3, rel=1e-6)
    assert given["qvalue"].item() == pytest.approx(11.5 / 3)
    given["loss_qvalue"].backward()
    expected = torch.zeros(2, 3)
    for row, (state, action) in enumerate(((0, 1), (1, 0), (2, 1))):
        expected[action, state] = 2 * errors[row] / 3
    torch.testing.assert_close(agent.policy_head.layers[-1].weight.grad, expected)


def test_dqn_with_a_bounded_slope_by_hand() -> None:
    loss = DqnLoss(table([[4.0, 3.0], [1.0, 2.0], [7.0, 7.5]]), gamma=0.0, distance="smooth_l1")
    # Errors 2, -1 and 4.5 from rewards 1, 2 and 3: |e| - 1/2 from 1 on, e^2 / 2 below.
    expected = (1.5 + 0.5 + 4.0) / 3
    assert loss(three_steps())["loss_qvalue"].item() == pytest.approx(expected)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("distance", ["l2", "smooth_l1"])
def test_dqn_equals_torchrl(double: bool, distance: str) -> None:
    agent = agent_for(box(3), gymnasium.spaces.Discrete(4), hidden=[16])
    ours = DqnLoss(agent, gamma=GAMMA, double=double, distance=distance)
    shaken(ours.target, 7)
    network = nn.Sequential(copy.deepcopy(agent.policy_body), copy.deepcopy(agent.policy_head))
    theirs = DQNLoss(
        QValueActor(network, in_keys=["observation"], action_space="categorical"),
        loss_function=distance,
        double_dqn=double,
        action_space="categorical",
        delay_value=True,
    )
    theirs.make_value_estimator(gamma=GAMMA)
    for leaf, own in zip(
        theirs.target_value_network_params.values(True, True), _in_order(ours), strict=True
    ):
        leaf.data.copy_(own)
    td = batch(torch.arange(ROWS) % 4, 3)
    expected = theirs(td.clone())["loss"]
    given = ours(td)["loss_qvalue"]
    torch.testing.assert_close(given, expected)
    given.backward()
    expected.backward()
    torch.testing.assert_close(gradients(agent), gradients(network))


def _in_order(ours: DqnLoss) -> list[torch.Tensor]:
    target = nn.Sequential(ours.target.policy_body, ours.target.policy_head)
    return list(TensorDict.from_module(target).values(True, True))


# -- critics ---------------------------------------------------------------------------------


def stacks(critics: Critics) -> list[nn.Sequential]:
    """The same networks, each as PyTorch layers of their own."""
    networks = []
    for index in range(len(critics.weights[0])):
        layers: list[nn.Module] = []
        for weight, bias in zip(critics.weights, critics.biases, strict=True):
            layer = nn.Linear(*weight.shape[1:])
            with torch.no_grad():
                layer.weight.copy_(weight[index].T)
                layer.bias.copy_(bias[index, 0])
            layers += [layer, nn.ReLU()]
        networks.append(nn.Sequential(*layers[:-1]))
    return networks


def critics_for(observations: int, actions: gymnasium.spaces.Box, hidden: list[int]) -> Critics:
    draw = torch.Generator().manual_seed(3)
    return Critics(observations, actions, hidden, generator=draw)


@pytest.mark.parametrize("hidden", [[], [8], [8, 5]])
def test_critics_are_networks_side_by_side(hidden: list[int]) -> None:
    space = gymnasium.spaces.Box(np.float32([-1, -4]), np.float32([1, 0]))
    critics = critics_for(3, space, hidden)
    observation, action = torch.randn(10, 3), torch.rand(10, 2) * torch.tensor([2.0, 4.0])
    action = action - torch.tensor([1.0, 4.0])
    seen = torch.cat([observation, action * torch.tensor([1.0, 0.5]) + torch.tensor([0.0, 1.0])], 1)
    expected = torch.stack([network(seen).squeeze(-1) for network in stacks(critics)])
    torch.testing.assert_close(critics(observation, action), expected)
    torch.testing.assert_close(critics(observation, action, count=1), expected[:1])


def test_frozen_critics_show_the_action_its_slope_alone() -> None:
    critics = critics_for(3, box(2, 1.0), [8])
    observation, action = torch.randn(10, 3), torch.rand(10, 2, requires_grad=True)
    critics(observation, action).sum().backward()
    slope, action.grad = action.grad, None
    for parameter in critics.parameters():
        parameter.grad = None
    critics(observation, action, frozen=True).sum().backward()
    torch.testing.assert_close(action.grad, slope)
    assert all(parameter.grad is None for parameter in critics.parameters())


def test_critics_begin_as_linear_layers_do() -> None:
    critics = critics_for(30, box(6, 1.0), [400, 300])
    for weight, bias, fan in zip(critics.weights, critics.biases, (36, 400, 300), strict=True):
        bound = 1 / math.sqrt(fan)
        assert 0.98 * bound < weight.abs().max() <= bound
        assert bias.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert not torch.equal(critics.weights[0][0], critics.weights[0][1])


def test_targets_follow() -> None:
    target, leader = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])
    polyak_update([target], [leader], 0.25)
    torch.testing.assert_close(target, torch.tensor([1.5, 1.0]))
    polyak_update([target], [leader])
    assert torch.equal(target, leader)


# -- SAC -------------------------------------------------------------------------------------

SLOPE, BEND = 0.3, -0.2


def linear_sac(**options: float) -> SacLoss:
    """One number seen, one action within (-2, 2), and networks of one layer, by hand.

    Mean 0.3 o - 0.2, deviation e^-0.5; Q1 = 0.5 o + 1.0 a / 2, Q2 = 0.7 o - 0.4 a / 2 + 0.1; the
    target critics 0.2 o + 0.6 a / 2 and 0.3 o + 0.1 a / 2 - 0.05.
    """
    agent = agent_for(box(1), box(1, 2.0), [], squash=True)
    weight, bias = agent.policy_head.parameters()
    loss = SacLoss(
        agent,
        critics_for(1, box(1, 2.0), []),
        gamma=GAMMA,
        generator=torch.Generator().manual_seed(11),
        **options,
    )
    with torch.no_grad():
        weight.copy_(torch.tensor([[SLOPE], [0.0]]))
        bias.copy_(torch.tensor([BEND, -0.5]))
        loss.critics.weights[0].copy_(torch.tensor([[[0.5], [1.0]], [[0.7], [-0.4]]]))
        loss.critics.biases[0].copy_(torch.tensor([[[0.0]], [[0.1]]]))
        loss.target_critics.weights[0].copy_(torch.tensor([[[0.2], [0.6]], [[0.3], [0.1]]]))
        loss.target_critics.biases[0].copy_(torch.tensor([[[0.0]], [[-0.05]]]))
    return loss


#: observation, action, reward, next observation, terminated; the third one is truncated.
STEPS = [(0.5, 1.0, 1.0, -0.3, 0), (-1.0, 0.4, -2.0, 0.8, 1), (0.2, -1.6, 0.5, 0.6, 0)]


def continuous_steps() -> TensorDict:
    rows = torch.tensor(STEPS, dtype=torch.float32).unsqueeze(-1)
    following = {
        "observation": rows[:, 3],
        "reward": rows[:, 2],
        "terminated": rows[:, 4].bool(),
        "done": torch.tensor([[False], [True], [True]]),
    }
    return TensorDict(
        {
            "observation": rows[:, 0],
            "action": rows[:, 1],
            "next": TensorDict(following, batch_size=[3]),
        },
        batch_size=[3],
    )


def drawn_by_hand(observation: float, noise: float) -> tuple[float, float]:
    """The tanh of a drawn number, and the log-density of the action, which is twice as wide."""
    straight = SLOPE * observation + BEND + math.exp(-0.5) * noise
    normal = -0.5 * noise**2 + 0.5 - 0.5 * math.log(2 * math.pi)
    bent = math.tanh(straight)
    return bent, normal - math.log(1 - bent**2) - math.log(2)


def test_sac_by_hand() -> None:
    alpha, wanted = 0.2, -0.7
    loss = linear_sac(alpha=alpha, target_entropy=wanted)
    given = loss(continuous_steps())
    draw = torch.Generator().manual_seed(11)
    for_targets = torch.randn(3, 1, generator=draw).flatten().tolist()
    for_policy = torch.randn(3, 1, generator=draw).flatten().tolist()
    square, actor, logs = 0.0, 0.0, 0.0
    for row, (o, a, reward, following, terminated) in enumerate(STEPS):
        bent, log_prob = drawn_by_hand(following, for_targets[row])
        value = min(0.2 * following + 0.6 * bent, 0.3 * following + 0.1 * bent - 0.05)
        target = reward + (0 if terminated else GAMMA * (value - alpha * log_prob))
        square += (0.5 * o + a / 2 - target) ** 2 + (0.7 * o - 0.4 * a / 2 + 0.1 - target) ** 2
        bent, log_prob = drawn_by_hand(o, for_policy[row])
        actor += alpha * log_prob - min(0.5 * o + bent, 0.7 * o - 0.4 * bent + 0.1)
        logs += log_prob
    assert given["loss_qvalue"].item() == pytest.approx(square / 3, rel=1e-5)
    assert given["loss_actor"].item() == pytest.approx(actor / 3, rel=1e-5)
    assert given["entropy"].item() == pytest.approx(-logs / 3, rel=1e-5)
    expected = -math.log(alpha) * (logs / 3 + wanted)
    assert given["loss_alpha"].item() == pytest.approx(expected, rel=1e-5)
    given["loss_alpha"].backward()
    assert loss.log_alpha.grad.item() == pytest.approx(-(logs / 3 + wanted), rel=1e-5)


def test_a_temperature_that_is_given_stays() -> None:
    loss = linear_sac(alpha=0.2)
    given = loss(continuous_steps())
    assert "loss_alpha" not in given
    assert given["alpha"].item() == pytest.approx(0.2)
    assert not loss.log_alpha.requires_grad


def test_each_loss_of_sac_reaches_its_own_weights() -> None:
    loss = linear_sac(target_entropy=-1.0)
    networks = {"qvalue": loss.critics, "actor": loss.agent}
    for name in ("qvalue", "actor", "alpha"):
        loss.zero_grad(set_to_none=True)
        loss(continuous_steps())[f"loss_{name}"].backward()
        reached = {
            key
            for key, module in networks.items()
            if any(p.grad is not None for p in module.parameters())
        }
        assert reached == ({name} & set(networks))
        assert (loss.log_alpha.grad is not None) == (name == "alpha")
    assert not any(p.requires_grad for p in loss.target_critics.parameters())


class Joined(nn.Module):
    """A critic as TorchRL calls it, with observation and action apart."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.network(torch.cat([observation, action], -1))


def torchrl_critics(critics: Critics) -> list[TensorDictModule]:
    return [
        TensorDictModule(Joined(network), ["observation", "action"], ["state_action_value"])
        for network in stacks(critics)
    ]


def continuous_batch(observations: int, actions: int) -> TensorDict:
    draw = torch.Generator().manual_seed(5)
    return batch(2 * torch.rand(ROWS, actions, generator=draw) - 1, observations)


def copied(params: TensorDict, critics: Critics) -> None:
    """Write the weights of critics into TorchRL's stacked parameters of them."""
    values = {tuple(key): value for key, value in params.items(True, True) if value.ndim in (2, 3)}
    layers = sorted({key[:-1] for key in values})
    for layer, weight, bias in zip(layers, critics.weights, critics.biases, strict=True):
        values[*layer, "weight"].data.copy_(weight.transpose(1, 2))
        values[*layer, "bias"].data.copy_(bias.squeeze(1))


@pytest.mark.parametrize("distance", ["l2", "smooth_l1"])
def test_sac_equals_torchrl(distance: str) -> None:
    agent = agent_for(box(3), box(2, 1.0), [16], squash=True)
    ours = SacLoss(
        agent,
        critics_for(3, box(2, 1.0), [16, 8]),
        gamma=GAMMA,
        alpha=0.3,
        target_entropy=-2.0,
        distance=distance,
    )
    shaken(ours.target_critics, 7)
    theirs = SACLoss(
        copy.deepcopy(agent).policy_operator,
        torchrl_critics(ours.critics),
        loss_function=distance,
        alpha_init=0.3,
        target_entropy=-2.0,
        action_spec=Bounded(-1, 1, (2,)),
    )
    theirs.make_value_estimator(gamma=GAMMA)
    copied(theirs.target_qvalue_network_params, ours.target_critics)
    td = continuous_batch(3, 2)
    torch.manual_seed(4)
    given = ours(td)
    # Ours draws the next actions first, then those of the policy's loss.
    torch.manual_seed(4)
    loss_qvalue, _ = theirs.qvalue_v2_loss(td.clone())
    loss_actor, about = theirs.actor_loss(td.clone())
    loss_alpha = theirs._alpha_loss(about["log_prob"])
    torch.testing.assert_close(given["loss_qvalue"], loss_qvalue.mean())
    torch.testing.assert_close(given["loss_actor"], loss_actor.mean())
    torch.testing.assert_close(given["loss_alpha"], loss_alpha.mean())
    given["loss_actor"].backward()
    loss_actor.mean().backward()
    theirs_of = [p.grad.reshape(-1) for p in theirs.actor_network_params.values(True, True)]
    torch.testing.assert_close(gradients(agent).sort().values, torch.cat(theirs_of).sort().values)


# -- TD3 -------------------------------------------------------------------------------------


def test_td3_by_hand() -> None:
    agent = agent_for(box(1), box(1, 2.0), [], squash="deterministic")
    loss = Td3Loss(
        agent,
        critics_for(1, box(1, 2.0), []),
        gamma=GAMMA,
        target_policy_noise=0.5,
        target_noise_clip=0.3,
        generator=torch.Generator().manual_seed(11),
    )
    with torch.no_grad():
        for module, slope, bend in ((agent, 0.3, -0.2), (loss.target_agent, 3.0, 0.1)):
            weight, bias = module.policy_head.parameters()
            weight.fill_(slope)
            bias.fill_(bend)
        loss.critics.weights[0].copy_(torch.tensor([[[0.5], [1.0]], [[0.7], [-0.4]]]))
        loss.critics.biases[0].copy_(torch.tensor([[[0.0]], [[0.1]]]))
        loss.target_critics.weights[0].copy_(torch.tensor([[[0.2], [0.6]], [[0.3], [0.1]]]))
        loss.target_critics.biases[0].copy_(torch.tensor([[[0.0]], [[-0.05]]]))
    given = loss(continuous_steps())
    draw = torch.Generator().manual_seed(11)
    noises = torch.randn(3, 1, generator=draw).flatten().tolist()
    assert max(abs(0.5 * noise) for noise in noises) > 0.3
    square, actor = 0.0, 0.0
    for (o, a, reward, following, terminated), noise in zip(STEPS, noises, strict=True):
        # In units of half the range: the action itself is twice as large.
        bent = math.tanh(3.0 * following + 0.1) + min(0.3, max(-0.3, 0.5 * noise))
        bent = min(1.0, max(-1.0, bent))
        value = min(0.2 * following + 0.6 * bent, 0.3 * following + 0.1 * bent - 0.05)
        target = reward + (0 if terminated else GAMMA * value)
        square += (0.5 * o + a / 2 - target) ** 2 + (0.7 * o - 0.4 * a / 2 + 0.1 - target) ** 2
        actor -= 0.5 * o + math.tanh(0.3 * o - 0.2)
    assert given["loss_qvalue"].item() == pytest.approx(square / 3, rel=1e-5)
    assert given["loss_actor"].item() == pytest.approx(actor / 3, rel=1e-5)


def test_td3_equals_torchrl() -> None:
    agent = agent_for(box(3), box(2, 1.0), [16], squash="deterministic")
    ours = Td3Loss(agent, critics_for(3, box(2, 1.0), [16, 8]), gamma=GAMMA)
    shaken(ours.target_critics, 7)
    network = nn.Sequential(
        copy.deepcopy(agent.policy_body), copy.deepcopy(agent.policy_head), nn.Tanh()
    )
    theirs = TD3Loss(
        Actor(network, in_keys=["observation"]),
        torchrl_critics(ours.critics),
        bounds=(-1.0, 1.0),
        loss_function="l2",
    )
    theirs.make_value_estimator(gamma=GAMMA)
    copied(theirs.target_qvalue_network_params, ours.target_critics)
    td = continuous_batch(3, 2)
    torch.manual_seed(4)
    given = ours(td)
    torch.manual_seed(4)
    expected = theirs(td.clone())
    torch.testing.assert_close(given["loss_qvalue"], expected["loss_qvalue"])
    torch.testing.assert_close(given["loss_actor"], expected["loss_actor"])
    given["loss_qvalue"].backward()
    assert all(p.grad is None for p in agent.parameters())
    given["loss_actor"].backward()
    expected["loss_actor"].backward()
    theirs_of = [p.grad.reshape(-1) for p in theirs.actor_network_params.values(True, True)]
    torch.testing.assert_close(gradients(agent).sort().values, torch.cat(theirs_of).sort().values)


def test_targets_of_policy_and_critics_move_by_tau() -> None:
    agent = agent_for(box(3), box(2, 1.0), [4], squash="deterministic")
    loss = Td3Loss(agent, critics_for(3, box(2, 1.0), [4]), tau=0.25)
    pairs = [(agent, loss.target_agent), (loss.critics, loss.target_critics)]
    for leader, _ in pairs:
        shaken(leader, 2)
    before = [torch.nn.utils.parameters_to_vector(t.parameters()).clone() for _, t in pairs]
    loss.update_targets()
    for (leader, target), old in zip(pairs, before, strict=True):
        new = torch.nn.utils.parameters_to_vector(target.parameters())
        goal = torch.nn.utils.parameters_to_vector(leader.parameters())
        torch.testing.assert_close(new, old + 0.25 * (goal - old))
