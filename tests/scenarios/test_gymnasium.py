"""The scenario ``gymnasium``: beside environments that are stepped by hand."""

import json
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium import spaces
from waiting import DEADLINE

from plugrl.core.errors import ConfigError, ContractError, NonFiniteError, RunError
from plugrl.core.experiment import prepare
from plugrl.core.plugins.user_code.user_files import load_file
from plugrl.core.run.checkpoints.state import Encoder, decode
from plugrl.scenarios.gymnasium.scenario import GymnasiumScenario

FILE = str(Path(__file__).with_name("gymnasium_environments.py"))
envs = load_file(FILE)
NOTHING, ENDS, CUT, BOTH, RAISES = envs.NOTHING, envs.ENDS, envs.CUT, envs.BOTH, envs.RAISES
#: Ways to step Scripted-v0; the environment is the same.
NEAR = {"id": f"{FILE}:Scripted-v0", "vectorization": "sync"}
FAR = {"id": f"{FILE}:Scripted-v0", "vectorization": "async"}
NEXT_STEP = {"id": f"{FILE}:NextStep-v0", "vectorization": "native"}
SAME_STEP = {"id": f"{FILE}:SameStep-v0", "vectorization": "native"}


@pytest.fixture
def made():
    """Makes environments, which are closed at the end of the test."""
    open_ones = []

    def make(split="train", **section):
        scenario = GymnasiumScenario({"num_envs": 2, **section}).build(0)
        open_ones.append(scenario.environment(split))
        return open_ones[-1]

    yield make
    for environment in open_ones:
        environment.close()


def seeds_of(seed, count):
    return [int(word) for word in np.random.SeedSequence(seed).generate_state(count)]


def step(environment, *actions):
    return environment.step({"agent": np.array(actions)})["agent"]


def actions_of(space, rng, count):
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=count)
    return rng.normal(0.0, 3.0, (count, *space.shape)).astype(np.float32)


@pytest.mark.parametrize(
    ("section", "steps"),
    [
        ({"id": "CartPole-v1", "vectorization": "sync"}, 200),
        ({"id": "CartPole-v1", "vectorization": "sync", "max_episode_steps": 9}, 60),
        ({"id": "Pendulum-v1", "vectorization": "sync", "max_episode_steps": 13}, 60),
        ({"id": "Acrobot-v1", "vectorization": "async", "max_episode_steps": 8}, 40),
        ({"id": "FrozenLake-v1", "vectorization": "sync"}, 120),
    ],
)
def test_each_transition_equals_that_of_environments_stepped_by_hand(made, section, steps):
    environment = made(num_envs=3, **section)
    limit = section.get("max_episode_steps")
    single = [gymnasium.make(section["id"], max_episode_steps=limit) for _ in range(3)]
    first = [e.reset(seed=s)[0] for e, s in zip(single, seeds_of(5, 3), strict=True)]
    assert np.array_equal(environment.reset(5)["agent"], np.array(first, first_dtype(first)))
    rng, ended = np.random.default_rng(0), np.zeros(2, int)
    for _ in range(steps):
        actions = actions_of(single[0].action_space, rng, 3)
        got = step(environment, *actions)
        for i, each in enumerate(single):
            action = actions[i]
            if isinstance(each.action_space, spaces.Box):
                action = np.clip(action, each.action_space.low, each.action_space.high)
            seen, reward, terminated, truncated, _ = each.step(action)
            assert got.terminated[i] == terminated
            assert got.truncated[i] == (truncated and not terminated)
            assert got.reward[i] == np.float32(reward)
            if terminated or truncated:
                ended += (terminated, truncated)
                assert np.array_equal(got.final_observation[i], seen)
                seen, _ = each.reset()
            assert np.array_equal(got.observation[i], seen)
        assert got.real is None
        assert (got.final_observation is None) == (not (got.terminated | got.truncated).any())
    assert ended.sum() >= 3


def first_dtype(first):
    return np.int64 if np.ndim(first[0]) == 0 else np.float32


