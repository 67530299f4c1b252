import copy
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from torchrl.envs.utils import check_env_specs

from plugrl.core.errors import ConfigError, NonFiniteError, RunError
from plugrl.core.run.checkpoints.state import Encoder, decode
from plugrl.scenarios.torchrl.environment import TorchrlEnvironment
from plugrl.scenarios.torchrl.maker import Maker
from plugrl.scenarios.torchrl.scenario import TorchrlScenario

OWN = str(Path(__file__).with_name("torchrl_environments.py"))
MOCKS = "torchrl.testing.mocking_classes"


def made(name, options=None, transforms=(), copies=None, **more):
    return TorchrlEnvironment(Maker(name, options or {}, transforms), copies, **more)


def drawn(environment, rng):
    actions = {}
    for agent, spaces in environment.spaces.items():
        spaces.action.seed(int(rng.integers(1000)))
        rows = [np.asarray(spaces.action.sample()) for _ in range(environment.num_envs)]
        actions[agent] = np.stack(rows)
    return actions


def constant(environment, value):
    return {
        agent: np.full((environment.num_envs, *spaces.action.shape), value, spaces.action.dtype)
        for agent, spaces in environment.spaces.items()
    }


def test_rows_of_a_batch_end_and_begin_anew_each_by_itself():
    environment = made(f"{OWN}:Rows")
    assert environment.num_envs == 3
    assert environment.reset(1)["agent"].tolist() == [[0.0], [10.0], [20.0]]
    steps = [environment.step(constant(environment, 0.5))["agent"] for _ in range(4)]
    assert steps[0].observation.dtype == np.float32
    assert [step.observation[:, 0].tolist() for step in steps] == [
        [1, 11, 21],
        [0, 12, 22],
        [1, 10, 23],
        [0, 11, 20],
    ]
    assert [step.terminated.tolist() for step in steps] == [
        [False, False, False],
        [True, False, False],
        [False, True, False],
        [True, False, False],
    ]
    assert [step.truncated.tolist() for step in steps] == [[False] * 3] * 3 + [[False, False, True]]
    finals = [step.final_observation for step in steps]
    assert finals[0] is None
    assert [finals[1][0, 0], finals[2][1, 0], finals[3][0, 0], finals[3][2, 0]] == [2, 13, 2, 24]
    assert all(step.reward.tolist() == [0.5] * 3 and step.real is None for step in steps)


def test_copies_of_a_batch_are_joined_and_actions_clipped():
    environment = made(f"{OWN}:Rows", copies=2)
    assert environment.reset(1)["agent"][:, 0].tolist() == [0, 10, 20, 0, 10, 20]
    action = np.array([[-9.0], [-1], [0], [1], [2], [9]], np.float32)
    step = environment.step({"agent": action})["agent"]
    assert step.reward.tolist() == [-2, -1, 0, 1, 2, 2]


def test_an_environment_of_gymnasium_gives_what_gymnasium_gives():
    options = {"env_name": "CartPole-v1"}
    steps_at_most = [("torchrl.envs:StepCounter", {"max_steps": 15})]
    environment = made("torchrl.envs:GymEnv", options, steps_at_most, copies=2)
    assert environment.spaces["agent"].action == gymnasium.spaces.Discrete(2)
    singles = [gymnasium.make("CartPole-v1") for _ in range(2)]
    seen = environment.reset(3)["agent"]
    lengths, ends = [0, 0], {"terminated": 0, "truncated": 0}

    def begin(i):
        # TorchRL seeds an environment of gymnasium by one reset, and begins with another.
        singles[i].reset(seed=environment._copies[i].episode_seed)
        lengths[i] = 0
        return singles[i].reset()[0]

    assert np.array_equal(seen, [begin(0), begin(1)])
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(0, 2, 2)
        step = environment.step({"agent": actions})["agent"]
        for i, single in enumerate(singles):
            now, reward, terminated, truncated, _ = single.step(int(actions[i]))
            lengths[i] += 1
            truncated = truncated or (lengths[i] == 15 and not terminated)
            assert step.reward[i] == reward
            assert (step.terminated[i], step.truncated[i]) == (terminated, truncated)
            if terminated or truncated:
                ends["terminated" if terminated else "truncated"] += 1
                assert np.array_equal(step.final_observation[i], now)
                now = begin(i)
            assert np.array_equal(step.observation[i], now)
    assert min(ends.values()) > 0


