"""Agents that do not fit their environment are found before a run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import plugrl
from plugrl.core.errors import ConfigError, PluginError
from plugrl.core.experiment import prepare

RUN: dict[str, Any] = {
    "trainer": "vanilla_ppo",
    "scenario": {"type": "gymnasium", "id": "CartPole-v1", "num_envs": 2},
}


@pytest.mark.parametrize(
    ("agents", "fault"),
    [
        (
            {"agnet": {}},
            "agents.agnet (Python): the environment has no such agent; did you mean agent?; its "
            "agents are agent",
        ),
        (
            {"agent": {"body": "nature_cnn"}},
            "agents.agent.body (Python): nature_cnn reads images of at least 36 x 36 with "
            "channels, not observations of shape [4]; take body: mlp",
        ),
        (
            {"_default": {"value_body": "nature_cnn"}},
            "agents._default.value_body (Python): nature_cnn reads images of at least 36 x 36 with "
            "channels, not observations of shape [4]; take body: mlp",
        ),
    ],
)
def test_what_does_not_fit_is_found(agents: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(RUN | {"agents": agents})
    assert caught.value.faults == (fault,)


def test_what_fits_is_not_a_fault() -> None:
    prepare(RUN | {"agents": {"agent": {"body": {"hidden": [3]}}}})
    prepare(RUN | {"agents": {"_default": {"policy": "mine"}, "mine": {"body": {"hidden": [3]}}}})


def test_an_environment_that_cannot_be_made_is_told_once() -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(RUN | {"scenario": {"type": "gymnasium", "id": "CartPoel-v1"}, "agents": {"a": {}}})
    (fault,) = caught.value.faults
    assert fault.startswith("scenario.id")


@pytest.mark.parametrize("agents", [{"lefty": {}}, {"left": {"body": "nature_cnn"}}])
def test_agents_of_any_scenario_are_looked_at(tmp_path: Path, agents: dict[str, Any]) -> None:
    file = tmp_path / "task.py"
    file.write_text(
        "from plugrl import Scenario\n"
        "from plugrl.scenarios.pettingzoo.scenario import PettingZooScenario\n"
        "class Task(Scenario):\n"
        "    def build(self, seed):\n"
        "        name = 'plugrl.scenarios.pettingzoo.two_cartpoles:TwoCartPoles'\n"
        "        return PettingZooScenario({'environment': name}).build(seed)\n",
        encoding="utf-8",
    )
    task = {"custom_scenario_module_path": str(file), "custom_scenario_class_name": "Task"}
    with pytest.raises(ConfigError) as caught:
        prepare(RUN | {"scenario": task, "agents": agents})
    (fault,) = caught.value.faults
    assert fault.startswith(f"agents.{next(iter(agents))}")


FROZEN = {"_default": {"agent_lr_factor": {"actor": 0, "critic": 0}}}


@pytest.mark.parametrize(
    ("tree", "fault"),
    [
        ({"rl": {"frames_per_batch": 9}}, "rl.frames_per_batch (Python): 9 is no multiple of 2"),
        ({"rl": {"lr": 0}}, "rl.lr (Python): must be above 0, not 0.0"),
        ({"agents": {"agent": {"is_random": True}}}, "agents (Python): no agent is trained"),
        ({"agents": FROZEN}, "agents (Python): no agent is trained"),
        (
            {"trainer": "sac"},
            "trainer (Python): sac chooses real numbers, and the actions of agent agent are "
            "Discrete(2); take dqn or vanilla_ppo",
        ),
        (
            {"trainer": "dqn", "scenario": {**RUN["scenario"], "id": "Pendulum-v1"}},
            "trainer (Python): dqn chooses one of several actions",
        ),
    ],
)
def test_what_cannot_be_trained_is_found_before_the_run(tree: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(RUN | tree)
    (said,) = caught.value.faults
    assert said.startswith(fault)


@pytest.mark.parametrize(
    "sizes",
    [
        {"body": {"hidden": [10**9]}},
        {"body": {"hidden": [1 << 24, 1 << 24]}},
        {"body": {"hidden": [10**12, 10**12]}},
        {"value_head": {"hidden": [10**9, 4]}},
        {"policy_head": {"hidden": [10**9, 10**9]}},
    ],
    ids=str,
)
def test_networks_larger_than_memory_are_refused_at_once(
    sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(tensor: Any, *_: Any, **__: Any) -> None:
        assert tensor.numel() < 2**30, "such weights are not drawn"

    # 16 GB of numbers are easily had from the system, and take minutes to be drawn.
    monkeypatch.setattr("plugrl.core.run.process.memory.total_bytes", lambda device="cpu": 2**33)
    monkeypatch.setattr("torch.nn.init.kaiming_uniform_", refuse)
    with pytest.raises(ConfigError) as caught:
        prepare(RUN | {"agents": {"agent": sizes}})
    (said,) = caught.value.faults
    (part,) = sizes
    assert said.startswith(f"agents.agent.{part} (Python): ")
    assert "take smaller sizes" in said


def test_batches_of_given_steps_need_not_be_a_multiple() -> None:
    prepare(RUN | {"rl": {"frames_per_batch": 9, "steps_per_env_per_iteration": 4}})


def test_weights_that_do_not_fit_are_found_before_the_run(tmp_path: Path) -> None:
    runs = {"settings": {"runs_folder": str(tmp_path), "progress": "none"}}
    small = {"rl": {"num_iterations": 0}, "validate": {"enabled": False}}
    source = plugrl.train(RUN | runs | small | {"agents": {"agent": {"body": {"hidden": [4]}}}})
    agents = {"agent": {"load_from": str(source.folder), "body": {"hidden": [8]}}}
    with pytest.raises(ConfigError) as caught:
        prepare(RUN | runs | {"agents": agents})
    (said,) = caught.value.faults
    assert said.startswith("agents.agent.load_from (Python): policy_body of ")
    assert "of shape [4, 4], and here it is [8, 4]" in said
    agents["agent"]["body"] = {"hidden": [4]}
    prepare(RUN | runs | {"agents": agents})


def test_an_exit_of_a_task_is_no_success(tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    file.write_text(
        "import sys\n"
        "from plugrl import Scenario\n"
        "class Task(Scenario):\n"
        "    def build(self, seed):\n"
        "        sys.exit(0)\n",
        encoding="utf-8",
    )
    task = {"custom_scenario_module_path": str(file), "custom_scenario_class_name": "Task"}
    with pytest.raises(PluginError, match=r"preflight raised SystemExit: 0"):
        prepare(RUN | {"scenario": task})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"agents": {"verifier": {"scripted": "oracel"}}},
            "agents.verifier.scripted (Python): the task has no hand-made policy 'oracel'",
        ),
        (
            {"agents": {"verifier": {"scripted": "json:loads", "is_random": True}}},
            "agents.verifier (Python): is_random and scripted exclude each other; remove one",
        ),
        (
            {"agents": {"verifier": {"scripted": "json:loads", "load_from": "other"}}},
            "agents.verifier.load_from (Python): cannot be set for an agent with scripted",
        ),
        (
            {"rl": {"normalize_observations": True}},
            "rl.normalize_observations (Python): has no effect here: observations with named parts "
            "are not scaled; remove it",
        ),
    ],
)
def test_what_agents_of_protocols_cannot_be_is_found(change: dict[str, Any], fault: str) -> None:
    run = {"trainer": "vanilla_ppo", "scenario": {"type": "image_classification", "num_envs": 2}}
    with pytest.raises(ConfigError) as caught:
        prepare(run | change)
    assert caught.value.faults[0].startswith(fault)
