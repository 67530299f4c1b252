import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from plugrl.core.errors import ConfigError, ContractError, NonFiniteError, RunError
from plugrl.scenarios.pettingzoo.environment import PettingZooEnvironment
from plugrl.scenarios.pettingzoo.maker import Maker
from plugrl.scenarios.pettingzoo.scenario import PettingZooScenario
from plugrl.scenarios.pettingzoo.two_cartpoles import TwoCartPoles

SCRIPTS = str(Path(__file__).with_name("scripted_agents.py"))
DILEMMA = "plugrl.scenarios.pettingzoo.dilemma:IteratedDilemma"
CARTPOLES = "plugrl.scenarios.pettingzoo.two_cartpoles:TwoCartPoles"


def scripted(possible, start, steps, *, kind="Scripted", num_envs=1, max_restarts=0, spaces=None):
    options = {"possible": possible, "start": start, "steps": steps, "spaces": spaces}
    maker = Maker(f"{SCRIPTS}:{kind}", options)
    return PettingZooEnvironment(maker, num_envs, max_restarts=max_restarts)


def zeros(environment):
    return {
        agent: np.zeros((environment.num_envs, *(spaces.action.shape or ())), np.int64)
        for agent, spaces in environment.spaces.items()
    }


def rows(step):
    """One copy's step as (observation, reward, terminated, truncated, final, real)."""
    final = None if step.final_observation is None else float(step.final_observation[0, 0])
    real = True if step.real is None else bool(step.real[0])
    ended = (bool(step.terminated[0]), bool(step.truncated[0]))
    return (float(step.observation[0, 0]), float(step.reward[0]), *ended, final, real)


def test_an_agent_that_dies_early_takes_no_part_until_all_have_ended():
    environment = scripted(
        ["a", "b"],
        {"a": 10, "b": 20},
        [
            {"agents": ["a", "b"], "a": (11, 1, False, False), "b": (21, 2, False, False)},
            {"agents": ["b"], "a": (12, 3, True, False), "b": (22, 4, False, False)},
            {"agents": ["b"], "b": (23, 5, False, False)},
            {"agents": [], "b": (24, 6, False, True)},
        ],
    )
    first = environment.reset(1)
    assert (first["a"].tolist(), first["b"].tolist()) == ([[10.0]], [[20.0]])
    assert first["a"].dtype == np.float32
    steps = [environment.step(zeros(environment)) for _ in range(5)]
    assert [rows(step["a"]) for step in steps] == [
        (11, 1, False, False, None, True),
        (12, 3, True, False, 12, True),
        (12, 0, False, False, None, False),
        (10, 0, False, False, None, False),
        (11, 1, False, False, None, True),
    ]
    assert [rows(step["b"]) for step in steps] == [
        (21, 2, False, False, None, True),
        (22, 4, False, False, None, True),
        (23, 5, False, False, None, True),
        (20, 6, False, True, 24, True),
        (21, 2, False, False, None, True),
    ]
    # The dead agent is not asked for actions.
    calls = environment._copies[0].environment.calls
    assert [sorted(call) for call in calls] == [["a", "b"], ["a", "b"], ["b"], ["b"], ["a", "b"]]


def test_agents_join_wait_come_back_and_are_cut_off_when_the_others_end():
    both = ["a", "b"]
    environment = scripted(
        both,
        {"a": 10},
        [
            # b joins; a waits without having ended, earns 5 meanwhile, and comes back.
            {"agents": both, "a": (11, 1, False, False), "b": (20, 9, False, False)},
            {"agents": ["b"], "a": (12, 1, False, False), "b": (21, 2, False, False)},
            {"agents": both, "a": (13, 5, False, False), "b": (22, 2, False, False)},
            {"agents": both, "a": (14, 1, False, False), "b": (23, 2, False, False)},
            # a is gone without a word, b ends.
            {"agents": ["b"], "b": (24, 2, False, False)},
            {"agents": [], "b": (25, 2, True, False)},
        ],
    )
    assert environment.reset(1)["b"].tolist() == [[0.0]]
    steps = [environment.step(zeros(environment)) for _ in range(6)]
    assert [rows(step["a"]) for step in steps] == [
        (11, 1, False, False, None, True),
        (12, 1, False, False, None, True),
        (13, 0, False, False, None, False),
        (14, 6, False, False, None, True),
        (14, 0, False, False, None, True),
        (10, 0, False, True, 14, True),
    ]
    assert [rows(step["b"]) for step in steps] == [
        (20, 0, False, False, None, False),
        (21, 2, False, False, None, True),
        (22, 2, False, False, None, True),
        (23, 2, False, False, None, True),
        (24, 2, False, False, None, True),
        (0, 2, True, False, 25, True),
    ]