def test_a_native_environment_begins_anew_in_a_step_that_is_not_real(made):
    environment = made(id="CartPole-v1", vectorization="native", num_envs=3)
    native = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
    seen, _ = native.reset(seed=seeds_of(11, 1)[0])
    assert np.array_equal(environment.reset(11)["agent"], seen)
    rng, before, ends = np.random.default_rng(1), np.zeros(3, bool), 0
    for _ in range(150):
        actions = rng.integers(2, size=3)
        got = step(environment, *actions)
        seen, reward, terminated, truncated, _ = native.step(actions)
        assert np.array_equal(got.observation, seen)
        assert np.array_equal(got.reward, reward)
        assert np.array_equal(got.terminated, terminated)
        assert np.array_equal(got.truncated, truncated & ~terminated)
        assert np.array_equal(got.real, ~before) if before.any() else got.real is None
        before = terminated | truncated
        ends += before.sum()
        # What is seen at the end of an episode is its last observation, not one of the next.
        if before.any():
            assert np.array_equal(got.final_observation[before], seen[before])
            beyond = (np.abs(seen[:, 0]) > 2.4) | (np.abs(seen[:, 2]) > 0.2094)
            assert np.array_equal(beyond, before)
    assert ends > 8


def test_many_copies_are_stepped_natively_and_few_one_after_the_other(made):
    kinds = [type(made(id="CartPole-v1", num_envs=n)).__name__ for n in (7, 8)]
    assert kinds == ["SteppedEnvironment", "NativeEnvironment"]
    # Native code that never begins anew is no help, unless it is asked for.
    disabled = made(id=f"{FILE}:Disabled-v0", num_envs=8)
    assert type(disabled).__name__ == "SteppedEnvironment"
    with pytest.raises(ConfigError, match="does not begin anew by itself"):
        made(id=f"{FILE}:Disabled-v0", vectorization="native")
    aware = ["gymnasium.wrappers:TimeAwareObservation"]
    wrapped = made(id="CartPole-v1", num_envs=8, wrappers=aware)
    assert type(wrapped).__name__ == "SteppedEnvironment"
    assert wrapped.spaces["agent"].observation.shape == (5,)


def scripted_rows(environment, script):
    """Of one copy: (step seen, reward, terminated, truncated, last step seen, real)."""
    seen = []
    for actions in script:
        got = step(environment, *actions)
        final = None if got.final_observation is None else got.final_observation[0, 1]
        real = True if got.real is None else bool(got.real[0])
        ended = (bool(got.terminated[0]), bool(got.truncated[0]))
        if not any(ended):
            final = None
        seen.append((got.observation[0, 1], got.reward[0], *ended, final, real))
    return seen


SCRIPT = [(NOTHING, NOTHING), (ENDS, NOTHING), (NOTHING, NOTHING), (CUT, NOTHING), (BOTH, NOTHING)]


@pytest.mark.parametrize("section", [NEAR, FAR, SAME_STEP])
def test_an_episode_that_ends_begins_anew_in_the_same_step(made, section):
    environment = made(**section, env_kwargs={"reuses": section is not SAME_STEP})
    environment.reset(0)
    assert scripted_rows(environment, SCRIPT) == [
        (1, 0.5, False, False, None, True),
        (0, 1.0, True, False, 2, True),
        (1, 0.5, False, False, None, True),
        (0, 1.0, False, True, 2, True),
        # Ended and cut off at once: it ended.
        (0, 0.5, True, False, 1, True),
    ]


def test_an_episode_of_a_native_environment_begins_anew_in_the_next_step(made):
    environment = made(**NEXT_STEP)
    environment.reset(0)
    assert scripted_rows(environment, [*SCRIPT, (BOTH, NOTHING)]) == [
        (1, 0.5, False, False, None, True),
        (2, 1.0, True, False, 2, True),
        (0, 0.0, False, False, None, False),
        (1, 0.5, False, True, 1, True),
        (0, 0.0, False, False, None, False),
        (1, 0.5, True, False, 1, True),
    ]


@pytest.mark.parametrize("section", [NEAR, FAR, SAME_STEP, NEXT_STEP])
def test_arrays_that_were_given_do_not_change_later(made, section):
    environment = made(**section, env_kwargs={"reuses": True})
    held = [environment.reset(0)["agent"]]
    copies = [held[0].copy()]
    for action in (NOTHING, ENDS, NOTHING, NOTHING, CUT, NOTHING):
        got = step(environment, action, NOTHING)
        for array in (got.observation, got.reward, got.terminated, got.final_observation):
            if array is not None:
                held.append(array)
                copies.append(array.copy())
    assert all(np.array_equal(a, b) for a, b in zip(held, copies, strict=True))
    # Nor does what a caller writes into them reach the environment.
    got.observation[:] = 77
    assert 77 not in step(environment, RAISES, NOTHING).final_observation