@pytest.mark.parametrize("together", [False, True])
def test_agents_of_groups_die_early_and_wait_for_the_others(together):
    options = {"together": together, "max_steps": 25}
    environment = made(f"{OWN}:two_cartpoles", options, copies=1)
    assert list(environment.spaces) == ["left", "right"]
    begun = environment.reset(2)
    inner = environment._copies[0].environment._env
    single = copy.deepcopy(inner)
    assert all(np.array_equal(begun[agent][0], single._observations()[agent]) for agent in begun)
    rng = np.random.default_rng(1)
    waited = cut = 0
    for _ in range(120):
        actions = {agent: rng.integers(0, 2, 1) for agent in environment.spaces}
        present = list(single.agents)
        seen, rewards, terminated, truncated, _ = single.step(
            {agent: int(actions[agent][0]) for agent in present}
        )
        over = not single.agents
        steps = environment.step(actions)
        for agent, step in steps.items():
            real = step.real is None or bool(step.real[0])
            assert real == (agent in present)
            waited += not real
            ended = bool(step.terminated[0]), bool(step.truncated[0])
            if real:
                assert step.reward[0] == rewards[agent]
                # TorchRL calls one that lost as time ran out terminated.
                lost = terminated[agent]
                assert ended == (lost, truncated[agent] and not lost)
                cut += ended[1]
            else:
                assert ended == (False, False)
            if real and any(ended):
                assert np.array_equal(step.final_observation[0], seen[agent])
            elif real:
                assert np.array_equal(step.observation[0], seen[agent])
        if over:
            single = copy.deepcopy(inner)
            now = single._observations()
            assert all(np.array_equal(steps[agent].observation[0], now[agent]) for agent in now)
    assert waited > 10
    assert cut > 0


@pytest.mark.parametrize(
    ("name", "options", "agents"),
    [
        ("MultiAgentCountingEnv", {"n_agents": 2}, ["agent_0", "agent_1"]),
        ("NestedCountingEnv", {}, ["data_0", "data_1", "data_2"]),
        (
            "MultiKeyCountingEnv",
            {},
            ["agent", "nested_1_0", "nested_1_1", "nested_1_2", "nested_2_0", "nested_2_1"],
        ),
        ("ContinuousActionVecMockEnv", {}, ["agent"]),
        ("DiscreteActionConvMockEnv", {}, ["agent"]),
        ("EnvWithScalarAction", {}, ["agent"]),
        ("CountingEnv", {}, ["agent"]),
    ],
)
def test_environments_that_pass_torchrls_own_check(name, options, agents):
    maker = Maker(f"{MOCKS}:{name}", options)
    check_env_specs(maker.build())
    environment = TorchrlEnvironment(maker, 2)
    assert list(environment.spaces) == agents
    begun = environment.reset(1)
    rng = np.random.default_rng(0)
    for agent, spaces in environment.spaces.items():
        assert begun[agent].shape == (2, *spaces.observation.shape)
    for _ in range(8):
        for agent, step in environment.step(drawn(environment, rng)).items():
            shape = environment.spaces[agent].observation.shape
            assert step.observation.shape == (2, *shape)
            assert step.observation.dtype == environment.spaces[agent].observation.dtype
            assert step.reward.shape == step.terminated.shape == step.truncated.shape == (2,)


@pytest.mark.parametrize(("kind", "given"), [("onehot", [[0, 0, 1, 0]]), ("categorical", [[2]])])
def test_choices_reach_the_environment_in_the_form_of_its_spec(kind, given):
    environment = made(f"{OWN}:Choices", {"kind": kind}, copies=1)
    assert environment.spaces["agent"].action == gymnasium.spaces.Discrete(4)
    assert environment.spaces["agent"].observation == gymnasium.spaces.Discrete(4)
    assert environment.reset(1)["agent"].tolist() == [3]
    assert environment.step({"agent": np.array([2])})["agent"].observation.tolist() == [1]
    assert environment._copies[0].environment.given == given


def saved(state):
    """What a checkpoint gives back of a state."""
    encoder = Encoder()
    tree = json.loads(json.dumps(encoder.encode(state)))
    return decode(tree, encoder.tensors)


def play(environment, rng, length):
    taken = []
    for _ in range(length):
        for step in environment.step(drawn(environment, rng)).values():
            taken += [step.observation, step.reward, step.terminated, step.truncated]
            taken += [each for each in (step.final_observation, step.real) if each is not None]
    return taken


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("torchrl.envs:GymEnv", {"env_name": "Pendulum-v1"}),
        (f"{OWN}:two_cartpoles", {"max_steps": 20}),
        pytest.param(
            f"{MOCKS}:MultiAgentCountingEnv", {"n_agents": 2}, marks=pytest.mark.integration
        ),
        (f"{OWN}:Rows", {}),
    ],
)
def test_a_loaded_state_goes_on_as_the_saved_one_would_have(name, options):
    first, second = made(name, options, copies=2), made(name, options, copies=2)
    first.reset(7)
    play(first, np.random.default_rng(1), 23)
    state = saved(first.state_dict())
    second.reset(8)
    second.load_state_dict(state)
    expected = play(first, np.random.default_rng(2), 25)
    got = play(second, np.random.default_rng(2), 25)
    assert len(got) == len(expected)
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


def test_episodes_of_version_0_1_are_played_again():
    first, second = (
        made("torchrl.envs:GymEnv", {"env_name": "Pendulum-v1"}, copies=1) for _ in range(2)
    )
    first.reset(7)
    actions = np.linspace(-2, 2, 15, dtype=np.float32)[:, None, None]
    for action in actions:
        first.step({"agent": action})
    held = {"seed": 7, "episode": 0, "steps": 15, "actions": {"agent": actions}}
    (copy,) = first._copies
    second.load_state_dict({"crashes": 0, "copies": [{**held, "last": dict(copy.last)}]})
    expected, got = (play(each, np.random.default_rng(2), 10) for each in (first, second))
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