def test_an_agent_that_ends_while_it_waits_has_its_end_counted():
    environment = scripted(
        ["a", "b"],
        {"a": 10, "b": 20},
        [
            {"agents": ["b"], "a": (11, 1, False, False), "b": (21, 0, False, False)},
            {"agents": ["b"], "a": (12, -7, True, False), "b": (22, 0, False, False)},
            {"agents": ["a", "b"], "a": (30, 0, False, False), "b": (23, 0, False, False)},
            {"agents": ["a", "b"], "a": (31, 2, False, False), "b": (24, 0, False, False)},
        ],
    )
    environment.reset(1)
    steps = [environment.step(zeros(environment)) for _ in range(4)]
    assert [rows(step["a"]) for step in steps] == [
        (11, 1, False, False, None, True),
        (12, -7, True, False, 12, True),
        # It comes again: a new episode.
        (30, 0, False, False, None, False),
        (31, 2, False, False, None, True),
    ]


def test_actions_reach_each_copy_in_the_terms_of_its_spaces():
    step = {"agents": ["a", "b"], "a": (0, 0, False, False), "b": (0, 0, False, False)}
    environment = scripted(
        ["a", "b"], {"a": 0, "b": 0}, [step] * 2, num_envs=2, spaces={"a": 5, "b": "multi"}
    )
    assert environment.spaces["a"].action == gymnasium.spaces.Discrete(3)
    environment.reset(1)
    chosen = {"a": np.array([0, 2]), "b": np.array([[2, 1], [0, 1]])}
    environment.step(chosen)
    assert [copy.environment.calls for copy in environment._copies] == [
        [{"a": 5, "b": [2, 1]}],
        [{"a": 7, "b": [0, 1]}],
    ]
    with pytest.raises(ContractError, match="choose a trainer whose policies"):
        environment.step({**chosen, "a": np.array([0.5, 0.5], np.float32)})


def stepped_by_hand(environment, copies, length):
    """Steps separate environments of PettingZoo with the seeds that the copies used."""
    rng = np.random.default_rng(0)
    begun = environment.reset(3)
    singles = []
    for index, copy in enumerate(copies):
        single = TwoCartPoles(max_steps=30)
        first, _ = single.reset(seed=copy.episode_seed)
        assert all(np.array_equal(first[agent], begun[agent][index]) for agent in first)
        singles.append(single)
    for _ in range(length):
        actions = {agent: rng.integers(0, 2, len(copies)) for agent in environment.spaces}
        yield actions, environment.step(actions), singles


def test_copies_give_what_separate_environments_give_transition_by_transition():
    environment = PettingZooEnvironment(Maker(CARTPOLES, {"max_steps": 30}), 3)
    copies = environment._copies
    ends = 0
    for actions, steps, singles in stepped_by_hand(environment, copies, 200):
        for i, single in enumerate(singles):
            present = list(single.agents)
            taken = {agent: int(actions[agent][i]) for agent in present}
            seen, rewards, terminated, truncated, _ = single.step(taken)
            after = {}
            if not single.agents:
                after, _ = single.reset(seed=copies[i].episode_seed)
                ends += 1
            for agent, step in steps.items():
                real = step.real is None or bool(step.real[i])
                assert real == (agent in present)
                if real:
                    assert step.reward[i] == rewards[agent]
                    assert bool(step.terminated[i]) == terminated[agent]
                    assert bool(step.truncated[i]) == truncated[agent]
                if real and (terminated[agent] or truncated[agent]):
                    assert np.array_equal(step.final_observation[i], seen[agent])
                if agent in single.agents:
                    now = after.get(agent, seen.get(agent))
                    assert np.array_equal(step.observation[i], now)
    assert ends > 10


