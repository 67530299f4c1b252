"""Environments that are stepped as tensors: Gymnasium's CartPole, and those of users."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.tensordict.environment.tensor_environment import TensorEnvironment
from plugrl.scenarios.tensor.cart_pole import CartPole
from plugrl.scenarios.tensor.scenario import TensorScenario

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_cart_pole_goes_as_that_of_gymnasium(device: str) -> None:
    """From each state that an episode begins with, to its end by a fall or by the time limit."""
    ours = CartPole(4, max_episode_steps=60)
    ours.to(torch.device(device))
    theirs = [gymnasium.make("CartPole-v1", max_episode_steps=60) for _ in range(4)]

    def begin(number: int) -> None:
        theirs[number].reset(seed=0)
        theirs[number].unwrapped.state = ours._state["cart_pole"][number].cpu().numpy().copy()

    ours.reset_tensors(7)
    for number in range(4):
        begin(number)
    random = np.random.default_rng(0)
    ends = {"terminated": 0, "truncated": 0}
    pole = ours._state["cart_pole"]
    for _ in range(300):
        # Two copies are balanced by a rule of thumb, so that they reach the time limit.
        balanced = (pole[:, 2] + 0.5 * pole[:, 3] > 0).long().cpu()
        action = torch.from_numpy(random.integers(0, 2, 4))
        action[:2] = balanced[:2]
        stepped = ours.step_tensors(action.to(device))
        for number, environment in enumerate(theirs):
            seen, reward, terminated, truncated, _ = environment.step(int(action[number]))
            assert torch.allclose(
                stepped.final_observation[number].cpu(), torch.from_numpy(seen), rtol=1e-6, atol=0
            )
            assert float(stepped.reward[number]) == reward
            assert bool(stepped.terminated[number]) == terminated
            assert bool(stepped.truncated[number]) == truncated
            ends["terminated"] += terminated
            ends["truncated"] += truncated
            if terminated or truncated:
                assert stepped.observation[number].abs().max() <= 0.05
                begin(number)
            else:
                assert torch.equal(stepped.observation[number], stepped.final_observation[number])
    assert ends["terminated"] > 5
    assert ends["truncated"] > 5


def test_episodes_begin_spread_and_by_their_seed() -> None:
    one, same, other = CartPole(500), CartPole(500), CartPole(500)
    first = one.reset_tensors(1)
    assert torch.equal(first, same.reset_tensors(1))
    assert not torch.equal(first, other.reset_tensors(2))
    # Uniform between -0.05 and 0.05: deviation 0.1 / sqrt(12).
    assert first.std() == pytest.approx(0.1 / 12**0.5, rel=0.05)
    assert first.abs().max() <= 0.05


def test_it_goes_on_where_it_was_saved() -> None:
    one, other = CartPole(8, max_episode_steps=9), CartPole(8, max_episode_steps=9)
    one.reset_tensors(3)
    actions = torch.randint(0, 2, (30, 8), generator=torch.Generator().manual_seed(0))
    for action in actions[:13]:
        one.step_tensors(action)
    other.load_state_dict(one.state_dict())
    for action in actions[13:]:
        ahead, again = one.step_tensors(action), other.step_tensors(action)
        assert torch.equal(ahead.observation, again.observation)
        assert torch.equal(ahead.truncated, again.truncated)


class Reaches(TensorEnvironment):
    """A point on a line that its action moves; what it gets is what was done to it."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Box(-0.5, 0.5, (1,))
    max_episode_steps = 3

    def initial(self, generator):
        return {"place": torch.zeros(self.num_envs, 1, device=self.device)}

    def observe(self, state):
        return state["place"].clone()

    def advance(self, state, action):
        place = state["place"] + action
        return {"place": place}, action[:, 0], place[:, 0] > 0.9


def test_actions_stay_within_their_bounds_and_ends_begin_anew() -> None:
    environment = Reaches(2)
    environment.reset(0)
    steps = [environment.step({"agent": np.float32([[9.0], [-0.25]])})["agent"] for _ in range(3)]
    # By hand: 0.5 and 1.0, which is an end, then 0.5; and -0.25, -0.5, -0.75 at the time limit.
    assert [step.reward.tolist() for step in steps] == [[0.5, -0.25]] * 3
    assert [step.observation[:, 0].tolist() for step in steps] == [
        [0.5, -0.25],
        [0, -0.5],
        [0.5, 0],
    ]
    assert steps[0].final_observation is None
    assert steps[1].final_observation[:, 0].tolist() == [1.0, -0.5]
    assert steps[2].final_observation[:, 0].tolist() == [0.5, -0.75]
    assert [step.terminated.tolist() for step in steps] == [
        [False, False],
        [True, False],
        [False, False],
    ]
    assert [step.truncated.tolist() for step in steps] == [
        [False, False],
        [False, False],
        [False, True],
    ]


def scenario(**section):
    return TensorScenario({"environment": "CartPole-v1", **section})


def test_splits_have_their_copies_and_their_time_limit() -> None:
    task = scenario(num_envs=6, num_test_envs=2, max_episode_steps=9).build(0)
    train, test = task.environment("train"), task.environment("test")
    assert (train.num_envs, test.num_envs, task.environment("film").num_envs) == (6, 2, 1)
    assert train.max_episode_steps == test.max_episode_steps == 9
    assert scenario().build(0).environment("train").max_episode_steps == 500


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"environment": "CartPole-v0"}, "did you mean CartPole-v1"),
        ({"environment": "torchrl.envs:GymEnv"}, "is no subclass of TensorEnvironment"),
        ({"environment": "nowhere:Task"}, "nowhere"),
        ({"env_kwargs": {"lenght": 2}}, "cannot be built"),
    ],
)
def test_what_is_no_such_environment_is_refused(section, said) -> None:
    with pytest.raises(ConfigError, match=said):
        scenario(**section).build(0).environment("test")


