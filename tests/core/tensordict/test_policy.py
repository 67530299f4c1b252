"""A policy apart from its run: what it chooses, and the file that it is saved in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import save_file

from plugrl.core.errors import ContractError, UsageError
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.collect.normalisation import ObservationNormaliser
from plugrl.core.tensordict.environment.layout import Layout
from plugrl.core.tensordict.environment.spaces import Spaces
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces
from plugrl.core.tensordict.policy import Policy

SEEN = spaces.Box(-5, 5, (4,), np.float32)
BOX = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), (2,), np.float64)


def _policy(
    seen: spaces.Space[Any] = SEEN,
    acts: spaces.Space[Any] = spaces.Discrete(3),  # noqa: B008 - spaces do not change
    *,
    rescale: bool = False,
    squash: Any = False,
    normaliser: ObservationNormaliser | None = None,
    layout: Layout | None = None,
    **section: Any,
) -> Policy:
    its = Spaces("tests", seen, acts, rescale=rescale, layout=layout).agent
    settings = {"_default": {"body": {"hidden": [8]}, "policy_head": {"gain": 1.0}, **section}}
    agents = build_agents({"agent": its}, settings, squash=squash, seed=3)
    return Policy(agents.policies["agent"], normaliser, squash=squash)


def _rows(space: spaces.Space[Any], count: int = 16) -> np.ndarray:
    space.seed(5)
    return np.stack([space.sample() for _ in range(count)])


def test_the_likeliest_action_is_that_of_a_network_written_out() -> None:
    normaliser = ObservationNormaliser((4,))
    normaliser.update(np.random.default_rng(0).normal(2.0, 3.0, (50, 4)).astype(np.float32))
    policy, rows = _policy(normaliser=normaliser), _rows(SEEN)
    w1, b1, w2, b2 = (p.detach().numpy() for p in policy.parameters())
    held = normaliser.statistics
    scaled = np.clip((rows - held.mean) / np.sqrt(held.variance + 1e-8), -10, 10)
    logits = np.tanh(scaled @ w1.T + b1) @ w2.T + b2
    np.testing.assert_array_equal(policy.act(rows), logits.argmax(1))
    given = policy.params(torch.from_numpy(rows)).detach().numpy()
    np.testing.assert_allclose(given, logits, rtol=1e-4, atol=1e-5)


def test_statistics_of_nothing_change_nothing() -> None:
    rows = _rows(spaces.Box(-100, 100, (4,), np.float32))
    plain, scaled = _policy(), _policy(normaliser=ObservationNormaliser((4,)))
    assert torch.equal(plain.params(torch.from_numpy(rows)), scaled.params(torch.from_numpy(rows)))


def test_one_observation_gives_one_action_and_a_batch_as_many() -> None:
    policy, rows = _policy(acts=BOX), _rows(SEEN)
    batch = policy.act(rows)
    assert batch.shape == (16, 2)
    np.testing.assert_allclose(policy.act(rows[3]), batch[3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("acts", "settings"),
    [
        (spaces.Discrete(3, start=-1), {}),
        (spaces.MultiDiscrete([3, 2], start=[5, 0]), {}),
        (spaces.MultiBinary(3), {}),
        (BOX, {}),
        (BOX, {"rescale": True}),
        (BOX, {"squash": True}),
        (BOX, {"squash": "deterministic"}),
    ],
    ids=["discrete", "multi-discrete", "binary", "normal", "rescaled", "squashed", "point"],
)
@pytest.mark.parametrize(
    "seen", [SEEN, spaces.Discrete(4, start=2), spaces.Box(0, 255, (3, 4), np.uint8)], ids=str
)
def test_actions_lie_in_the_space_and_a_saved_policy_acts_alike(
    seen: spaces.Space[Any], acts: spaces.Space[Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    normaliser = None
    if seen is SEEN:
        normaliser = ObservationNormaliser((4,))
        normaliser.update(np.random.default_rng(1).normal(1.0, 2.0, (30, 4)))
    policy = _policy(seen, acts, normaliser=normaliser, **settings)
    loaded = Policy.load(policy.save(tmp_path / "new" / "policy.safetensors"))
    rows = _rows(seen)
    for row, action in zip(rows, policy.act(rows), strict=True):
        assert acts.contains(action)
        assert acts.contains(policy.act(row, sample=True))
    np.testing.assert_array_equal(loaded.act(rows), policy.act(rows))
    drawn = [
        each.act(rows, sample=True, generator=torch.Generator().manual_seed(4))
        for each in (policy, loaded)
    ]
    np.testing.assert_array_equal(*drawn)
    assert loaded.name == "agent"


def test_draws_follow_the_distribution() -> None:
    policy, row = _policy(), _rows(SEEN, 1)
    wanted = torch.softmax(policy.params(torch.from_numpy(row)), -1)[0].detach().numpy()
    drawn = policy.act(
        np.repeat(row, 20_000, 0), sample=True, generator=torch.Generator().manual_seed(0)
    )
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 20_000, wanted, atol=0.015)


def test_named_parts_and_masks_are_kept(tmp_path: Path) -> None:
    layout = Layout({"board": (2, 2), "action_mask": (3,)})
    policy = _policy(layout.space(), layout=layout)
    loaded = Policy.load(policy.save(tmp_path / "policy"))
    board = np.random.default_rng(2).normal(size=(8, 2, 2))
    mask = np.tile([0.0, 1.0, 0.0], (8, 1))
    parts = {"board": board, "action_mask": mask}
    for each in (policy, loaded):
        np.testing.assert_array_equal(each.act(parts), np.ones(8))
        assert each.act({name: part[0] for name, part in parts.items()}, sample=True) == 1
    with pytest.raises(ContractError, match="consists of board, action_mask, not of board"):
        policy.act({"board": board})


def test_it_is_a_module_whose_weights_are_those_of_the_policy_alone() -> None:
    policy = _policy(load_from=None)
    assert sum(p.numel() for p in policy.parameters()) == (4 * 8 + 8) + (8 * 3 + 3)
    bias = {"network.head.layers.0.bias": torch.tensor([0.0, 0.0, 1e6])}
    rows = torch.from_numpy(_rows(SEEN))
    chosen = torch.func.functional_call(policy, bias, (rows,))
    assert torch.equal(chosen, torch.full((16,), 2))


def test_wrong_observations_and_files_say_so_in_one_line(tmp_path: Path) -> None:
    policy = _policy()
    with pytest.raises(ContractError, match=r"shape \(5,\), and its observation space has \(4,\)"):
        policy.act(np.zeros((2, 5)))
    missing = tmp_path / "none"
    with pytest.raises(UsageError, match=r"none holds no policy.*Policy\.save"):
        Policy.load(missing)
    for name, content in (("text", b"hello"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=f"{name} holds no policy"):
            Policy.load(tmp_path / name)
    save_file({"x": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(UsageError, match="foreign holds no policy"):
        Policy.load(tmp_path / "foreign")
    save_file({}, tmp_path / "newer", {"plugrl_policy": json.dumps({"format": 99})})
    with pytest.raises(UsageError, match=r"newer plugrl \(format 99\); upgrade"):
        Policy.load(tmp_path / "newer")
    with pytest.raises(UsageError, match="cannot write"):
        policy.save(tmp_path / "text" / "policy")


def test_other_weights_than_the_networks_are_refused(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = _policy().save(tmp_path / "policy")
    with safe_open(str(path), "pt") as file:
        metadata = file.metadata()
    save_file({"network.body.0.weight": torch.zeros(2, 2)}, path, metadata)
    with pytest.raises(UsageError, match="does not fit the networks that it names"):
        Policy.load(path)


def test_who_acts_without_networks_has_no_policy() -> None:
    its = {"agent": AgentSpaces(SEEN, spaces.Discrete(2))}
    agents = build_agents(its, {"_default": {"is_random": True}})
    with pytest.raises(UsageError, match="'agent' acts without networks, so it has no policy"):
        Policy(agents.policies["agent"])
