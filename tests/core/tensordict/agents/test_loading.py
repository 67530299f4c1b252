"""Parts of agents that begin with weights of another run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import plugrl
from plugrl.core.errors import ConfigError, RunError, UsageError
from plugrl.core.loaded_run import find_checkpoint
from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.tensordict.agents.agent import Agent
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces
from plugrl.scenarios.gymnasium.scenario import GymnasiumScenario
from plugrl.trainers.vanilla_ppo import VanillaPpoTrainer

SPACES = AgentSpaces(spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2))
RUN: dict[str, Any] = {
    "trainer": "vanilla_ppo",
    "scenario": {"type": "gymnasium", "id": "CartPole-v1", "num_envs": 2},
    "rl": {"num_iterations": 2, "frames_per_batch": 32, "num_epochs": 1, "minibatch_size": 32},
    "agents": {"_default": {"body": {"hidden": [8]}}},
    "validate": {"enabled": False},
    "settings": {"progress": "none", "checkpoint_every": 1},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run ``source`` with separate bodies and one ``shared`` with a single one."""
    folder = tmp_path_factory.mktemp("loading") / "runs"
    settings = RUN["settings"] | {"runs_folder": str(folder)}
    for name in ("source", "shared"):
        rl = RUN["rl"] | {"use_shared_body": name == "shared"}
        plugrl.train(RUN | {"experiment_name": name, "rl": rl, "settings": settings})
    return folder


def _weights(runs: Path, name: str = "source") -> dict[str, torch.Tensor]:
    state = plugrl.load_run(name, runs).checkpoint()["trainer"]
    weights: dict[str, torch.Tensor] = state["policies"]["agent"]["weights"]
    return weights


def _agent(runs: Path, name: str = "agent", **settings: Any) -> Agent:
    options = {"body": {"hidden": [8]}, "load_from": "source", **settings}
    shared = options.pop("shared_body", False)
    section = {"_default": options}
    built = build_agents(
        {name: SPACES}, section, seed=77, shared_body=shared, runs_folder=str(runs)
    )
    return built.policies[name]


def _loaded(agent: Agent, weights: dict[str, torch.Tensor]) -> set[str]:
    """The parts whose weights are those of the other run."""
    own = agent.state_dict()
    same = {
        key for key, value in own.items() if key in weights and torch.equal(value, weights[key])
    }
    parts = {key.partition(".")[0] for key in own if "weight" in key}
    return {part for part in parts if all(k in same for k in own if k.startswith(part))}


def test_all_parts_are_loaded(runs: Path) -> None:
    weights, agent = _weights(runs), _agent(runs)
    assert _loaded(agent, weights) == set(agent.parts)
    seen = torch.randn(3, 4)
    hidden = torch.tanh(seen @ weights["policy_body.0.weight"].T + weights["policy_body.0.bias"])
    expected = hidden @ weights["policy_head.layers.0.weight"].T
    expected = expected + weights["policy_head.layers.0.bias"]
    torch.testing.assert_close(agent.policy(seen), expected)


def test_chosen_parts_are_loaded_and_others_are_not(runs: Path) -> None:
    agent = _agent(runs, load_parts=["policy_body", "value_head"])
    assert _loaded(agent, _weights(runs)) == {"policy_body", "value_head"}


def test_a_run_with_one_policy_needs_no_name(runs: Path) -> None:
    agent = _agent(runs, "prover", load_parts=["policy_body"])
    assert _loaded(agent, _weights(runs)) == {"policy_body"}


def test_a_shared_body_and_separate_ones_stand_for_each_other(runs: Path) -> None:
    shared = _weights(runs, "shared")
    agent = _agent(runs, load_from="shared")
    for part in ("policy_body", "value_body"):
        assert torch.equal(agent.state_dict()[f"{part}.0.weight"], shared["body.0.weight"])
    other = _agent(runs, load_from="source", shared_body=True, load_parts=["body"])
    expected = _weights(runs)["policy_body.0.weight"]
    assert torch.equal(other.state_dict()["body.0.weight"], expected)