def test_what_an_environment_draws_neither_depends_on_torchs_generator_nor_changes_it():
    environment = made(f"{MOCKS}:MultiAgentCountingEnv", {"n_agents": 1}, copies=1)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    begun = environment.reset(5)["agent_0"]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert np.array_equal(environment.reset(5)["agent_0"], begun)
    assert not np.array_equal(environment.reset(6)["agent_0"], begun)


def test_a_copy_that_breaks_is_built_anew_and_its_episodes_cut_off(caplog):
    environment = made(f"{OWN}:Rows", {"crash_at": 2}, copies=1, max_restarts=1)
    environment.reset(1)
    environment.step(constant(environment, 1))
    step = environment.step(constant(environment, 1))["agent"]
    assert step.truncated.tolist() == [True] * 3
    assert step.real.tolist() == [False] * 3
    assert step.final_observation[:, 0].tolist() == [1, 11, 21]
    assert step.observation[:, 0].tolist() == [0, 10, 20]
    assert environment.crashes == 1
    assert "Rows: copy 0 raised RuntimeError: the simulator is gone in step()" in caplog.text
    environment.step(constant(environment, 1))
    with pytest.raises(RunError, match="more often than scenario.max_restarts=1 allows"):
        environment.step(constant(environment, 1))


@pytest.mark.parametrize(("spoil", "row"), [("reward", 1), ("observation", 2)])
def test_numbers_that_are_not_finite_end_the_run(spoil, row):
    environment = made(f"{OWN}:Rows", {"spoil": spoil})
    environment.reset(1)
    with pytest.raises(NonFiniteError, match=rf"{spoil}.* of agent 'agent' in copy {row} is"):
        environment.step(constant(environment, 1))


@pytest.mark.parametrize(
    ("name", "options", "transforms", "message"),
    [
        ("torchrl.envs:GymEnvv", {}, [], "torchrl.envs has no 'GymEnvv'; did you mean GymEnv"),
        ("torchrl.env:GymEnv", {}, [], "torchrl has no module 'env'; did you mean envs"),
        ("torchrl.envs", {}, [], "is a module; name a class in it, such as torchrl.envs:"),
        ("torchrl.envs:GymEnv", {"env_name": "CartPol-v1"}, [], "cannot be built with env_kwargs"),
        ("torchrl.envs:GymEnv", {"num_envs": 3}, [], "does not tell how the last ones ended"),
        (f"{MOCKS}:AutoResettingCountingEnv", {"auto_reset": True}, [], "begins new episodes by"),
        ("gymnasium:Wrapper", {}, [], "cannot be built"),
        (
            "collections:OrderedDict",
            {},
            [],
            "gives a OrderedDict, which is no torchrl.envs.EnvBase",
        ),
        (f"{MOCKS}:Str2StrEnv", {}, [], "observation is a NonTensor .* scenario.transforms"),
        (f"{MOCKS}:EnvThatDoesNothing", {}, [], "takes no action"),
        (f"{MOCKS}:HeterogeneousCountingEnv", {}, [], "different spaces in one group"),
        (f"{MOCKS}:StateLessCountingEnv", {}, [], r"several observations \(count, max_count\)"),
        (f"{OWN}:Choices", {"kind": "masked"}, [], "forbids some choices with a mask"),
        (f"{OWN}:Rows", {}, [("torchrl.envs:StepConter", {})], "did you mean StepCounter"),
        (f"{OWN}:Rows", {}, [("torchrl.envs:GymEnv", {})], "names no transform"),
        (f"{OWN}:Rows", {}, [("torchrl.envs:StepCounter", {"n": 1})], "cannot be transformed by"),
    ],
)
def test_what_cannot_be_an_environment_is_refused_with_the_remedy(
    name, options, transforms, message
):
    with pytest.raises(ConfigError, match=message):
        made(name, options, transforms)


def test_an_observation_can_be_named_and_transformed():
    flat = [("torchrl.envs:CatTensors", {"in_keys": ["count", "max_count"], "out_key": "both"})]
    named = made(f"{MOCKS}:StateLessCountingEnv", copies=1, observation="count")
    assert named.spaces["agent"].observation.shape == (1,)
    joined = made(f"{MOCKS}:StateLessCountingEnv", {}, flat, copies=1, observation="both")
    assert joined.spaces["agent"].observation.shape == (2,)
    with pytest.raises(ConfigError, match="no observation 'nought'; it has: count, max_count"):
        made(f"{MOCKS}:StateLessCountingEnv", copies=1, observation="nought")


def test_films_show_the_first_copy():
    section = {"environment": "torchrl.envs:GymEnv", "env_kwargs": {"env_name": "CartPole-v1"}}
    instance = TorchrlScenario(section).build(0)
    film = instance.environment("film")
    film.reset(1)
    frame = film.render()
    assert film.num_envs == 1
    assert frame.ndim == 3
    assert frame.dtype == np.uint8
    training = instance.train_environment
    training.reset(1)
    assert (training.num_envs, training.render()) == (4, None)