@pytest.mark.parametrize("section", [NEAR, FAR, NEXT_STEP])
def test_equal_seeds_give_equal_numbers_and_copies_differ(made, section):
    def played(environment, seed):
        seen = [environment.reset(seed)["agent"]]
        seen += [step(environment, ENDS, ENDS).observation for _ in range(4)]
        return np.stack(seen)

    environment = made(**section)
    first, again = played(environment, 3), played(made(**section), 3)
    other = played(environment, 4)
    assert np.array_equal(first, again)
    assert not set(first[..., 0].ravel()) & set(other[..., 0].ravel())
    assert len(set(first[0, :, 0])) == 2


@pytest.mark.parametrize("section", [NEAR, FAR])
def test_a_copy_that_breaks_is_built_anew_and_no_other_is_harmed(made, section, caplog):
    environment, beside = made(**section), made(**NEAR)
    first = environment.reset(0)["agent"]
    beside.reset(0)
    for action in (NOTHING, RAISES, NOTHING, ENDS):
        got = step(environment, action, NOTHING)
        unharmed = step(beside, NOTHING, NOTHING)
        assert np.array_equal(got.observation[1], unharmed.observation[1])
        assert (got.terminated[1], got.truncated[1]) == (False, False)
        if action == RAISES:
            # The last that was seen of the episode, and the first of one that is another.
            assert (got.terminated[0], got.truncated[0], got.reward[0]) == (False, True, 0)
            assert got.final_observation[0].tolist() == [first[0, 0], 1]
            assert got.observation[0, 1] == 0
            assert got.observation[0, 0] != first[0, 0]
            assert got.real is None
        elif action == ENDS:
            assert got.final_observation[0, 1] == 2
    assert environment.crashes == 1
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "copy 0 raised ValueError: the pole fell off the cart in step() at " in line
    assert "gymnasium_environments.py:" in line
    assert "1 of at most 10 times" in line
    assert "\n" not in line


def test_numbers_after_a_crash_depend_on_the_seed(made):
    def played():
        environment = made(**NEAR)
        environment.reset(3)
        return step(environment, RAISES, NOTHING).observation

    assert np.array_equal(played(), played())


def test_copies_may_not_break_more_often_than_allowed(made):
    environment = made(**NEAR, max_restarts=2)
    environment.reset(0)
    step(environment, RAISES, NOTHING)
    step(environment, NOTHING, RAISES)
    with pytest.raises(RunError, match=r"max_restarts=2 allows; at last copy 1 raised ValueError"):
        step(environment, NOTHING, RAISES)


@pytest.mark.parametrize("section", [NEAR, FAR])
def test_a_reset_that_raises_is_tried_with_a_new_environment(made, section):
    environment = made(**section, env_kwargs={"breaks": 2})
    environment.reset(0)
    got = step(environment, ENDS, NOTHING)
    # The episode had ended before it broke.
    assert (got.terminated[0], got.truncated[0], got.final_observation[0, 1]) == (True, False, 1)
    assert environment.crashes == 1
    hopeless = made(**NEAR, env_kwargs={"breaks": 1}, max_restarts=3)
    with pytest.raises(RunError, match=r"max_restarts=3 .* OSError: no way to begin in reset\(\)"):
        hopeless.reset(0)


@pytest.mark.parametrize("section", [SAME_STEP, NEXT_STEP])
def test_all_copies_of_a_native_environment_are_built_anew(made, section):
    environment = made(**section, max_restarts=1)
    first = environment.reset(0)["agent"]
    got = step(environment, NOTHING, RAISES)
    assert got.truncated.tolist() == [True, True]
    assert np.array_equal(got.final_observation, first)
    assert got.observation[:, 1].tolist() == [0, 0]
    assert (environment.crashes, got.real) == (1, None)
    # Nothing is left of what was before.
    assert step(environment, ENDS, NOTHING).real is None
    with pytest.raises(RunError, match="one of which raised ValueError"):
        step(environment, NOTHING, RAISES)


