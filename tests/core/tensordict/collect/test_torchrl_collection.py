"""What TorchRL's own collector gives, against numbers counted by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.acting import acting_for
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.collect.normalisation import Normalisers
from plugrl.core.tensordict.collect.torchrl_collector import TorchrlCollector, TorchrlSource
from plugrl.scenarios.torchrl.scenario import TorchrlScenario

OWN = Path(__file__).parents[3] / "scenarios" / "torchrl_environments.py"


def collector(name: str, steps: int, section: dict[str, Any], **more: Any) -> TorchrlCollector:
    import numpy as np

    config = {"environment": f"{OWN}:{name}", "collector": "torchrl", **more}
    environment: Any = TorchrlScenario(config).build(0).train_environment
    assert isinstance(environment, TorchrlSource)
    policies = build_agents(environment.spaces, section)
    members = {p: sum(q == p for q in policies.policy_of.values()) for p in policies.policies}
    shapes = {name: agent.spaces.observation.shape for name, agent in policies.policies.items()}
    made = TorchrlCollector(
        environment,
        policies.policy_of,
        {k: acting_for(v, np.random.default_rng(0)) for k, v in policies.policies.items()},
        steps=steps,
        normalisers=Normalisers(
            {k: v or () for k, v in shapes.items()},
            {k: n * environment.num_envs for k, n in members.items()},
            observations=False,
            rewards=False,
            gamma=0.9,
        ),
    )
    made.begin(1)
    return made


def flat(batch: Any, *keys: str) -> list[list[float]]:
    return batch[keys if len(keys) > 1 else keys[0]].reshape(batch.batch_size).tolist()


def test_rows_of_a_batch_end_each_by_itself_and_batches_go_on() -> None:
    made = collector("Rows", 4, {})
    batch = made.collect()["agent"]
    assert flat(batch, "observation") == [[0, 1, 0, 1], [10, 11, 12, 10], [20, 21, 22, 23]]
    after = [[1, 2, 1, 2], [11, 12, 13, 11], [21, 22, 23, 24]]
    assert flat(batch, "next", "observation") == after
    assert flat(batch, "next", "terminated") == [[0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert flat(batch, "next", "done") == [[0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]]
    # The reward is the action, clipped to the bounds.
    assert torch.equal(batch["next", "reward"], batch["action"].clamp(-2, 2))
    assert batch["valid"].all()
    assert flat(made.collect()["agent"], "observation")[1:] == [[11, 12, 10, 11], [20, 21, 22, 23]]
    ended = made.statistics.take()["agent"]
    assert sorted(length for _, length in ended) == [2, 2, 2, 2, 3, 3, 4, 4]
    assert made.total_frames == 24


def test_log_probabilities_are_those_of_the_policy() -> None:
    made = collector("Rows", 3, {})
    batch = made.collect()["agent"]
    agent = made.actors["agent"].agent
    params = agent.policy(batch["observation"])
    expected = agent.distribution.log_prob(params, batch["action"])
    assert torch.allclose(batch["action_log_prob"], expected, atol=1e-5)
    assert batch["action"].std() > 0


def test_an_agent_at_random_needs_no_network() -> None:
    batch = collector("Choices", 50, {"agent": {"is_random": True}}).collect()["agent"]
    # One of four.
    assert torch.allclose(batch["action_log_prob"], torch.tensor(-math.log(4)))
    actions = batch["action"].flatten()
    share = torch.bincount(actions, minlength=4) / len(actions)
    # Four standard deviations of a share over 200 draws; there are more.
    assert torch.allclose(share, torch.tensor(0.25), atol=0.125)


def test_agents_that_share_a_policy_and_leave_early() -> None:
    section = {"right": {"policy": "left"}}
    more = {"env_kwargs": {"max_steps": 15}, "num_envs": 2}
    made = collector("two_cartpoles", 40, section, **more)
    batch = made.collect()["left"]
    assert batch.batch_size == torch.Size([4, 40])
    done, valid = batch["next", "done"][..., 0], batch["valid"]
    assert not valid.all()
    # Who takes no part has ended before, and takes part again only when the other has ended too.
    for row in range(4):
        other = (row + 2) % 4
        for t in range(1, 40):
            if not valid[row, t]:
                assert bool(done[row, t - 1]) or not valid[row, t - 1]
                assert not done[row, t]
            if valid[row, t] and not valid[row, t - 1]:
                assert done[other, t - 1]
    # Where an episode goes on, the next observation is what is seen next.
    goes_on = valid & ~done
    seen, after = batch["observation"], batch["next", "observation"]
    assert torch.equal(after[:, :-1][goes_on[:, :-1]], seen[:, 1:][goes_on[:, :-1]])
    assert not torch.equal(after[:, :-1][done[:, :-1]], seen[:, 1:][done[:, :-1]])


def test_equal_seeds_collect_equal_batches_and_leave_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    first, second = (collector("two_cartpoles", 8, {}).collect()["left"] for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    for key in ("observation", "action", "action_log_prob"):
        assert torch.equal(first[key], second[key])


def test_a_trainer_that_learns_between_steps_is_refused() -> None:
    made = collector("Rows", 3, {})
    with pytest.raises(ConfigError, match="collects whole batches.*scenario.collector: arrays"):
        made.collect(lambda t, rows: None)
    made.actors["agent"] = lambda: None  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="scenario.collector: arrays"):
        made.begin(1)


def test_noise_that_lasts_for_several_steps_is_refused() -> None:
    section = {"_default": {"policy_head": {"use_sde": True}}}
    with pytest.raises(ConfigError, match="noise of use_sde lasts longer.*collector: arrays"):
        collector("Rows", 3, section)


def test_the_state_of_a_batch_that_torchrl_steps_cannot_be_saved() -> None:
    assert collector("Rows", 3, {}).environment.state_dict() is None