def test_episodes_depend_on_the_seed_and_differ_between_copies_and_episodes():
    first, second = (PettingZooEnvironment(Maker(CARTPOLES, {}), 2) for _ in range(2))
    a, b, c = first.reset(5)["left"], second.reset(5)["left"], second.reset(6)["left"]
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert not np.array_equal(a[0], a[1])
    begun = {a[0].tobytes()}
    for _ in range(200):
        step = first.step(zeros(first))["left"]
        if step.real is not None and not step.real[0]:
            begun.add(step.observation[0].tobytes())
    assert len(begun) > 5


STEP = {"agents": ["a"], "a": (11, 1, False, False)}


def test_a_copy_that_breaks_is_built_anew_and_its_episode_cut_off(caplog):
    environment = scripted(["a"], {"a": 10}, [STEP, "crash"], max_restarts=2)
    environment.reset(1)
    steps = [environment.step(zeros(environment))["a"] for _ in range(3)]
    assert [rows(step) for step in steps] == [
        (11, 1, False, False, None, True),
        (10, 0, False, True, 11, False),
        (11, 1, False, False, None, True),
    ]
    assert environment.crashes == 1
    assert "copy 0 raised RuntimeError: the engine stalled in step()" in caplog.text
    assert "scripted_agents.py:" in caplog.text
    environment.step(zeros(environment))
    environment.step(zeros(environment))
    with pytest.raises(RunError, match=r"max_restarts=2 allows; at last copy 0 raised"):
        environment.step(zeros(environment))


@pytest.mark.parametrize(
    ("told", "error", "message"),
    [
        (
            (float("nan"), 0, False, False),
            NonFiniteError,
            r"\[0\] of agent 'a' in copy 0 is NaN",
        ),
        (
            (1, float("inf"), False, False),
            NonFiniteError,
            "reward of agent 'a' in copy 0 is inf",
        ),
        ((float("nan"), 0, True, False), NonFiniteError, "observation"),
        (([1, 2], 0, False, False), ContractError, r"shape \(2,\).*observation space has \(1,\)"),
        ((1, "much", False, False), RunError, "reward 'much', which is no number"),
        ((1, 0, "False", False), ContractError, "terminated of agent 'a' is 'False', not True or"),
        ((1, 0, False, [True, False]), ContractError, "truncated of agent 'a' is .*, not True or"),
    ],
)
def test_what_an_environment_must_not_give(told, error, message):
    last = told[2]
    environment = scripted(["a"], {"a": 0}, [{"agents": [] if last else ["a"], "a": told}])
    environment.reset(1)
    with pytest.raises(error, match=message):
        environment.step(zeros(environment))


NOTHING = {}
SEEN = {"a": [1.0], "b": [2.0]}


@pytest.mark.parametrize(
    ("seen", "agents", "ends", "refused"),
    [
        ({"a": [1.0]}, ["a", "b"], {}, True),
        (NOTHING, ["a", "b"], {}, True),
        ({"a": [1.0]}, ["a"], {"truncated": True}, True),
        # It has terminated, or it waits.
        ({"a": [1.0]}, ["a"], {"terminated": True}, False),
        ({"a": [1.0]}, ["a"], {}, False),
        (SEEN, ["a", "b"], {}, False),
    ],
)
def test_who_takes_part_must_be_shown_something(seen, agents, ends, refused):
    environment = scripted(["a", "b"], {"a": 0, "b": 0}, [STEP])
    environment.reset(1)
    inner = environment._copies[0].environment

    def step(actions):
        inner.agents = list(agents)
        rewards = dict.fromkeys("ab", 0.0)
        lost, cut = ({"b": ends.get(key, False)} for key in ("terminated", "truncated"))
        return {k: np.array(v, np.float32) for k, v in seen.items()}, rewards, lost, cut, {}

    inner.step = step
    if not refused:
        environment.step(zeros(environment))
        return
    missing = "a" if not seen else "b"
    with pytest.raises(ContractError, match=rf"step\(\) gives no observation of agent '{missing}'"):
        environment.step(zeros(environment))