def test_a_native_copy_that_was_to_begin_anew_when_another_broke_did_not_end_twice(made):
    environment = made(**NEXT_STEP)
    environment.reset(0)
    step(environment, ENDS, NOTHING)
    got = step(environment, NOTHING, RAISES)
    assert (got.truncated.tolist(), got.real.tolist()) == ([False, True], [False, True])
    assert step(environment, NOTHING, NOTHING).real is None


@pytest.mark.integration
def test_a_process_that_dies_or_hangs_is_replaced(made, own_processes):
    environment, beside = made(**FAR, step_timeout=1.0), made(**NEAR)
    environment.reset(0)
    beside.reset(0)
    for action in (NOTHING, envs.DIES, NOTHING, envs.HANGS, NOTHING):
        got = step(environment, action, NOTHING)
        unharmed = step(beside, NOTHING, NOTHING)
        assert np.array_equal(got.observation[1], unharmed.observation[1])
        if action != NOTHING:
            assert (got.truncated.tolist(), got.terminated.any()) == ([True, False], False)
            assert (got.final_observation[0, 1], got.observation[0, 1]) == (1, 0)
    assert environment.crashes == 2
    assert len(own_processes()) == 2
    environment.close()
    assert not own_processes()


def test_a_process_that_always_dies_ends_the_run(made):
    environment = made(**FAR, max_restarts=0, num_envs=1)
    environment.reset(0)
    with pytest.raises(RunError, match=r"at last copy 0 was ended by SIGSEGV; mend"):
        step(environment, envs.DIES)


@pytest.mark.parametrize("section", [NEAR, FAR, NEXT_STEP])
def test_numbers_that_are_not_finite_end_the_run_with_their_place(made, section):
    environment = made(**section)
    environment.reset(0)
    where = r"(NextStep|Scripted)-v0: observation\[1\] of agent 'agent' in copy 1 is NaN; mend"
    with pytest.raises(NonFiniteError, match=where):
        step(environment, NOTHING, envs.NAN)
    environment.reset(0)
    with pytest.raises(NonFiniteError, match="reward of agent 'agent' in copy 0 is infinite; mend"):
        step(environment, envs.INFINITE, NOTHING)


def test_observations_of_another_shape_than_the_space_are_refused(made):
    environment = made(**NEAR)
    environment.reset(0)
    with pytest.raises(ContractError, match="observation or a reward of the wrong shape"):
        step(environment, envs.SHAPE, NOTHING)
    box = spaces.Box(-1, 1, (3,))
    wrong = spaced(made, box, spaces.Discrete(2), seen=np.zeros(4))
    with pytest.raises(ContractError, match=r"shape \(4,\), and its observation space has \(3,\)"):
        wrong.reset(0)


def spaced(made, observation, action, **section):
    seen = section.pop("seen", None)
    environment = GymnasiumScenario({"id": f"{FILE}:Spaced-v0", "num_envs": 2, **section})
    options = {"observation": observation, "action": action, "seen": seen}
    recipe = environment._recipe("train")
    object.__setattr__(recipe, "options", options)
    environment._recipe = lambda split: recipe
    return environment.build(0).environment("train")


def given(environment):
    """The actions that the copies were given last."""
    return [copy.environment.unwrapped.actions[-1] for copy in environment._near]


IMAGE = spaces.Box(0, 255, (4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "seen", "shown", "dtype"),
    [
        (spaces.Box(-5, 5, (2,), np.float64), np.array([1.5, -2]), [1.5, -2], np.float32),
        (spaces.Box(0, 9, (2,), np.int32), np.array([3, 4], np.int32), [3, 4], np.float32),
        (IMAGE, np.full((4, 4, 3), 200, np.uint8), np.full((4, 4, 3), 200), np.uint8),
        (spaces.Discrete(3), 2, 2, np.int64),
        (spaces.Discrete(3, start=5), 6, 1, np.int64),
        (spaces.MultiDiscrete([2, 3], start=[1, 4]), np.array([2, 4]), [1, 0], np.int64),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1], np.int8),
    ],
)
def test_observations_are_numbers_from_0_on_floats_or_bytes(made, space, seen, shown, dtype):
    environment = spaced(made, space, spaces.Discrete(2), seen=seen)
    observed = environment.reset(0)["agent"]
    assert observed.dtype == dtype == environment.spaces["agent"].observation.dtype
    assert observed.tolist() == [np.asarray(shown).tolist()] * 2
    assert observed.flags.c_contiguous
    assert all(row in environment.spaces["agent"].observation for row in observed)
    assert step(environment, 0, 1).observation.tolist() == observed.tolist()


