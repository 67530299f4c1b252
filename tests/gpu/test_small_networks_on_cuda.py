"""Trainers of small networks whose networks are on a CUDA device."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from plugrl.core.plugins.registry import default_registry

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
CARTPOLE = {"type": "gymnasium", "id": "CartPole-v1", "num_envs": 4}
PENDULUM = {"type": "gymnasium", "id": "Pendulum-v1", "num_envs": 4}
#: Agents take turns, and a protocol compares the logits that they act by.
TALK = {
    "type": "image_classification",
    "protocol": {"type": "zero_knowledge", "base": {"type": "nip", "max_message_rounds": 4}},
    "num_envs": 8,
}
TRAINERS = {
    "vanilla_ppo": (CARTPOLE, {"rl": {"frames_per_batch": 128, "minibatch_size": 64}}),
    "reinforce": (CARTPOLE, {"rl": {"frames_per_batch": 128}}),
    "a2c": (CARTPOLE, {"rl": {"frames_per_batch": 128}}),
    "vanilla_ppo in turns": (TALK, {"rl": {"frames_per_batch": 128, "minibatch_size": 32}}),
    "reinforce in turns": (TALK, {"rl": {"frames_per_batch": 128}}),
    "spg in turns": (
        TALK,
        {"rl": {"frames_per_batch": 128, "minibatch_size": 32}, "spg": {"variant": "pspg"}},
    ),
    "dqn": (CARTPOLE, {"rl": {"frames_per_batch": 128}, "dqn": {"learning_starts": 32}}),
    "sac": (PENDULUM, {"rl": {"frames_per_batch": 128}, "sac": {"learning_starts": 32}}),
    "td3": (PENDULUM, {"rl": {"frames_per_batch": 128}, "td3": {"learning_starts": 32}}),
}


def made(name: str, device: str, iterations: int) -> Any:
    registry = default_registry()
    scenario, sections = TRAINERS[name]
    built = registry.load(registry.resolve("scenario", scenario["type"]))(scenario)
    rl = {"num_iterations": iterations, "lr": 1e-3, **sections["rl"]}
    return registry.load(registry.resolve("trainer", name.partition(" ")[0]))(
        scenario_instance=built.build(0),
        hyper_params={**sections, "rl": rl, "validate": {"episodes": 2}},
        settings={"device": device},
    )


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    policies = trainer.state_dict()["policies"]
    return {
        f"{policy}.{name}": tensor.float().cpu()
        for policy, state in policies.items()
        for name, tensor in state["weights"].items()
    }


# Those whose losses draw nothing: random numbers of a device are its own.
@pytest.mark.parametrize(
    "name", ["vanilla_ppo", "reinforce", "a2c", "vanilla_ppo in turns", "spg in turns", "dqn"]
)
def test_training_on_cuda_gives_about_the_weights_of_the_cpu(name: str) -> None:
    trained = {}
    for device in ("cpu", "cuda"):
        trainer = made(name, device, iterations=1)
        result = trainer.train()
        assert all(np.isfinite(value) for value in result.metrics.values())
        agents = trainer.scenario_instance.agents.values()
        assert {p.device.type for agent in agents for p in agent.parameters()} == {device}
        trained[device] = weights(trainer)
    begun = weights_at_start(name)
    for key, expected in trained["cpu"].items():
        moved = (expected - begun[key]).abs().max()
        assert (trained["cuda"][key] - expected).abs().max() <= 0.02 * moved + 1e-5, key


def weights_at_start(name: str) -> dict[str, torch.Tensor]:
    trainer = made(name, "cpu", iterations=0)
    trainer.train()
    return weights(trainer)


@pytest.mark.parametrize("name", list(TRAINERS))
def test_a_run_on_cuda_goes_on_from_its_state(name: str) -> None:
    whole = made(name, "cuda", iterations=4)
    states: list[Any] = []
    end = whole._end_iteration

    def kept(iteration: int, metrics: dict[str, float]) -> None:
        end(iteration, metrics)
        if iteration == 2:
            states.append(copy.deepcopy(whole.state_dict()))

    whole._end_iteration = kept
    whole.train()
    resumed = made(name, "cuda", iterations=4)
    resumed.load_state_dict(states[0])
    resumed.train()
    for key, expected in weights(whole).items():
        torch.testing.assert_close(weights(resumed)[key], expected, rtol=0, atol=1e-6)