def test_a_reset_shows_all_who_take_part():
    environment = scripted(["a", "b"], {"a": 0, "b": 0}, [STEP])
    environment.reset(1)
    inner = environment._copies[0].environment
    reset = inner.reset
    inner.reset = lambda **options: ({"a": reset(**options)[0]["a"]}, {})
    with pytest.raises(ContractError, match=r"reset\(\) gives no observation of agent 'b'"):
        environment.reset(2)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("reset", {"a": 1}, r"reset\(\) must give 2 mappings by agent: observations, infos"),
        ("reset", None, r"reset\(\) must give 2 mappings"),
        ("step", ({}, {}, {}, {}), r"step\(\) must give 5 mappings by agent: observations, rew"),
        ("step", ([1], {}, {}, {}, {}), r"step\(\) must give 5 mappings"),
    ],
)
def test_answers_of_another_form_are_no_crashes(name, given, message):
    environment = scripted(["a"], {"a": 0}, [STEP], max_restarts=9)
    environment.reset(1)
    setattr(environment._copies[0].environment, name, lambda *words, **options: given)
    act = environment.reset if name == "reset" else environment.step
    with pytest.raises(ContractError, match=message):
        act(1 if name == "reset" else zeros(environment))
    assert environment.crashes == 0


def test_an_episode_without_agents_is_an_error():
    environment = scripted(["a"], {}, [STEP])
    with pytest.raises(ContractError, match="leaves no agent in agents; list who takes part"):
        environment.reset(1)


def test_an_exit_is_a_crash():
    environment = scripted(["a"], {"a": 0}, [STEP], max_restarts=1)
    environment.reset(1)
    environment._copies[0].environment.step = lambda actions: sys.exit(0)
    assert environment.step(zeros(environment))["a"].truncated.tolist() == [True]
    assert environment.crashes == 1


def test_an_agent_that_is_not_announced_is_an_error():
    environment = scripted(["a"], {"a": 0}, [{"agents": ["a", "z"], "a": (1, 0, False, False)}])
    environment.reset(1)
    environment.step(zeros(environment))
    with pytest.raises(RunError, match=r"'z' that its possible_agents lack \(a\)"):
        environment.step(zeros(environment))


def play(environment, rng, length):
    taken = []
    for _ in range(length):
        actions = {agent: rng.integers(0, 2, environment.num_envs) for agent in environment.spaces}
        for step in environment.step(actions).values():
            taken += [step.observation, step.reward, step.terminated, step.truncated]
            taken += [each for each in (step.final_observation, step.real) if each is not None]
    return taken


def test_a_loaded_state_goes_on_as_the_saved_one_would_have():
    first = PettingZooEnvironment(Maker(CARTPOLES, {"max_steps": 40}), 3)
    first.reset(7)
    play(first, np.random.default_rng(1), 57)
    state = first.state_dict()
    second = PettingZooEnvironment(Maker(CARTPOLES, {"max_steps": 40}), 3)
    second.reset(8)
    second.load_state_dict(state)
    expected = play(first, np.random.default_rng(2), 90)
    got = play(second, np.random.default_rng(2), 90)
    assert len(got) == len(expected)
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


def test_an_environment_that_does_not_listen_to_seeds_has_no_state():
    environment = scripted(["a"], {"a": 10}, [STEP], kind="Forgetful")
    environment.reset(1)
    assert environment.state_dict() is None