BOX = spaces.Box(np.float32([-1, 0]), np.float32([1, 4]))


@pytest.mark.parametrize(
    ("space", "acted", "taken", "section"),
    [
        (spaces.Discrete(3), [0, 2], [0, 2], {}),
        (spaces.Discrete(3, start=-1), [0, 2], [-1, 1], {}),
        (spaces.MultiDiscrete([2, 3], start=[0, 7]), [[0, 1], [1, 2]], [[0, 8], [1, 9]], {}),
        (spaces.MultiBinary(2), [[0, 1], [1, 1]], [[0, 1], [1, 1]], {}),
        (BOX, [[-3.0, 2.0], [0.5, 9.0]], [[-1.0, 2.0], [0.5, 4.0]], {}),
        (BOX, [[-3.0, 0.0], [0.5, 1.0]], [[-1.0, 2.0], [0.5, 4.0]], {"actions": "rescale"}),
        (
            spaces.Box(-1.7e308, 1.7e308, (1,), np.float64),
            [[-1.0], [0.0]],
            [[-1.7e308], [0.0]],
            {"actions": "rescale"},
        ),
        (spaces.Box(0, 5, (1,), np.int64), [[2.6], [7.0]], [[3], [5]], {}),
    ],
)
def test_actions_are_those_of_the_environment(made, space, acted, taken, section):
    environment = spaced(made, spaces.Box(-1, 1, (1,)), space, **section)
    environment.reset(0)
    kind = np.float32 if isinstance(space, spaces.Box) else np.int64
    environment.step({"agent": np.array(acted, kind)})
    for i, action in enumerate(given(environment)):
        assert np.asarray(action).tolist() == taken[i]
        assert action in space
        assert np.asarray(action).dtype == space.dtype


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(3), np.zeros(2, np.float32)),
        (spaces.Discrete(3), np.zeros((2, 1), np.int64)),
        (BOX, np.zeros(2, np.int64)),
        (BOX, np.zeros((2, 2), np.int64)),
        (BOX, np.zeros((3, 2), np.float32)),
    ],
)
def test_actions_of_a_wrong_type_are_refused(made, space, action):
    environment = spaced(made, spaces.Box(-1, 1, (1,)), space)
    environment.reset(0)
    with pytest.raises(ContractError, match=r"takes 2 actions of .*; choose a trainer whose polic"):
        environment.step({"agent": action})


def test_actions_of_a_policy_that_diverged_are_told_apart(made):
    environment = spaced(made, spaces.Box(-1, 1, (1,)), BOX)
    environment.reset(0)
    with pytest.raises(NonFiniteError, match=r"the policy has diverged; lower rl\.lr"):
        environment.step({"agent": np.full((2, 2), np.nan, np.float32)})


def saved(state):
    """What a checkpoint gives back of a state."""
    encoder = Encoder()
    tree = json.loads(json.dumps(encoder.encode(state)))
    return decode(tree, encoder.tensors)


STACKED = {"path": "gymnasium.wrappers:FrameStackObservation", "kwargs": {"stack_size": 3}}


@pytest.mark.parametrize(
    "section",
    [
        {"id": "CartPole-v1", "vectorization": "native", "num_envs": 5},
        {"id": "CartPole-v1", "vectorization": "sync", "num_envs": 3},
        {"id": "Acrobot-v1", "vectorization": "async", "max_episode_steps": 6, "num_envs": 1},
        {"id": "Pendulum-v1", "max_episode_steps": 9, "wrappers": [STACKED]},
        {"id": "Pendulum-v1", "wrappers": ["gymnasium.wrappers:NormalizeReward"]},
        {"id": "FrozenLake-v1"},
        {**NEXT_STEP, "env_kwargs": {"actions": 4}},
    ],
)
def test_environments_go_on_from_a_saved_state_as_they_would_have(made, section):
    environment = made(**section)
    rng = np.random.default_rng(2)
    environment.reset(4)
    space, count = environment.spaces["agent"].action, environment.num_envs
    script = [actions_of(space, rng, count) for _ in range(60)]
    for actions in script[:25]:
        step(environment, *actions)
    state = saved(environment.state_dict())
    other = made(**section)
    other.reset(99)
    other.load_state_dict(state)
    ends = 0
    for actions in script[25:]:
        got, expected = step(other, *actions), step(environment, *actions)
        ends += int((expected.terminated | expected.truncated).sum())
        for name in ("observation", "reward", "terminated", "truncated", "real"):
            assert np.array_equal(getattr(got, name), getattr(expected, name)), name
        assert (got.final_observation is None) == (expected.final_observation is None)
    assert ends or section["id"] == "Pendulum-v1"