def test_a_step_of_the_run_can_be_named(runs: Path) -> None:
    early, late = _agent(runs, load_checkpoint="1"), _agent(runs)
    assert not torch.equal(
        early.state_dict()["policy_body.0.weight"], late.state_dict()["policy_body.0.weight"]
    )
    by_path = _agent(runs, load_from=str(plugrl.load_run("source", runs).folder))
    assert _loaded(by_path, _weights(runs)) == set(by_path.parts)


def test_nothing_is_loaded_for_who_goes_on(runs: Path) -> None:
    section = {"agent": {"load_from": "no such run"}}
    agent = build_agents({"agent": SPACES}, section, load=False).policies["agent"]
    assert agent.config["load_from"] == "no such run"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"load_from": "sourze"}, "no run 'sourze'"),
        ({"load_checkpoint": "9"}, "has no checkpoint '9'; it has steps 1, 2, newest"),
        ({"load_policy": "agnet"}, "agents._default.load_policy:.*'agnet'; did you mean agent?"),
        ({"load_parts": ["body"]}, "this agent has no body; its parts are policy_body, value_body"),
        (
            {"body": {"hidden": [9]}},
            r"policy_body of source has 0.weight of shape \[8, 4\], and here it is \[9, 4\]",
        ),
        ({"body": {"hidden": [8, 8]}}, "policy_body of source lacks 2.weight; build the part as"),
        ({"body": {"hidden": []}}, "policy_body of source has another layer, 0.weight; build"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_one_line(
    runs: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises((ConfigError, UsageError)) as error:
        _agent(runs, **settings)
    message = str(error.value).replace(plugrl.load_run("source", runs).folder.name, "source")
    assert re.search(said, message), message
    assert "\n" not in message


def _edited(runs: Path, tmp_path: Path, state: dict[str, Any]) -> str:
    """A copy of the run whose newest checkpoint holds another state."""
    copy = tmp_path / "copy"
    shutil.copytree(plugrl.load_run("source", runs).folder, copy)
    checkpoint.save(copy / "checkpoints", 3, state)
    return str(copy)


def test_runs_of_other_trainers_are_told(runs: Path, tmp_path: Path) -> None:
    other = _edited(runs, tmp_path, {"trainer": {"step": 3}})
    with pytest.raises(ConfigError, match="copy has no policies; name a run of small networks"):
        _agent(runs, load_from=other)


def test_a_part_that_the_run_lacks_is_told(runs: Path, tmp_path: Path) -> None:
    weights = {k: v for k, v in _weights(runs).items() if not k.startswith("value")}
    held = {"policies": {"first": {"weights": weights}, "second": {"weights": {}}}}
    other = _edited(runs, tmp_path, {"trainer": held})
    with pytest.raises(
        ConfigError, match="copy has no policy 'agent'; its policies are first, sec"
    ):
        _agent(runs, load_from=other)
    with pytest.raises(ConfigError, match=r"no value_body, but policy_body, policy_head; name"):
        _agent(runs, load_from=other, load_policy="first")
    with pytest.raises(ConfigError, match="no policy_body, but nothing"):
        _agent(runs, load_from=other, load_policy="second")


def test_a_damaged_checkpoint_is_told_and_left_alone(runs: Path, tmp_path: Path) -> None:
    other = Path(_edited(runs, tmp_path, {"trainer": {}}))
    before = sorted(path.name for path in (other / "checkpoints").iterdir())
    for tensors in other.rglob("tensors.safetensors"):
        tensors.write_bytes(tensors.read_bytes()[:-1] + b"x")
    with pytest.raises((UsageError, RunError)) as error:
        _agent(runs, load_from=str(other))
    assert "can be read" in str(error.value)
    assert sorted(path.name for path in (other / "checkpoints").iterdir()) == before


def _following(runs: Path, **agents: Any) -> dict[str, Any]:
    section = {"body": {"hidden": [8]}, "load_from": "source", **agents}
    return RUN | {
        "experiment_name": "following",
        "agents": {"_default": section},
        "rl": RUN["rl"] | {"num_iterations": 0},
        "settings": RUN["settings"] | {"runs_folder": str(runs)},
        "seed": 5,
    }


def test_a_run_begins_with_the_weights_of_another(runs: Path) -> None:
    run = plugrl.train(_following(runs, load_parts=["policy_body", "policy_head"]))
    weights = run.checkpoint()["trainer"]["policies"]["agent"]["weights"]
    same = {k for k, v in weights.items() if torch.equal(v, _weights(runs)[k]) and "weight" in k}
    assert same == {"policy_body.0.weight", "policy_head.layers.0.weight"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"load_from": "sourze"}, "agents._default.load_from.*no run 'sourze'"),
        ({"load_from": "latest"}, "latest is the run that trains, once it has begun"),
        ({"load_from": "following"}, "following is the run that trains, once it has begun"),
        ({"load_checkpoint": "best"}, "no checkpoint of .* has a score"),
    ],
)
def test_a_run_that_is_not_there_is_told_before_training(
    runs: Path, settings: dict[str, Any], said: str
) -> None:
    before = sorted(path.name for path in runs.iterdir())
    with pytest.raises(ConfigError, match=said):
        plugrl.train(_following(runs, **settings))
    assert sorted(path.name for path in runs.iterdir()) == before