@pytest.mark.parametrize("name", ["mpe2.simple_reference_v3", "mpe2.simple_tag_v3"])
def test_environments_that_are_installed_can_be_saved(name):
    environment = PettingZooEnvironment(Maker(name, {}), 1)
    assert environment.unsaved is None
    environment.close()


def test_the_state_of_other_copies_is_refused():
    first = PettingZooEnvironment(Maker(CARTPOLES, {}), 1)
    first.reset(1)
    state = first.state_dict()
    with pytest.raises(RunError, match=r"holds 1 copies of .*; set scenario\.num_envs=1"):
        PettingZooEnvironment(Maker(CARTPOLES, {}), 2).load_state_dict(state)
    other = PettingZooEnvironment(Maker(f"{DILEMMA}", {}), 1)
    with pytest.raises(RunError, match=r"cannot take back its saved state .*; set scenario\.envir"):
        other.load_state_dict(state)


def as_version_0_1_saved(environment, actions):
    """The state of one copy: the seed and number of its episode, and the actions since it began."""
    (copy,) = environment._copies
    return {
        "crashes": 1,
        "copies": [
            {
                "seed": 7,
                "index": 0,
                "episode": copy.episode,
                "steps": max(map(len, actions.values())),
                "lost": False,
                "actions": {agent: np.array(taken) for agent, taken in actions.items()},
                "last": {agent: np.array(seen) for agent, seen in copy.last.items()},
                "open": sorted(actions),
            }
        ],
    }


def test_episodes_of_version_0_1_are_played_again():
    first, second = (PettingZooEnvironment(Maker(CARTPOLES, {}), 1) for _ in range(2))
    first.reset(7)
    begun, actions = -1, {}
    for number in range(40):
        if first._copies[0].episode != begun:
            begun, actions = first._copies[0].episode, {"left": [], "right": []}
        present = list(first._copies[0].environment.agents)
        first.step({agent: np.array([number % 2]) for agent in first.spaces})
        for agent in present:
            actions[agent].append(number % 2)
    if first._copies[0].episode != begun:
        actions = {"left": [], "right": []}
    state = as_version_0_1_saved(first, actions)
    second.load_state_dict(state)
    assert second.crashes == 1
    expected, got = (play(each, np.random.default_rng(2), 60) for each in (first, second))
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
    state["copies"][0]["last"]["left"] = np.ones(4)
    with pytest.raises(RunError, match="episode is another one when it is played again"):
        second.load_state_dict(state)


def test_continuous_actions_are_clipped_or_rescaled():
    maker = Maker("mpe2.simple_v3", {"continuous_actions": True})
    clipped = PettingZooEnvironment(maker, 1)
    rescaled = PettingZooEnvironment(maker, 1, rescale=True)
    assert rescaled.spaces["agent_0"].action == gymnasium.spaces.Box(-1.0, 1.0, (5,), np.float32)
    taken = []
    for environment in (clipped, rescaled):
        environment.reset(1)
        inner = environment._copies[0].environment
        inner.step = lambda actions, step=inner.step: (taken.append(actions), step(actions))[1]
    action = np.array([[-3.0, -1.0, 0.0, 0.5, 9.0]], np.float32)
    clipped.step({"agent_0": action})
    rescaled.step({"agent_0": action})
    assert taken[0]["agent_0"].tolist() == [0.0, 0.0, 0.0, 0.5, 1.0]
    assert taken[1]["agent_0"].tolist() == [0.0, 0.0, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("name", ["mpe2.simple_spread_v3:env", "classic/rps-v2"])
def test_environments_of_turns_are_converted_where_that_is_right(name):
    environment = PettingZooEnvironment(Maker(name, {}), 2)
    environment.reset(1)
    ended = 0
    for _ in range(60):
        for step in environment.step(zeros(environment)).values():
            ended += int((step.terminated | step.truncated).sum())
    assert ended >= 2 * 2 * len(environment.spaces)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("classic/rps-v9", "Available version: v2"),
        ("sisl/persuit-v5", "did you mean sisl/pursuit-v5"),
        ("mpe2.simple_spred_v3", "mpe2 has no module .* did you mean simple_spread_v3"),
        ("mpe2", r"neither parallel_env nor env; name .*: mpe2\.\w+_v\d"),
        (CARTPOLES[:-1], "two_cartpoles has no 'TwoCartPole'; did you mean TwoCartPoles"),
        ("plugrl.scenarios.pettingzoo.two_cartpoles", "builds the environment: .*:TwoCartPoles"),
        ("nowhere_to_be_found", "no module 'nowhere_to_be_found'; install the package"),
        ("nowhere.py:Env", "there is no file nowhere.py"),
        (
            "gymnasium.envs.classic_control:CartPoleEnv",
            "for one agent take scenario.type gymnasium",
        ),
        ("json:loads", "cannot be built: TypeError"),
        ("json:decoder", "is a module; name a class or a function"),
        (f"{SCRIPTS}:NoAgents", "has no possible_agents; list there"),
        (f"{SCRIPTS}:Scripted", "cannot be built: TypeError"),
    ],
)
def test_what_cannot_be_an_environment_is_refused_with_the_remedy(name, message):
    with pytest.raises(ConfigError, match=message):
        PettingZooEnvironment(Maker(name, {}), 1)