def test_crashes_and_what_came_of_them_are_saved_too(made):
    section = {**NEAR, "num_envs": 1, "max_restarts": 2}
    options = {"actions": 1, "breaks": 9}
    environment, other = (made(**section, env_kwargs=options) for _ in range(2))
    for number in range(9):
        environment.reset(4 if number == 0 else None)
    other.load_state_dict(saved(environment.state_dict()))
    assert (environment.crashes, other.crashes) == (1, 1)
    for _ in range(7):
        assert np.array_equal(other.reset()["agent"], environment.reset()["agent"])
    assert environment.crashes == 1
    assert np.array_equal(other.reset()["agent"], environment.reset()["agent"])
    assert (environment.crashes, other.crashes) == (2, 2)
    for _ in range(7):
        other.reset()
    with pytest.raises(RunError, match="max_restarts=2"):
        other.reset()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_environment_that_cannot_be_saved_says_why_and_gives_none(made, vectorization):
    section = {"id": f"{FILE}:Opaque-v0", "env_kwargs": {"actions": 4}}
    environment = made(**section, vectorization=vectorization)
    environment.reset(0)
    assert environment.state_dict() is None
    assert environment.unsaved.startswith(
        "OrderEnforcing.env._numbers is a builtins.range_iterator"
    )
    step(environment, NOTHING, NOTHING)


def test_a_state_of_another_number_of_copies_is_refused(made):
    state = made(id="CartPole-v1", vectorization="native", num_envs=3)
    state.reset(0)
    with pytest.raises(RunError, match=r"holds 3 copies of .*; set scenario\.num_envs=3"):
        made(id="CartPole-v1", vectorization="native").load_state_dict(state.state_dict())


def faults(**changes):
    tree = {
        "trainer": "vanilla_ppo",
        "scenario": {"type": "gymnasium", "id": "CartPole-v1", **changes.pop("scenario", {})},
        **changes,
    }
    try:
        prepare(tree)
    except ConfigError as error:
        return list(error.faults)
    return []


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"id": "CartPol-v1"},
            "no environment 'CartPol-v1' is registered; did you mean CartPole",
        ),
        ({"id": "cartpole"}, "did you mean CartPole-v0, CartPole-v1"),
        ({"id": "CartPole-v9"}, "did you mean CartPole-v0, CartPole-v1"),
        ({"id": "Qqqqq-v0"}, "write package.module:Id"),
        ({"id": "no_such_package:Some-v0"}, "no_such_package"),
        ({"id": f"{FILE}:Scriptd-v0"}, "did you mean Scripted-v0"),
        (
            {"env_kwargs": {"gravity": 3}},
            "cannot be made with env_kwargs {'gravity': 3}: T",
        ),
        (
            {"wrappers": ["gymnasium.wrappers:FlattenObservations"]},
            "did you mean FlattenObservation",
        ),
        ({"wrappers": ["gymnasium.wrappers"]}, "names no wrapper; write package.module:Class"),
        (
            {"wrappers": [{**STACKED, "kwargs": {"stack": 3}}]},
            "wrapper gymnasium.wrappers:FrameStackObservation with {'stack': 3} failed: TypeError",
        ),
        ({"wrappers": [{"kwargs": {}}]}, "wrappers[0] must be an import path, or {path:"),
        (
            {"wrappers": [{**STACKED, "args": 1}]},
            "takes path and kwargs (a mapping) and nothing",
        ),
        (
            {"vectorization": "native", "id": "Pendulum-v1"},
            "has no native vector environment of i",
        ),
        (
            {"vectorization": "native", "wrappers": ["gymnasium.wrappers:TimeAwareObservation"]},
            "no native vector environment with wrappers; write scenario.vectorization: sync",
        ),
        (
            {"id": f"{FILE}:Disabled-v0", "vectorization": "native"},
            "does not begin anew by itself when it is vectorized natively",
        ),
        ({"id": "Blackjack-v1"}, "observes a Tuple, which networks cannot take; flatten it with"),
        ({"id": ""}, "is missing; name an environment, such as CartPole-v1"),
        ({"num_envs": 0}, "num_envs (Python): must be at least 1"),
        ({"max_episode_steps": 0}, "max_episode_steps (Python): must be at least 1"),
        ({"max_restarts": -1}, "max_restarts (Python): must be at least 0"),
        ({"step_timeout": 0}, "step_timeout (Python): must be above 0"),
        ({"num_env": 2}, "num_env"),
    ],
)
def test_what_is_wrong_is_found_before_the_run(section, message):
    (fault,) = faults(scenario=section)
    assert message in fault
    assert "\n" not in fault


