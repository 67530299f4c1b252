"""What environments of gymnasium may not give, and what gymnasium leaves unseeded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from plugrl.core.errors import ContractError, RunError
from plugrl.core.plugins.user_code.user_files import load_file
from plugrl.scenarios.gymnasium.remote_copy import RemoteCopy
from plugrl.scenarios.gymnasium.scenario import GymnasiumScenario
from plugrl.scenarios.gymnasium.seeding import seed_spaces

FILE = str(Path(__file__).with_name("gymnasium_environments.py"))
envs = load_file(FILE)
SEEN = np.zeros(3, np.float32)
CHOICE = spaces.Discrete(4, start=2)


def environment(id: str = "Drawing-v0") -> Any:
    section = {"id": id, "num_envs": 2, "vectorization": "sync"}
    return GymnasiumScenario(section).build(0).environment("train")


def answering(**options: Any) -> Any:
    made = gymnasium.registry["Answering-v0"]
    made.kwargs = options
    return environment("Answering-v0")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((SEEN, 1.0, False, {}), "step() gave a tuple of 4 values, not observation, reward"),
        (None, "step() gave a NoneType, not observation"),
        ((SEEN, 1.0, None, False, {}), "step() gave a NoneType as terminated, not True or False"),
        ((SEEN, 1.0, False, "False", {}), "step() gave a str as truncated, not True or False"),
        ((SEEN, 1.0, np.array([True, False]), False, {}), "step() gave a ndarray as terminated"),
        ((SEEN[:1], 1.0, False, False, {}), "observation of shape (1,), and its observation"),
        ((0.5, 1.0, False, False, {}), "observation of shape (), and its observation"),
        ((SEEN[None], 1.0, False, False, {}), "observation of shape (1, 3), and its"),
        ((SEEN[:1], 1.0, True, False, {}), "observation of shape (1,), and its observation"),
        (([1, [2], 3], 1.0, False, False, {}), "observation or a reward of the wrong shape or"),
        ((SEEN, "much", False, False, {}), "observation or a reward of the wrong shape or type"),
    ],
)
def test_a_step_that_breaks_the_contract_says_how(answer: Any, said: str) -> None:
    made = answering(answer=answer)
    made.reset(0)
    with pytest.raises(ContractError) as caught:
        made.step({"agent": np.zeros(2, np.int64)})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Answering-v0" in str(caught.value)


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        (SEEN, "reset() gave a ndarray, not observation and info"),
        ((SEEN[:1], {}), "observation of shape (1,), and its observation space has (3,)"),
        (([1, [2], 3], {}), "an observation or a reward of the wrong shape or type"),
    ],
)
def test_a_reset_that_breaks_the_contract_says_how(begun: Any, said: str) -> None:
    with pytest.raises(ContractError) as caught:
        answering(begun=begun).reset(0)
    assert said in str(caught.value)


@pytest.mark.parametrize("flag", [0, 1, np.bool_(True), np.array(False), np.int8(1)])
def test_flags_of_other_types_of_numbers_are_taken(flag: Any) -> None:
    made = answering(answer=(SEEN, 1.0, flag, False, {}))
    made.reset(0)
    step = made.step({"agent": np.zeros(2, np.int64)})["agent"]
    assert step.terminated.tolist() == [bool(flag)] * 2


@pytest.mark.parametrize(
    ("space", "seen", "said"),
    [
        (CHOICE, 1, "observation 1 of Discrete(4, start=2)"),
        (CHOICE, 6, "observation 6 of Discrete(4, start=2)"),
        (spaces.MultiDiscrete([3, 4]), np.array([0, 4]), "observation [0, 4] of MultiDiscrete"),
    ],
)
def test_a_choice_that_there_is_not_is_refused(space: Any, seen: Any, said: str) -> None:
    answer = (seen, 1.0, False, False, {})
    made = answering(answer=answer, observation=space)
    made.reset(0)
    with pytest.raises(ContractError) as caught:
        made.step({"agent": np.zeros(2, np.int64)})
    assert said in str(caught.value)


def test_a_flag_that_is_none_later_on_is_a_crash(caplog: pytest.LogCaptureFixture) -> None:
    made = answering(answer=(SEEN, 1.0, False, False, {}))
    made.reset(0)
    actions = {"agent": np.zeros(2, np.int64)}
    made.step(actions)
    for copy in made._near:
        copy.environment.unwrapped._answer = (SEEN, 1.0, np.array([True, False]), False, {})
    assert made.step(actions)["agent"].truncated.tolist() == [True, True]
    assert "copy 0 raised ValueError: The truth value of an array" in caplog.text


def test_the_trial_of_a_copy_that_hangs_takes_little_more_than_its_steps() -> None:
    made = RemoteCopy.__new__(RemoteCopy)
    for seconds, expected in ((0.5, 10.0), (2.0, 40.0), (60.0, 120.0)):
        made._seconds = seconds
        assert made._trial_seconds == expected


def test_an_exit_in_the_trial_of_the_state_is_no_end_of_the_run() -> None:
    made = answering(answer=SystemExit)
    assert made.unsaved == "SystemExit: 0"


def test_what_is_drawn_from_spaces_depends_on_the_seed_and_is_saved() -> None:
    some, others = environment("Drawing-v0"), environment("Drawing-v0")
    first = some.reset(3)["agent"]
    assert np.array_equal(first, others.reset(3)["agent"])
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, some.reset(4)["agent"])
    others.reset(9)
    assert some.unsaved is None
    others.load_state_dict(some.state_dict())
    actions = {"agent": np.zeros(2, np.int64)}
    for _ in range(3):
        ours, theirs = some.step(actions)["agent"], others.step(actions)["agent"]
        assert np.array_equal(ours.observation, theirs.observation)


def test_states_of_native_copies_from_one_seed_are_equal() -> None:
    # Gymnasium copies the generator of a space into that of all copies, seeded by nobody.
    states = []
    for _ in range(2):
        made = GymnasiumScenario(
            {"id": "CartPole-v1", "num_envs": 3, "vectorization": "native"}
        ).build(0)
        native = made.environment("train")
        native.reset(5)
        states.append(repr(native.state_dict()))
    assert states[0] == states[1]


def test_spaces_of_wrappers_and_copies_are_seeded_each_with_a_seed_of_its_own() -> None:
    def draws(seed: int) -> list[Any]:
        inner = gymnasium.make("Pendulum-v1")
        outer = gymnasium.wrappers.RescaleAction(inner, np.float32(-1), np.float32(1))
        vector = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * 2)
        for each in (outer, vector):
            seed_spaces(each, seed)
        found = [outer.action_space, inner.unwrapped.action_space, vector.action_space]
        found += [vector.single_action_space, *(each.action_space for each in vector.envs)]
        drawn = [space.sample().ravel().tolist() for space in found]
        vector.close()
        return drawn

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert draws(1)[0] != draws(1)[1]


def test_without_a_seed_spaces_go_on() -> None:
    made = gymnasium.make("CartPole-v1")
    made.action_space.seed(0)
    before = made.action_space._np_random.bit_generator.state
    seed_spaces(made, None)
    assert made.action_space._np_random.bit_generator.state == before


def cartpoles(
    vectorization: str, *wrappers: str, num_envs: int = 2, id: str = "CartPole-v1"
) -> Any:
    section = {"id": id, "num_envs": num_envs, "wrappers": list(wrappers)}
    scenario = GymnasiumScenario({**section, "vectorization": vectorization})
    made = scenario.build(0).environment("train")
    made.reset(1)
    return made


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: cartpoles("native"), "by sync, and now it is native; set scenario.vectorization"),
        (lambda: cartpoles("sync", num_envs=3), "holds 2 copies"),
        (
            lambda: cartpoles("sync", "gymnasium.wrappers:NormalizeReward"),
            "cannot take back its saved state (NormalizeReward was a",
        ),
        (lambda: cartpoles("sync", id="Acrobot-v1"), "cannot take back its saved state ("),
    ],
)
def test_a_state_of_other_copies_is_refused(make: Any, said: str) -> None:
    state = cartpoles("sync").state_dict()
    with pytest.raises(RunError) as caught:
        make().load_state_dict(state)
    assert said in str(caught.value)


def test_the_state_of_native_copies_is_for_native_ones() -> None:
    with pytest.raises(RunError, match=r"by native, and now it is sync; .*vectorization=native"):
        cartpoles("sync").load_state_dict(cartpoles("native").state_dict())