def test_spaces_that_networks_cannot_take_are_refused():
    with pytest.raises(ConfigError, match=r"\(agent 'a'\) observes a Dict whose 'text' is a Text"):
        scripted(["a"], {"a": 0}, [], kind="Words")


def test_agents_that_act_at_once_have_masks_too():
    step = {"agents": ["a"], "a": (11, 1, False, False)}
    environment = scripted(["a"], {"a": 10}, [step], kind="Masked")
    seen = environment.reset(1)["a"]
    assert environment.spaces["a"].layout.fields == {"action_mask": (3,), "number": (1,)}
    # By hand: the last digit of the number is forbidden modulo 3.
    assert seen.tolist() == [[0, 1, 1, 10]]
    assert environment.step(zeros(environment))["a"].observation.tolist() == [[1, 0, 1, 11]]
    assert environment.acting()["a"].tolist() == [True]
    assert environment.unsaved is None


def test_agents_of_whom_none_is_allowed_anything_are_a_fault():
    step = {"agents": ["a"], "a": (-1, 1, False, False)}
    environment = scripted(["a"], {"a": 10}, [step], kind="Masked")
    environment.reset(1)
    message = "the action_mask of every agent in copy 0 is all 0; allow one a move, or end the"
    with pytest.raises(ContractError, match=message):
        environment.step(zeros(environment))


def test_the_physics_are_those_of_cartpole():
    single = gymnasium.make("CartPole-v1").unwrapped
    pair = TwoCartPoles()
    pair.reset(seed=4)
    single.reset(seed=0)
    single.state = np.array(pair._state["left"])
    rng = np.random.default_rng(0)
    lost = False
    while not lost:
        push = int(rng.integers(2))
        seen, rewards, terminated, _, _ = pair.step(dict.fromkeys(pair.agents, push))
        expected, reward, lost, _, _ = single.step(push)
        assert seen["left"] == pytest.approx(expected, abs=1e-6)
        assert (rewards["left"], terminated["left"]) == (reward, lost)
    assert "left" not in pair.agents


def test_two_cartpoles_keep_to_pettingzoo(recwarn):
    parallel_api_test(TwoCartPoles(), num_cycles=500)
    parallel_seed_test(TwoCartPoles)
    assert [str(w.message) for w in recwarn if "pettingzoo" in str(w.filename)] == []


def test_films_show_the_first_copy():
    instance = PettingZooScenario({"environment": CARTPOLES}).build(0)
    film = instance.environment("film")
    film.reset(1)
    assert film.num_envs == 1
    frame = film.render()
    assert frame.shape == (240, 320, 3)
    assert frame.dtype == np.uint8
    film.step(zeros(film))
    assert not np.array_equal(film.render(), frame)
    training = instance.train_environment
    assert (training.num_envs, training.render()) == (4, None)