def test_what_is_right_is_let_through():
    assert not faults()
    flat = ["gymnasium.wrappers:FlattenObservation"]
    assert not faults(scenario={"id": "Blackjack-v1", "wrappers": flat})


def test_spaces_of_several_parts_are_refused_with_the_wrapper_that_helps(made):
    parts = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 1, (2,))})
    with pytest.raises(ConfigError, match=r"observes a Dict.*gymnasium\.wrappers:FlattenObserv"):
        spaced(made, parts, spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"acts in a Dict.*gymnasium\.ActionWrapper"):
        spaced(made, spaces.Discrete(2), parts)
    with pytest.raises(ConfigError, match=r"observes a Text.*gymnasium\.ObservationWrapper"):
        spaced(made, spaces.Text(3), spaces.Discrete(2))
    endless = spaces.Box(-np.inf, np.inf, (1,))
    with pytest.raises(ConfigError, match="without bounds, to which nothing can be rescaled"):
        spaced(made, spaces.Discrete(2), endless, actions="rescale")
    flat = spaced(
        made, parts, spaces.Discrete(2), wrappers=["gymnasium.wrappers:FlattenObservation"]
    )
    assert flat.reset(0)["agent"].shape == (2, 5)


class Mission(spaces.Space):
    """Text that has no flat form, as packages of environments have it."""

    def sample(self, mask=None, probability=None):
        return "go"

    def contains(self, x):
        return isinstance(x, str)


def test_parts_that_cannot_be_flattened_are_left_out_by_the_wrapper_that_is_recommended(made):
    parts = spaces.Dict(
        {"image": spaces.Box(0, 9, (2, 2)), "mission": Mission(), "turn": spaces.Discrete(3)}
    )
    with pytest.raises(ConfigError, match="leave out mission \\(Mission\\)") as caught:
        spaced(made, parts, spaces.Discrete(2))
    wrappers = yaml.safe_load(str(caught.value).partition("scenario.wrappers=")[2])
    flat = spaced(made, parts, spaces.Discrete(2), wrappers=wrappers)
    assert flat.reset(0)["agent"].shape == (2, 7)
    with pytest.raises(ConfigError, match=r"gymnasium\.ObservationWrapper"):
        spaced(made, spaces.Dict({"mission": Mission()}), spaces.Discrete(2))


@pytest.mark.parametrize(
    "nothing", [spaces.Dict({}), spaces.Tuple(()), spaces.Dict({"a": spaces.Dict({})})]
)
def test_a_space_without_parts_is_refused_as_one_that_has_no_flat_form(made, nothing):
    with pytest.raises(ConfigError, match=r"observes a .*gymnasium\.ObservationWrapper"):
        spaced(made, nothing, spaces.Discrete(2))


