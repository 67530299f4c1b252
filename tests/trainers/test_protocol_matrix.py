"""Every protocol, with zero knowledge and without, trains in every task."""

from typing import Any

import numpy as np
import pytest
import torch

from plugrl.core.component import build
from plugrl.core.plugins.registry import default_registry
from plugrl.core.protocol.protocol import make_protocol

PROTOCOLS = ["nip", "adp", "debate", "merlin_arthur", "mnip", "multi_channel", "solo_verifier"]
#: Sections of each task that make it quick.
TASKS: dict[str, dict[str, Any]] = {
    "image_classification": {"max_train_size": 200},
    "graph_isomorphism": {"train_size": 200},
}
BODIES: dict[str, dict[str, Any]] = {
    "image_classification": {"type": "mlp", "hidden": [8]},
    "graph_isomorphism": {"type": "graph_pair", "width": 8},
}
TRAINERS: dict[str, dict[str, Any]] = {
    "vanilla_ppo": {},
    "reinforce": {},
    "spg": {"spg": {"variant": "pspg", "ihvp_rank": 2}},
}


def protocol(name: str, zero_knowledge: bool) -> dict[str, Any]:
    section = {"type": name}
    return {"type": "zero_knowledge", "base": section} if zero_knowledge else section


def trained(trainer: str, task: str, section: dict[str, Any], iterations: int = 10) -> Any:
    registry = default_registry()

    def load(kind: str, name: str) -> Any:
        return registry.load(registry.resolve(kind, name))

    scenario = build(
        load("scenario", task), {"type": task, "protocol": section, "num_envs": 48, **TASKS[task]}
    )
    made = load("trainer", trainer)(
        scenario_instance=scenario.build(0),
        hyper_params={
            "rl": {
                "num_iterations": iterations,
                "frames_per_batch": 48 * 8,
                "minibatch_size": 192,
                "num_epochs": 1,
                "lr": 0.01,
            },
            "agents": {"_default": {"body": BODIES[task]}},
            "validate": {"enabled": False},
            **TRAINERS[trainer],
        },
    )
    before: dict[str, Any] = {}

    def build_learners(original: Any = made._build_learners) -> None:
        original()
        before.update({name: _weights(agent) for name, agent in made.agents.items()})

    made._build_learners = build_learners
    made.train()
    return made, before


def _weights(agent: Any) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in agent.parameters()])


def check(trainer: str, task: str, section: dict[str, Any], iterations: int = 10) -> None:
    made, before = trained(trainer, task, section, iterations)
    metrics = made.run.metrics
    assert [m["step"] for m in metrics if "rollout/episodes" in m] == [*range(1, iterations + 1)]
    assert set(made.agents) == set(make_protocol(section).agent_names)
    for name, agent in made.agents.items():
        after = _weights(agent)
        assert torch.isfinite(after).all(), name
        # Without a value head there is nothing to learn for whom the protocol pays nothing.
        own = f"rollout/{name}" if len(made.agents) > 1 else "rollout"
        earned = any(m.get(f"{own}/mean_episode_return") for m in metrics)
        changed = not torch.equal(after, before[name])
        assert changed == (earned or agent.value_head is not None), name
    for each in metrics:
        assert all(np.isfinite(value) for value in each.values())
        if "rollout/accuracy" in each:
            assert 0 <= each["rollout/accuracy"] <= 1
            assert each["rollout/accuracy"] + each["rollout/undecided"] <= 1 + 1e-6


@pytest.mark.integration
@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(
    ("task", "name"), [("graph_isomorphism", "nip"), ("image_classification", "debate")]
)
def test_trainers_learn_in_protocols(trainer: str, task: str, name: str) -> None:
    check(trainer, task, protocol(name, zero_knowledge=name == "debate"), 2)


@pytest.mark.slow
@pytest.mark.parametrize("zero_knowledge", [False, True], ids=["open", "zero knowledge"])
@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("task", TASKS)
def test_every_protocol_trains_in_every_task(
    task: str, name: str, trainer: str, zero_knowledge: bool
) -> None:
    check(trainer, task, protocol(name, zero_knowledge))
