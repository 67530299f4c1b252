"""Agents from parts: what is built, from what section, and what TorchRL makes of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import forking
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torchrl.modules import ProbabilisticActor
from torchrl.objectives import ClipPPOLoss

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.agent import Agent, Policies
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces

SEEN = spaces.Box(-1, 1, (4,), np.float32)
CHOICE = AgentSpaces(SEEN, spaces.Discrete(3))
REAL = AgentSpaces(SEEN, spaces.Box(-2, 2, (2,), np.float32))


def _agent(its: AgentSpaces = CHOICE, **options: Any) -> Agent:
    section = options.pop("section", {})
    return build_agents({"agent": its}, section, **options).policies["agent"]


def _two(section: dict[str, Any], **options: Any) -> Policies:
    return build_agents({"a": CHOICE, "b": CHOICE}, section, **options)


def test_separate_bodies_give_numbers_for_any_leading_dimensions() -> None:
    agent = _agent()
    assert list(agent.parts) == ["policy_body", "value_body", "policy_head", "value_head"]
    seen = torch.randn(2, 5, 4)
    params, value = agent.policy(seen), agent.value(seen)
    assert (params.shape, value.shape) == ((2, 5, 3), (2, 5))
    assert agent.policy_body is not None
    assert agent.policy_head is not None
    inner = seen
    for linear in (agent.policy_body[0], agent.policy_body[2]):  # type: ignore[index]
        inner = torch.tanh(inner @ linear.weight.T + linear.bias)  # type: ignore[union-attr,operator]
    last = agent.policy_head.layers[0]  # type: ignore[index,union-attr]
    torch.testing.assert_close(params, inner @ last.weight.T + last.bias)  # type: ignore[union-attr,operator]
    for one, other in zip(agent.policy_and_value(seen), (params, value), strict=True):
        assert torch.equal(one, other)


def test_a_shared_body_is_one() -> None:
    agent = _agent(shared_body=True)
    assert list(agent.parts) == ["body", "policy_head", "value_head"]
    assert agent.policy_body is agent.value_body
    assert not [name for name in agent.state_dict() if "policy_body" in name]
    seen = torch.randn(6, 4)
    together = agent.policy_and_value(seen)
    torch.testing.assert_close(together, (agent.policy(seen), agent.value(seen)))
    twin = copy.deepcopy(agent)
    assert twin.policy_body is twin.value_body
    with torch.no_grad():
        next(twin.parameters()).zero_()
    assert next(agent.parameters()).any()
    assert not torch.equal(twin.policy(seen), agent.policy(seen))


def test_without_a_critic() -> None:
    agent = _agent(critic=False)
    assert list(agent.parts) == ["policy_body", "policy_head"]
    assert agent.value_operator is None
    with pytest.raises(RuntimeError, match="agent 'agent' has no critic"):
        agent.value(torch.zeros(1, 4))


def test_the_first_policy_is_almost_uniform_and_the_first_values_vary() -> None:
    agent = _agent()
    seen = torch.randn(100, 4)
    assert agent.policy(seen).abs().max().item() < 0.1
    assert agent.value(seen).std().item() > 0.1
    real = _agent(REAL)
    assert real.policy(seen)[:, 2:].eq(0).all(), "deviations begin at 1"


def test_sizes_activations_and_gains_come_from_the_section() -> None:
    section = {
        "_default": {
            "body": {"hidden": [8], "activation": "relu"},
            "value_body": {"type": "mlp", "hidden": [9, 7]},
            "policy_head": {"hidden": [6], "activation": "relu", "gain": 3.0},
            "orthogonal_initialisation_gain": 2.0,
        }
    }
    agent = _agent(section=section)
    shapes = {name: tuple(w.shape) for name, w in agent.named_parameters() if "weight" in name}
    assert shapes == {
        "policy_body.0.weight": (8, 4),
        "value_body.0.weight": (9, 4),
        "value_body.2.weight": (7, 9),
        "policy_head.layers.0.weight": (6, 8),
        "policy_head.layers.2.weight": (3, 6),
        "value_head.layers.0.weight": (1, 7),
    }
    weights = dict(agent.named_parameters())
    last, first = weights["policy_head.layers.2.weight"], weights["policy_body.0.weight"]
    torch.testing.assert_close(last @ last.T, 9 * torch.eye(3), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first.T @ first, 4 * torch.eye(4), rtol=1e-4, atol=1e-5)
    assert isinstance(agent.policy_body[1], torch.nn.ReLU)  # type: ignore[index]
    drawn = _agent(section={"_default": {"use_orthogonal_initialisation": False}})
    assert dict(drawn.named_parameters())["policy_body.0.bias"].any()


@pytest.mark.parametrize(
    ("space", "raw", "expected"),
    [
        (spaces.Discrete(3, start=5), np.array([5, 7]), [[1, 0, 0], [0, 0, 1]]),
        (
            spaces.MultiDiscrete([2, 3], start=[0, 1]),
            np.array([[1, 1], [0, 3]]),
            [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]],
        ),
        (spaces.MultiBinary(2), np.array([[1, 0]], np.int8), [[1, 0]]),
        (spaces.Box(0, 9, (2,), np.int64), np.array([[3, 4]]), [[3, 4]]),
        (spaces.Box(0, 1, (2,), np.float64), np.array([[0.5, 0.25]]), [[0.5, 0.25]]),
        (spaces.Box(0, 255, (1, 2), np.uint8), np.array([[[0, 255]]], np.uint8), [[[0, 1]]]),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([[0, 255]], np.uint8), [[0, 255]]),
    ],
)
def test_observations_become_real_numbers(
    space: spaces.Space[Any], raw: np.ndarray[Any, Any], expected: list[Any]
) -> None:
    agent = _agent(AgentSpaces(space, spaces.Discrete(2)))
    encoded = agent.encode(torch.from_numpy(raw))
    assert encoded.dtype == torch.float32
    assert encoded.tolist() == expected
    with_time = agent.encode(torch.from_numpy(raw)[None].expand(3, *raw.shape))
    assert with_time.tolist() == [expected] * 3
    assert agent.encoder.numpy(raw).tolist() == expected
    assert agent.policy(torch.from_numpy(raw)).shape == (len(raw), 2)


# -- who is built ---------------------------------------------------------------------------


def test_weights_depend_on_seed_and_name_alone() -> None:
    torch.manual_seed(1)
    first = _two({}, seed=3)
    torch.manual_seed(2)
    second = build_agents({"b": CHOICE, "a": CHOICE}, {}, seed=3)
    for name in ("a", "b"):
        for one, other in zip(
            first.policies[name].parameters(), second.policies[name].parameters(), strict=True
        ):
            assert torch.equal(one, other)
    weight = "policy_body.0.weight"
    a, b = (first.policies[name].state_dict()[weight] for name in ("a", "b"))
    assert not torch.equal(a, b)
    assert not torch.equal(a, _two({}, seed=4).policies["a"].state_dict()[weight])
    # Neither does a critic change the policy.
    alone = _two({}, seed=3, critic=False).policies["a"].state_dict()
    assert torch.equal(alone[weight], a)


def test_weights_are_equal_in_every_process() -> None:
    code = (
        "import numpy as np; from gymnasium import spaces\n"
        "from plugrl.core.tensordict.agents.building import build_agents\n"
        "from plugrl.core.tensordict.environment.vector_environment import AgentSpaces\n"
        "its = AgentSpaces(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3))\n"
        "agent = build_agents({'agent': its}, {}, seed=5).policies['agent']\n"
        "print(sum(p.detach().double().sum().item() for p in agent.parameters()))\n"
    )
    # It has a hash seed of its own.
    done = forking.run(["-c", code], env={"OMP_NUM_THREADS": "1", "PATH": ""}, check=True)
    here = sum(p.detach().double().sum().item() for p in _agent(seed=5).parameters())
    assert float(done.stdout) == here


def test_agents_of_one_policy_share_it() -> None:
    policies = _two({"_default": {"policy": "both"}, "both": {"body": {"hidden": [5]}}})
    assert policies.policy_of == {"a": "both", "b": "both"}
    assert list(policies.policies) == ["both"]
    assert policies.policies["both"].policy_body[0].out_features == 5  # type: ignore[index,union-attr]
    follows = _two({"b": {"policy": "a"}})
    assert follows.policy_of == {"a": "a", "b": "a"}


def test_entries_change_the_default() -> None:
    section = {
        "_default": {
            "body": {"type": "mlp", "hidden": [5], "activation": "relu"},
            "agent_lr_factor": {"critic": 0.5},
        },
        "a": {"body": {"hidden": [6]}, "agent_lr_factor": {"actor": 2}},
        "b": None,
    }
    policies = _two(section).policies
    a, b = policies["a"].config, policies["b"].config
    assert a["body"] == {"type": "mlp", "hidden": [6], "activation": "relu"}
    assert a["agent_lr_factor"] == {"actor": 2.0, "critic": 0.5}
    assert b["body"]["hidden"] == (5,)
    assert b["agent_lr_factor"] == {"actor": 1.0, "critic": 0.5}


def test_another_type_takes_the_place_of_the_default() -> None:
    images = AgentSpaces(spaces.Box(0, 255, (36, 36, 3), np.uint8), spaces.Discrete(2))
    section = {
        "_default": {
            "body": {"type": "mlp", "hidden": [5]},
            "update_schedule": {
                "type": "alternating_periodic",
                "period": 4,
                "first_agent_num_iterations": 1,
            },
        },
        "b": {"body": "nature_cnn", "update_schedule": {"first_agent": False}},
    }
    policies = build_agents({"a": images, "b": images}, section).policies
    assert policies["b"].config["body"]["type"] == "nature_cnn"
    assert policies["a"].config["body"]["hidden"] == (5,)
    learns = {n: [p.is_updated(i) for i in range(1, 5)] for n, p in policies.items()}
    assert learns == {"a": [True, False, False, False], "b": [False, True, True, True]}


def test_a_body_in_a_file_can_be_everybodys(tmp_path: Path) -> None:
    file = tmp_path / "ours.py"
    file.write_text(
        "from torch import nn\n"
        "from plugrl import Body\n"
        "class Half(Body):\n"
        "    def build(self, shape):\n"
        "        return nn.Linear(shape[0], 2), 2\n",
        encoding="utf-8",
    )
    ours = {"custom_body_module_path": str(file), "custom_body_class_name": "Half"}
    section = {"_default": {"body": ours, "value_body": "mlp"}, "b": {"body": {"type": "mlp"}}}
    policies = _two(section).policies
    assert policies["a"].policy_body.weight.shape == (2, 4)  # type: ignore[union-attr]
    assert policies["a"].value_body[0].out_features == 64  # type: ignore[index,union-attr]
    assert policies["b"].policy_body[0].out_features == 64  # type: ignore[index,union-attr]
    turned = {"_default": {"body": {"hidden": [3]}}, "b": {"body": ours}}
    policies = _two(turned).policies
    assert policies["a"].policy_body[0].out_features == 3  # type: ignore[index,union-attr]
    assert policies["b"].policy_body.weight.shape == (2, 4)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"agnet": {}}, "agents.agnet: the environment has no such agent; did you mean agent?"),
        ({"agent": {"bdy": "mlp"}}, "agents.agent.bdy: unknown key; did you mean body?"),
        ({"agent": {"body": "mpl"}}, "unknown body 'mpl'; did you mean mlp?"),
        ({"_default": {"body": {"hiden": [3]}}}, "agents._default.body.hiden: unknown key"),
        ({"agent": {"body": "nature_cnn"}}, "agents.agent.body: nature_cnn reads images"),
        (
            {"agent": {"agent_lr_factor": {"actor": -1}}},
            "agent_lr_factor.actor: must be at least 0, not -1",
        ),
        ({"agent": {"policy_head": {"hidden": [0]}}}, "policy_head.hidden[0]: must be at least 1"),
        ({"agent": {"orthogonal_initialisation_gain": 0}}, "must be above 0"),
        ({"agent": {"load_policy": "x"}}, "agents.agent.load_policy: needs load_from"),
        ({"agent": {"is_random": True, "load_from": "x"}}, "load_from: cannot be set"),
    ],
)
def test_wrong_sections_are_told_in_one_line(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        _agent(section=section)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_policies_that_cannot_be_shared() -> None:
    with pytest.raises(ConfigError, match=r"agents a and b cannot share the policy 'x'"):
        build_agents({"a": CHOICE, "b": REAL}, {"_default": {"policy": "x"}})
    section = {"a": {"policy": "x"}, "b": {"policy": "x", "is_random": True}}
    with pytest.raises(ConfigError, match=r"different settings; write them once, under agents\.x"):
        _two(section)


def test_spaces_that_no_agent_takes_are_told_with_the_agent() -> None:
    text = AgentSpaces(spaces.Text(3), spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"agent 'agent': observations of Text.*Flatten"):
        _agent(text)
    with pytest.raises(ConfigError, match=r"agent 'agent': actions of Text"):
        _agent(AgentSpaces(SEEN, spaces.Text(3)))


# -- learning -------------------------------------------------------------------------------


def test_rates_are_those_of_agent_and_body() -> None:
    section = {
        "_default": {
            "agent_lr_factor": {"actor": 0.5, "critic": 3},
            "body_lr_factor": {"actor": 0.1, "critic": 0},
        }
    }
    separate = _agent(section=section)
    rates = {(g.part, g.role): g.lr_factor for g in separate.parameter_groups()}
    assert rates == {
        ("policy_body", "actor"): 0.05,
        ("policy_head", "actor"): 0.5,
        ("value_body", "critic"): 0.0,
        ("value_head", "critic"): 3.0,
    }
    shared = {
        g.part: g.lr_factor for g in _agent(section=section, shared_body=True).parameter_groups()
    }
    assert shared == {"body": 0.05, "policy_head": 0.5, "value_head": 3.0}
    listed = [p for group in separate.parameter_groups() for p in group.parameters]
    assert {id(p) for p in listed} == {id(p) for p in separate.parameters()}
    assert len(listed) == len(list(separate.parameters()))


def test_who_is_trained() -> None:
    frozen = {"agent_lr_factor": {"actor": 0, "critic": 0}}
    schedule = {"type": "contiguous_periodic", "period": 2, "start": 1, "stop": 2}
    assert _agent().is_trained
    assert not _agent(section={"_default": frozen}).is_trained
    assert not _agent(section={"_default": frozen}).is_updated(1)
    assert not _agent(section={"_default": {"is_random": True}}).is_trained
    periodic = _agent(section={"_default": {"update_schedule": schedule}})
    assert [periodic.is_updated(i) for i in (1, 2, 3)] == [False, True, False]


def test_an_agent_at_random_has_no_networks() -> None:
    agent = _agent(section={"agent": {"is_random": True}})
    assert agent.is_random
    assert not agent.state_dict()
    assert agent.policy(torch.randn(2, 5, 4)).eq(0).all()
    assert agent.policy(torch.randn(2, 5, 4)).shape == (2, 5, 3)


# -- TorchRL --------------------------------------------------------------------------------


@pytest.mark.parametrize("its", [CHOICE, REAL])
def test_operators_write_what_the_networks_give(its: AgentSpaces) -> None:
    agent = _agent(its)
    seen = torch.randn(6, 3, 4)
    td = TensorDict({"observation": seen}, [6, 3])
    assert isinstance(agent.policy_operator, ProbabilisticActor)
    assert agent.value_operator is not None
    agent.value_operator(agent.policy_operator(td))
    torch.testing.assert_close(td["state_value"].squeeze(-1), agent.value(seen))
    expected = agent.distribution.log_prob(agent.policy(seen), td["action"])
    torch.testing.assert_close(td["action_log_prob"], expected)
    assert not [name for name in agent.state_dict() if "operator" in name]
    assert agent.policy_operator is agent.policy_operator


@pytest.mark.parametrize("its", [CHOICE, REAL])
@pytest.mark.parametrize("functional", [True, False])
def test_a_loss_of_torchrl_trains_the_agent(its: AgentSpaces, functional: bool) -> None:
    agent = _agent(its)
    loss = ClipPPOLoss(
        agent.policy_operator,
        agent.value_operator,
        functional=functional,
        entropy_coeff=0.01,
        critic_coeff=0.5,
        loss_critic_type="l2",
    )
    seen = torch.randn(20, 4)
    with torch.no_grad():
        action, log_prob = agent.distribution.rsample(agent.policy(seen) + 0.3)
    advantage, target = torch.randn(20, 1), torch.randn(20, 1)
    rows = TensorDict(
        {
            "observation": seen,
            "action": action,
            "action_log_prob": log_prob,
            "advantage": advantage,
            "value_target": target,
        },
        [20],
    )
    losses = loss(rows)
    total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
    found = torch.autograd.grad(total, list(agent.parameters()))
    params = agent.policy(seen)
    now, entropy = agent.distribution.log_prob_and_entropy(params, action)
    ratio = (now - log_prob).exp()
    gain = torch.minimum(ratio * advantage[:, 0], ratio.clamp(0.8, 1.2) * advantage[:, 0])
    error = (agent.value(seen) - target[:, 0]).square()
    by_hand = -gain.mean() + 0.5 * error.mean() - 0.01 * entropy.mean()
    torch.testing.assert_close(total, by_hand)
    wanted = torch.autograd.grad(by_hand, list(agent.parameters()))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