@pytest.mark.parametrize(
    ("blocked", "id", "message"),
    [
        (
            "mujoco",
            "Hopper-v5",
            'needs mujoco, which is not installed; run: pip install "plu',
        ),
        ("Box2D", "LunarLander-v3", 'pip install "plugrl[box2d]"'),
        ("ale_py", "ALE/Pong-v5", "needs ale_py, which is not installed"),
        ("ale_py", "PongNoFrameskip-v4", 'run: pip install "plugrl[atari]"'),
    ],
)
def test_a_missing_package_is_named_with_what_to_run(blocked, id, message):
    program = (
        f"import sys; sys.modules[{blocked!r}] = None\n"
        "from plugrl.scenarios.gymnasium.scenario import GymnasiumScenario\n"
        f"GymnasiumScenario({{'id': {id!r}}}).build(0).environment('train')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("plugrl.core.errors.ConfigError: ")
    assert message in last


@pytest.mark.integration
def test_the_trial_of_an_environment_in_a_process_of_its_own_is_in_one_too(made):
    environment = made(id=f"{FILE}:Deadly-v0", vectorization="async")
    environment.reset(0)
    assert environment.state_dict() is None
    assert environment.unsaved == "copy 0 was ended by SIGSEGV"
    assert environment.crashes == 0


def test_a_film_is_possible_where_frames_can_be_drawn(made):
    pytest.importorskip("pygame")
    pytest.importorskip("PIL")
    assert not faults(validate={"film": "gif"})
    environment = made("film", id="CartPole-v1", num_envs=8, vectorization="native")
    environment.reset(0)
    assert (environment.num_envs, environment.render_fps) == (1, 50)
    first = environment.render()
    assert (first.shape, first.dtype) == ((400, 600, 3), np.uint8)
    for _ in range(5):
        step(environment, 1)
    assert not np.array_equal(environment.render(), first)
    trained = made(id="CartPole-v1")
    trained.reset(0)
    assert trained.render() is None


def test_a_film_of_what_cannot_be_drawn_is_refused_before_the_run():
    pytest.importorskip("PIL")
    (fault,) = faults(scenario={"id": f"{FILE}:Scripted-v0"}, validate={"film": "gif"})
    assert fault.startswith("validate.film (Python): environment ")
    assert "draws no frames (rgb_array); its render modes: none; write validate.film: none" in fault


def test_without_pygame_it_is_said_what_to_run():
    program = (
        "import sys; sys.modules['pygame'] = None\n"
        "from plugrl.scenarios.gymnasium.rendering import rendering_fault\n"
        "from plugrl.scenarios.gymnasium.scenario import GymnasiumScenario\n"
        "print(rendering_fault(GymnasiumScenario({'id': 'CartPole-v1'})._recipe('film')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert 'run: pip install "plugrl[video]", or write validate.film: none' in result.stdout


@pytest.mark.integration
@pytest.mark.parametrize("id", ["Hopper-v5", "LunarLander-v3", "ALE/Pong-v5"])
def test_environments_of_the_extras_are_stepped_by_their_id(made, id):
    pytest.importorskip({"H": "mujoco", "L": "Box2D", "A": "ale_py"}[id[0]])
    environment = made(id=id)
    observed = environment.reset(0)["agent"]
    space = environment.spaces["agent"]
    assert observed.dtype == (np.uint8 if id[0] == "A" else np.float32)
    assert observed[0] in space.observation
    actions = actions_of(space.action, np.random.default_rng(0), 2)
    assert step(environment, *actions).observation.shape == observed.shape


@pytest.mark.integration
def test_processes_end_with_a_parent_that_is_killed(own_processes):
    program = (
        "import sys, time\n"
        "from plugrl.scenarios.gymnasium.scenario import GymnasiumScenario\n"
        f"section = {{'id': {FAR['id']!r}, 'vectorization': 'async', 'num_envs': 2}}\n"
        "environment = GymnasiumScenario(section).build(0).environment('train')\n"
        "environment.reset(0)\n"
        # One is busy with a step that does not end.
        f"environment._far[0].begin_step({envs.HANGS})\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "ready\n"
    assert len(own_processes()) == 3
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + DEADLINE
    while own_processes() and time.monotonic() < until:
        time.sleep(0.1)
    assert not own_processes()


def fastest(call, repeats=2000, calls=20):
    """Seconds of one call, when nothing else ran."""
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - started) / calls)
    return best


@pytest.mark.timing
@pytest.mark.parametrize(
    ("vectorization", "mode", "limit"),
    [("native", "vector_entry_point", 5e-6), ("sync", "sync", 0)],
)
def test_a_step_costs_little_more_than_that_of_gymnasium(made, vectorization, mode, limit):
    environment = made(id="CartPole-v1", num_envs=4, vectorization=vectorization)
    raw = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode=mode)
    environment.reset(0)
    raw.reset(seed=0)
    actions = np.array([0, 1, 0, 1])
    ours = fastest(lambda: environment.step({"agent": actions}))
    theirs = fastest(lambda: raw.step(actions))
    # A twentieth for the noise of a shared machine.
    assert ours - theirs <= limit + 0.05 * theirs
