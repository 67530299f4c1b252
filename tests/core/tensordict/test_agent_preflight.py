"""Agents that do not fit their environment are found before a run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plugrl.core.errors import ConfigError
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
    prepare(RUN | {"agents": {"_default": {"policy": "mine"}, "mine": {"is_random": True}}})


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
