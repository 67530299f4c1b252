"""Observations with named parts, and actions that they rule out."""

import copy
import math

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.nn import functional

from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.tensordict.agents.acting import acting_for
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.environment.layout import Layout
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces

PARTS = {"graph": (2, 3), "round": (4,), "action_mask": (7,)}
CHOICES = gymnasium.spaces.MultiDiscrete([4, 3])


def packed(number=5, seed=0):
    rng = np.random.default_rng(seed)
    layout = Layout(PARTS)
    mask = rng.random((number, 7)) < 0.5
    mask[:, 0] = mask[:, 5] = True
    parts = {"graph": rng.normal(size=(number, 2, 3)), "round": rng.normal(size=(number, 4))}
    return layout, layout.pack({**parts, "action_mask": mask}), mask, parts


def agent_of(layout, action=CHOICES, **settings):
    spaces = {"agent": AgentSpaces(layout.space(), action, layout)}
    return build_agents(spaces, {"agent": settings}).policies["agent"]


def test_what_is_packed_is_found_again_in_numpy_and_torch() -> None:
    layout, flat, mask, parts = packed()
    assert (layout.size, flat.shape, flat.dtype) == (17, (5, 17), np.float32)
    assert layout.space().contains(flat[0])
    for name in ("graph", "round"):
        np.testing.assert_allclose(layout.view(flat, name), parts[name], rtol=1e-6)
        batch = torch.from_numpy(flat)[None]
        np.testing.assert_allclose(layout.view(batch, name)[0], parts[name], rtol=1e-6)
    np.testing.assert_array_equal(layout.view(flat, "action_mask") > 0.5, mask)
    layout.view(flat, "graph")[2] = 9
    assert (flat[2, :6] == 9).all()


def test_parts_that_are_not_there_are_refused() -> None:
    layout, flat, mask, parts = packed()
    with pytest.raises(ContractError, match="graph, round, action_mask, not of graph"):
        layout.pack({"graph": parts["graph"]})
    with pytest.raises(ContractError, match=r"'round' .* shape \[5, 3\]; give \[5, 4\]"):
        layout.pack({**parts, "round": np.zeros((5, 3)), "action_mask": mask})
    with pytest.raises(ContractError, match="no part 'turn'"):
        layout.view(flat, "turn")


@pytest.mark.parametrize("body", [{"type": "mlp"}, {"type": "mlp", "activation": "silu"}])
def test_no_way_of_asking_a_policy_gives_what_is_masked(body) -> None:
    layout, flat, mask, _ = packed(400)
    agent = agent_of(layout, body=body, orthogonal_initialisation_gain=3.0)
    seen = torch.from_numpy(flat)
    logits = agent.policy(seen)
    assert (logits.isneginf().numpy() == ~mask).all()
    assert (agent.policy_and_value(seen)[0] == logits).all()
    actor = acting_for(agent, np.random.default_rng(1))
    np.testing.assert_allclose(actor.params(flat), logits.detach().numpy(), rtol=1e-4, atol=1e-5)
    drawn, log_prob, params = actor.act_with_params(flat)
    ways = {
        "drawn": actor.act(flat)[0],
        "with params": drawn,
        "best": actor.best(flat),
        "torch": agent.distribution.sample(logits).numpy(),
        "operator": agent.policy_operator(TensorDict({"observation": seen}, [400]))[
            "action"
        ].numpy(),
    }
    rows = np.arange(len(flat))
    for name, action in ways.items():
        assert (mask[rows, action[:, 0]] & mask[rows, 4 + action[:, 1]]).all(), name
    again = agent.distribution.log_prob(logits, torch.from_numpy(drawn)).detach()
    np.testing.assert_allclose(log_prob, again, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.isneginf(params), ~mask)


def test_random_agents_choose_evenly_among_what_is_allowed() -> None:
    layout, flat, _, _ = packed(1)
    mask = layout.view(flat, "action_mask")
    mask[:] = [[1, 0, 1, 1, 0, 1, 0]]
    actor = acting_for(agent_of(layout, is_random=True), np.random.default_rng(1))
    action, log_prob = actor.act(np.repeat(flat, 3000, 0))
    shares = np.bincount(action[:, 0], minlength=4) / 3000
    np.testing.assert_allclose(shares, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.04)
    assert (action[:, 1] == 1).all()
    np.testing.assert_allclose(log_prob, -math.log(3), rtol=1e-6)


def test_losses_of_masked_choices_are_those_of_what_is_left() -> None:
    layout, flat, _, _ = packed(2)
    layout.view(flat, "action_mask")[:] = [[1, 1, 0, 1, 0, 1, 0], [0, 0, 1, 0, 1, 0, 0]]
    agent = agent_of(layout)
    logits = agent.policy(torch.from_numpy(flat))
    action = torch.tensor([[1, 1], [2, 0]])
    log_prob, entropy = agent.distribution.log_prob_and_entropy(logits, action)
    left = functional.log_softmax(logits[0, [0, 1, 3]], 0)
    assert log_prob[0].item() == pytest.approx(left[1].item(), rel=1e-5)
    assert entropy[0].item() == pytest.approx(-(left.exp() * left).sum().item(), rel=1e-5)
    # Where nothing is to choose, nothing is learned.
    assert log_prob[1].item() == entropy[1].item() == 0
    separate = agent.distribution.log_prob(logits, action), agent.distribution.entropy(logits)
    torch.testing.assert_close(torch.stack(separate), torch.stack([log_prob, entropy]))
    for loss in (log_prob.sum() - 1e6 * entropy.sum(), sum(separate).sum()):
        grads = torch.autograd.grad(loss, list(agent.policy_head.parameters()), retain_graph=True)
        assert all(grad.isfinite().all() for grad in grads)
    (of_logits,) = torch.autograd.grad(log_prob[1] + 5 * entropy[1], logits)
    assert not of_logits.any()


def test_masks_survive_copies_and_need_discrete_actions_of_their_size() -> None:
    layout, flat, mask, _ = packed()
    twin = copy.deepcopy(agent_of(layout))
    assert (twin.policy(torch.from_numpy(flat)).isneginf().numpy() == ~mask).all()
    with pytest.raises(ConfigError, match=r"action_mask of shape \[7\].* described by 5 numbers"):
        agent_of(layout, gymnasium.spaces.Discrete(5))
    with pytest.raises(ConfigError, match="only Discrete and MultiDiscrete actions are masked"):
        agent_of(layout, gymnasium.spaces.Box(-1, 1, (2,)))
