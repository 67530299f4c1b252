"""Environments of small networks in processes on the cluster."""

import os
import signal

import numpy as np
import pytest

from plugrl.scenarios.gymnasium.scenario import GymnasiumScenario

pytestmark = pytest.mark.integration


def environment(vectorization):
    scenario = GymnasiumScenario(
        {"id": "CartPole-v1", "num_envs": 2, "vectorization": vectorization}
    )
    return scenario.build(0).make_environment("train")


def play(env, steps=40):
    """What agents see and earn in some steps, and the state in the middle."""
    seen, state = [env.reset(7)["agent"]], None
    for number in range(steps):
        step = env.step({"agent": np.array([number % 2, number % 3 % 2])})["agent"]
        seen += [step.observation, step.reward, step.terminated, step.truncated]
        if number == steps // 2:
            state = env.state_dict()
    return seen, state


def test_environments_of_a_cluster_give_the_numbers_of_processes_and_resume(ray):
    near, far = environment("async"), environment("ray")
    try:
        (expected, state), (found, other) = play(near), play(far)
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
        # Either goes on from the state of the other.
        near.load_state_dict(other)
        far.load_state_dict(state)
        action = {"agent": np.array([1, 1])}
        here, there = near.step(action)["agent"], far.step(action)["agent"]
        assert np.array_equal(here.observation, there.observation)
        # One that is killed is built anew, and its episode counts as cut off.
        os.kill(int(far._far[0]._process._process.place["pid"]), signal.SIGKILL)
        assert list(far.step(action)["agent"].truncated) == [True, False]
        assert far.crashes == 1
    finally:
        near.close()
        far.close()