def test_what_goes_on_needs_the_other_run_no_more(runs: Path) -> None:
    params = {"rl": RUN["rl"], "validate": RUN["validate"], "seed": 0}
    agents = {"_default": {"body": {"hidden": [8]}, "load_from": "gone"}}

    def trainer() -> VanillaPpoTrainer:
        task = GymnasiumScenario({"id": "CartPole-v1", "num_envs": 2}).build(0)
        return VanillaPpoTrainer(scenario_instance=task, hyper_params=params | {"agents": agents})

    with pytest.raises(UsageError, match="no run 'gone'"):
        trainer().train()
    state = plugrl.load_run("source", runs).checkpoint()["trainer"]
    resumed = trainer()
    resumed.load_state_dict(state | {"iteration": 1})
    assert resumed.train().steps == 2


def test_a_phase_goes_on_with_all_parts_unless_it_loads_its_own(runs: Path) -> None:
    rl = RUN["rl"]
    phases = [
        {"name": "first", "trainer": {"type": "reinforce"}},
        {"name": "second", "trainer": {"type": "vanilla_ppo"}},
        {
            "name": "third",
            "trainer": {"type": "vanilla_ppo"},
            "agents": {"_default": {"load_from": "source"}},
        },
    ]
    settings = RUN["settings"] | {"runs_folder": str(runs), "keep_checkpoints": None}
    run = plugrl.train(
        RUN
        | {
            "experiment_name": "phases",
            "trainer": {"type": "sequence", "phases": phases},
            "rl": rl,
            "settings": settings,
        }
    )

    def weights(step: int) -> dict[str, torch.Tensor]:
        state = checkpoint.load(find_checkpoint(run.folder, str(step)))["trainer"]["child"]
        found: dict[str, torch.Tensor] = state["policies"]["agent"]["weights"]
        return found

    # Each phase has steps 0, 1 and 2, of which the first comes before anything is learned.
    first, second, third = weights(2), weights(3), weights(6)
    shared = [name for name in second if name in first]
    assert {name.partition(".")[0] for name in shared} >= {"policy_body", "policy_head"}
    assert all(torch.equal(second[name], first[name]) for name in shared)
    source = _weights(runs)
    assert all(torch.equal(third[name], source[name]) for name in source)
    assert not torch.equal(weights(5)["policy_body.0.weight"], third["policy_body.0.weight"])
