"""How actions are chosen: NumPy's numbers beside torch's, on the same weights."""

from __future__ import annotations

import timeit
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from plugrl.core.tensordict.agents.acting import (
    Actor,
    NumpyActor,
    RandomActor,
    TorchActor,
    acting_for,
)
from plugrl.core.tensordict.agents.agent import Agent
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces

SEEN = spaces.Box(-1, 1, (4,), np.float32)


def _agent(seen: Any = SEEN, acts: Any = None, **settings: Any) -> Agent:
    its = AgentSpaces(seen, spaces.Discrete(3) if acts is None else acts)
    section = {"_default": {"policy_head": {"gain": 1.0}, **settings}}
    return build_agents({"agent": its}, section, seed=1).policies["agent"]


def _actor(agent: Agent, seed: int = 0) -> Actor:
    return acting_for(agent, np.random.default_rng(seed))


def _seen(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(9).normal(size=(count, 4)).astype(np.float32)


@pytest.mark.parametrize(
    "acts",
    [
        spaces.Discrete(2),
        spaces.Discrete(6),
        spaces.MultiDiscrete([3, 2]),
        spaces.MultiBinary(2),
        spaces.Box(-1, 1, (2,)),
    ],
)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_numpy_chooses_as_torch_does(acts: spaces.Space[Any], activation: str) -> None:
    agent = _agent(acts=acts, body={"activation": activation})
    quick, plain = _actor(agent), TorchActor(agent, np.random.default_rng(0))
    assert isinstance(quick, NumpyActor)
    for count in (1, 4, 64, 4):
        seen = _seen(count)
        params = agent.policy(torch.from_numpy(seen)).detach()
        np.testing.assert_allclose(quick.params(seen), params.numpy(), rtol=1e-4, atol=1e-6)
        action, log_prob = quick.act(seen)
        other, other_log_prob = plain.act(seen)
        assert action.shape == (count, *agent.distribution.action_shape)
        assert action.dtype == agent.distribution.action_dtype
        np.testing.assert_allclose(action, other, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(log_prob, other_log_prob, rtol=1e-4, atol=1e-5)
        expected = agent.distribution.log_prob(params, torch.from_numpy(action))
        np.testing.assert_allclose(log_prob, expected.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(quick.best(seen), plain.best(seen), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "seen",
    [
        spaces.Discrete(5),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(3),
        spaces.Box(0, 9, (2, 3), np.float32),
        spaces.Box(0, 9, (3,), np.int64),
        spaces.Box(0, 255, (3, 3, 1), np.uint8),
        spaces.Box(-1, 1, (), np.float64),
    ],
)
def test_all_that_can_be_seen(seen: spaces.Space[Any]) -> None:
    agent = _agent(seen)
    seen.seed(3)
    rows = np.stack([np.asarray(seen.sample()) for _ in range(7)])
    actor = _actor(agent)
    assert isinstance(actor, NumpyActor)
    expected = agent.policy(torch.from_numpy(rows)).detach().numpy()
    np.testing.assert_allclose(actor.params(rows), expected, rtol=1e-4, atol=1e-6)


def test_rows_that_do_not_lie_together() -> None:
    agent, wide = _agent(), _seen(12)
    actor = _actor(agent)
    for rows in (wide[::3], np.asfortranarray(wide), wide.astype(np.float64), wide[:, ::-1]):
        plain = torch.from_numpy(np.ascontiguousarray(rows))
        expected = agent.policy(plain).detach().numpy()
        np.testing.assert_allclose(actor.params(rows), expected, rtol=1e-4, atol=1e-6)


def test_weights_are_seen_as_they_are_trained() -> None:
    agent, seen = _agent(), _seen(5)
    actor = _actor(agent)
    actor.act(seen)

    def agrees() -> bool:
        expected = agent.policy(torch.from_numpy(seen)).detach().numpy()
        return np.allclose(actor.params(seen), expected, rtol=1e-4, atol=1e-6)

    before = actor.params(seen).copy()
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(torch.randn(parameter.shape))
    assert agrees()
    assert not np.allclose(actor.params(seen), before)
    # An optimizer that makes all weights views of one tensor gives them other memory.
    flat = torch.cat([p.detach().reshape(-1) for p in agent.parameters()])
    start = 0
    for parameter in agent.parameters():
        parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    flat.mul_(-0.5)
    assert agrees()
    agent.load_state_dict({k: torch.randn_like(v) for k, v in agent.state_dict().items()})
    assert agrees()
    # Where only later weights get other memory, it has to be said.
    assert agent.policy_head is not None
    last = agent.policy_head.layers[0].weight  # type: ignore[index,union-attr]
    last.data = torch.randn_like(last)  # type: ignore[arg-type,union-attr]
    assert not agrees()
    actor.refresh()
    assert agrees()


def test_deviations_are_seen_as_they_are_trained() -> None:
    agent = _agent(acts=spaces.Box(-1, 1, (2,)))
    actor = _actor(agent)
    assert agent.policy_head is not None
    with torch.no_grad():
        agent.policy_head.free.fill_(-20.0)  # type: ignore[operator,union-attr]
    action, log_prob = actor.act(_seen(3))
    np.testing.assert_allclose(action, actor.best(_seen(3)), atol=1e-6)
    assert (log_prob > 30).all()


def test_what_was_given_is_not_overwritten() -> None:
    for acts in (spaces.Discrete(2), spaces.Box(-1, 1, (2,))):
        actor = _actor(_agent(acts=acts))
        given = [*actor.act(_seen(4)), actor.best(_seen(4))]
        before = [each.copy() for each in given]
        actor.act(-_seen(4))
        actor.best(-_seen(4))
        for one, other in zip(given, before, strict=True):
            np.testing.assert_array_equal(one, other)


def test_draws_go_on_from_a_saved_state() -> None:
    agent, seen = _agent(), _seen(16)
    actor = _actor(agent)
    actor.act(seen)
    state = actor.state_dict()
    expected = [actor.act(seen)[0] for _ in range(3)]
    other = _actor(agent, seed=99)
    other.load_state_dict(state)
    for wanted in expected:
        np.testing.assert_array_equal(other.act(seen)[0], wanted)


def test_draws_differ_between_rows_and_calls() -> None:
    agent = _agent(acts=spaces.Discrete(4), policy_head={"gain": 0.01})
    actor, seen = _actor(agent), np.zeros((4000, 4), np.float32)
    first, second = actor.act(seen)[0], actor.act(seen)[0]
    assert (first != second).mean() > 0.7
    assert np.bincount(first, minlength=4).min() > 900


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({"body": {"activation": "gelu"}}, SEEN),
        ({"body": "nature_cnn"}, spaces.Box(0, 255, (3, 36, 36), np.uint8)),
    ],
)
def test_other_networks_are_asked_in_torch(settings: dict[str, Any], seen: spaces.Box) -> None:
    agent = _agent(seen, **settings)
    actor = _actor(agent)
    assert isinstance(actor, TorchActor)
    rows = np.stack([seen.sample() for _ in range(3)])
    action, log_prob = actor.act(rows)
    params = agent.policy(torch.from_numpy(rows)).detach()
    expected = agent.distribution.log_prob(params, torch.from_numpy(action))
    np.testing.assert_allclose(log_prob, expected.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(actor.best(rows), params.argmax(-1).numpy())


def test_weights_of_another_type_are_asked_in_torch() -> None:
    actor = _actor(_agent().double())
    assert isinstance(actor, TorchActor)


def test_an_agent_at_random_ignores_what_it_sees() -> None:
    actor = _actor(_agent(is_random=True))
    assert isinstance(actor, RandomActor)
    action, log_prob = actor.act(np.zeros((3000, 4), np.float32))
    assert np.bincount(action, minlength=3).min() > 900
    np.testing.assert_allclose(log_prob, -np.log(3), rtol=1e-6)
    assert set(actor.best(np.zeros((100, 4), np.float32))) == {0, 1, 2}
    np.testing.assert_array_equal(actor.params(np.zeros((2, 4), np.float32)), np.zeros((2, 3)))


def test_numpy_is_worth_its_code() -> None:
    # Typically five times as quick; a loaded machine slows both.
    agent, seen = _agent(acts=spaces.Discrete(2)), _seen(4)
    quick, plain = _actor(agent), TorchActor(agent, np.random.default_rng(0))
    ratios = []
    for _ in range(5):
        slow = min(timeit.repeat(lambda: plain.act(seen), number=100, repeat=5))
        ratios.append(slow / min(timeit.repeat(lambda: quick.act(seen), number=100, repeat=5)))
    assert max(ratios) > 2