def test_an_environment_is_named_in_the_section() -> None:
    with pytest.raises(ConfigError, match="environment: is missing; name one, such as CartPole-v1"):
        TensorScenario({})


class Walk(TensorEnvironment):
    """Places to which actions are added; what it gives is changed by the tests below."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,))
    action_space = gymnasium.spaces.Discrete(3)

    def initial(self, generator):
        return {"place": torch.rand((self.num_envs, 2), generator=generator)}

    def observe(self, state):
        return state["place"] + 0

    def advance(self, state, action):
        place = state["place"] + action[:, None]
        return {"place": place}, place.sum(-1), place[:, 0] > 5


def _other_observation(change):
    return {"observe": lambda self, state: change(state["place"])}


def _other_step(change):
    return {"advance": lambda self, *given: change(*Walk.advance(self, *given))}


def _other_begin(change):
    return {"initial": lambda self, generator: change(Walk.initial(self, generator)["place"])}


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        (_other_observation(lambda x: x[:, :1]), "observe() gave observations of shape [4, 1]; "),
        (_other_observation(lambda x: x[0]), "of shape [2]; give shape [4, 2]"),
        (_other_observation(lambda x: x.numpy()), "as a ndarray; give a tensor"),
        (_other_observation(lambda x: None), "observations as None; give a tensor"),
        (_other_observation(lambda x: x.to("meta")), "on meta; give tensors on self.device, cpu"),
        (_other_observation(lambda x: x * 1j), "as complex numbers; give a dense tensor"),
        (_other_observation(lambda x: x.to_sparse()), "as a sparse tensor; give a dense"),
        (_other_step(lambda s, r, d: (s, r[:, None], d)), "rewards of shape [4, 1]; give shape"),
        (_other_step(lambda s, r, d: (s, 1.0, d)), "rewards as a float; give a tensor"),
        (_other_step(lambda s, r, d: (s, r, d.float())), "of torch.float32; give torch.bool"),
        (_other_step(lambda s, r, d: (s, r, False)), "terminated as a bool; give a tensor"),
        (_other_step(lambda s, r, d: (s, r)), "gave 2 values; give (states, rewards, terminated)"),
        (_other_step(lambda s, r, d: None), "advance() gave None; give (states, rewards"),
        (_other_step(lambda s, r, d: ({}, r, d)), "no state 'place'; give those of initial()"),
        (_other_step(lambda s, r, d: (s["place"], r, d)), "a Tensor as states; give tensors by"),
        (
            _other_step(lambda s, r, d: ({"place": s["place"][:1]}, r, d)),
            "advance() gave state 'place' of shape [1, 2]; give shape [4, 2]",
        ),
        (_other_begin(lambda x: x), "initial() gave a Tensor as states; give tensors by name"),
        (_other_begin(lambda x: {"place": x[:1]}), "give a row for each of 4 environments"),
        (_other_begin(lambda x: {"place": x.tolist()}), "state 'place' as a list; give a tensor"),
    ],
)
def test_what_a_step_may_not_give_is_named_with_what_to_give(methods, said) -> None:
    environment = type("Wrong", (Walk,), methods)(4)

    def begin_and_step() -> None:
        environment.reset_tensors(0)
        environment.step_tensors(torch.zeros(4, dtype=torch.int64))

    with pytest.raises(ContractError) as caught:
        begin_and_step()
    assert str(caught.value).startswith("environment Wrong: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("limit", [0, -1, 2.5, "9", True, 2**63])
def test_a_time_limit_is_a_number_of_steps(limit) -> None:
    with pytest.raises(ValueError, match="max_episode_steps must be a whole number above 0"):
        Walk(4, max_episode_steps=limit)
    with pytest.raises(ValueError, match="max_episode_steps must be a whole number above 0"):
        type("Limited", (Walk,), {"max_episode_steps": limit})(4)


def _in_place(self, state, action):
    place = state["place"].add_(action[:, None])
    action.fill_(-1)
    return state, place.sum(-1), place[:, 0] > 5


def test_what_was_seen_and_done_stays_when_states_and_actions_are_changed_in_place() -> None:
    shared = _other_observation(lambda place: place)
    careless = type("Careless", (Walk,), {**shared, "advance": _in_place})
    runs = []
    for cls in (Walk, careless):
        environment = cls(4, max_episode_steps=3)
        kept = [environment.reset_tensors(5)]
        for step in range(7):
            action = torch.tensor([step % 3, 0, 2, 1])
            kept.append(action)
            stepped = environment.step_tensors(action)
            kept += [stepped.observation, stepped.final_observation, stepped.reward]
        runs.append(kept)
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


def test_an_environment_that_is_not_set_up_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        f"from {__name__} import Walk",
        "class Bare(Walk):",
        "    def __init__(self, num_envs): ...",
    ]
    Path("bare_walk.py").write_text("\n".join(lines), "utf-8")
    with pytest.raises(ConfigError, match=r"call super\(\).__init__\(num_envs\) in its __init__"):
        scenario(environment="bare_walk.py:Bare").build(0).environment("test")
