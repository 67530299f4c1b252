"""The state of environments: taken, sent through a checkpoint's encoding, and put back."""

import json
import random
from collections import deque, namedtuple
from dataclasses import dataclass
from enum import Enum

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces, wrappers
from tensordict import TensorDict
from torchrl.data import Bounded

from plugrl.core.run.checkpoints.state import Encoder, decode
from plugrl.core.tensordict.environment.state import (
    Unsavable,
    capture,
    restore,
    resume_fault,
)
from plugrl.scenarios.gymnasium.trial import unsaved


def saved(state):
    """What a checkpoint gives back of a state."""
    encoder = Encoder()
    tree = json.loads(json.dumps(encoder.encode(state)))
    return decode(tree, encoder.tensors)


class Colour(Enum):
    RED = 1
    BLUE = 2


Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Frozen:
    value: int


class Slotted:
    __slots__ = ("value",)


class Thing:
    pass


class Holder(gymnasium.Env):
    """Holds what a test gives it."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, **held):
        self.__dict__.update(held)


def moved(source, target):
    restore(target, saved(capture(source)))
    return target


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 2**100, 0.1, float("inf"), "text", b"bytes", np.float32(0.3), Colour.BLUE),
        *(np.arange(6.0).reshape(2, 3), np.array(7), np.zeros((0, 2)), np.array(["a", "bc"])),
        *(np.array([1 + 2j]), np.array(["2020-01-01"], "datetime64[D]"), np.arange(3, dtype=">i4")),
        *([1, [2.0, None]], (1, (2,)), {"a": {3: (4,)}}, {1, 2}, frozenset({"a"}), Pair(1, "b")),
        *(deque([1, 2], maxlen=4), {(1, 2): 3}),
    ],
    ids=repr,
)
def test_plain_values_come_back_as_they_were(value):
    # What a named tuple is called is known from what stands in its place.
    before = value if isinstance(value, Pair) else None
    put = moved(Holder(value=value), Holder(value=before)).value
    assert type(put) is type(value)
    if isinstance(value, np.ndarray):
        assert (put.dtype, put.shape) == (value.dtype, value.shape)
        assert np.array_equal(put, value)
    else:
        assert put == value
    if isinstance(value, deque):
        assert put.maxlen == 4


def test_what_is_taken_does_not_change_with_the_environment():
    source = Holder(array=np.zeros(2), items=[1], own=np.array([None, [1]], dtype=object))
    state = capture(source)
    source.array[:] = 9
    source.items.append(2)
    source.own[1].append(2)
    target = Holder(array=None, items=None, own=None)
    restore(target, state)
    assert (target.array.tolist(), target.items, target.own.tolist()) == ([0, 0], [1], [None, [1]])
    # Nor does what was put back change the state.
    target.array[:] = 5
    restore(other := Holder(array=None, items=None, own=None), state)
    assert other.array.tolist() == [0, 0]


def test_one_thing_in_two_places_is_one_thing_again():
    shared, array = Thing(), np.zeros(2)
    shared.items = [shared]
    target = Holder(a=Thing(), b=None, x=None, y=None)
    moved(Holder(a=shared, b=shared, x=array, y=[array]), target)
    assert target.a is target.b is target.a.items[0]
    assert target.x is target.y[0]


def thing(number):
    made = Thing()
    made.number = number
    return made


@pytest.mark.parametrize(
    "marked",
    [
        thing,
        lambda number: [number],
        lambda number: {"number": number},
        lambda number: deque([number]),
        lambda number: {number},
        np.random.default_rng,
    ],
)
def test_two_things_do_not_become_the_one_that_stood_in_both_places(marked):
    """As where an environment draws anew at each reset which of its landmarks is whose goal."""
    shared = marked(0)
    target = moved(Holder(a=marked(1), b=marked(2)), Holder(a=shared, b=shared))
    assert target.a is not target.b
    assert repr(capture(target.a)) == repr(capture(marked(1)))
    assert repr(capture(target.b)) == repr(capture(marked(2)))


def test_what_is_of_torch_comes_back_as_it_was():
    def held(number):
        layer = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(layer.weight, number)
        inner = TensorDict({"seen": torch.full((3,), number)}, batch_size=[3])
        return Holder(
            count=torch.tensor([[number]]),
            random=torch.Generator().manual_seed(number).get_state(),
            layer=layer,
            told=TensorDict({"next": inner, "done": torch.ones(3, dtype=torch.bool)}, [3]),
            spec=Bounded(0.0, float(number), (1,)),
            device=torch.device("cpu"),
        )

    source, target = held(5), held(2)
    weight = target.layer.weight
    moved(source, target)
    assert torch.equal(target.count, source.count)
    assert torch.equal(target.random, source.random)
    assert target.layer.weight is weight
    assert torch.equal(weight, source.layer.weight)
    assert target.told.batch_size == source.told.batch_size
    assert (target.told == source.told).all()
    # Specs are configuration.
    assert target.spec.space.high.item() == 2
    source.count += 1
    assert target.count.item() == 5


def test_attributes_that_were_not_there_are_gone():
    target = moved(Holder(a=1), Holder(a=2, b=3))
    assert target.__dict__ == {"a": 1}


def test_objects_of_the_environments_own_code_are_made_anew():
    thing, slotted = Thing(), Slotted()
    thing.colour, slotted.value = Colour.RED, [1]
    target = moved(Holder(things=[thing, Frozen(3), slotted]), Holder(things=[], thing=None))
    assert [type(each) for each in target.things] == [Thing, Frozen, Slotted]
    assert (target.things[0].colour, target.things[1].value) == (Colour.RED, 3)
    assert target.things[2].value == [1]


def test_a_state_cannot_make_objects_of_other_code():
    source = Holder(thing=Thing())
    state = capture(source)
    state["held"]["thing"]["class"] = "tempfile._TemporaryFileCloser"
    with pytest.raises(Unsavable, match=r"_TemporaryFileCloser, which is not the environment's"):
        restore(Holder(thing=None), state)


def test_generators_go_on_where_they_were():
    def held():
        return {
            "a": np.random.default_rng(1),
            "b": np.random.Generator(np.random.MT19937(2)),
            "c": np.random.RandomState(3),
            "d": random.Random(4),
        }

    def drawn(each):
        numbers = [each.a.random(3), each.b.normal(size=2), each.c.rand(2), each.d.random()]
        return np.concatenate([np.ravel(number) for number in numbers])

    source = Holder(**held())
    drawn(source)
    # Normal numbers come in pairs, of which one is kept.
    source.c.randn()
    source.d.gauss(0, 1)
    target = moved(source, Holder(**held()))
    assert np.array_equal(drawn(source), drawn(target))
    assert not np.array_equal(drawn(target), drawn(Holder(**held())))


def test_a_generator_of_another_kind_is_replaced():
    source = Holder(a=np.random.Generator(np.random.Philox(5)))
    target = moved(source, Holder(a=np.random.default_rng(0)))
    assert source.a.random() == target.a.random()


def test_spaces_that_are_drawn_from_go_on_too():
    def make():
        env = Holder(action_space=spaces.Discrete(1000))
        env.action_space.seed(3)
        return env

    source = make()
    source.action_space.sample()
    target = moved(source, make())
    assert [source.action_space.sample() for _ in range(5)] == [
        target.action_space.sample() for _ in range(5)
    ]


def test_an_array_that_shows_other_memory_goes_on_showing_it():
    def make(value):
        memory = bytearray(8)
        array = np.frombuffer(memory, np.float64)
        array[:] = value
        return Holder(array=array), memory

    (source, _), (target, memory) = make(3.0), make(0.0)
    moved(source, target)
    assert np.frombuffer(memory, np.float64).tolist() == [3.0]


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ({"lines": iter([1])}, "Holder.lines is a builtins.list_iterator, which holds what cannot"),
        ({"deep": {"a": [object()]}}, r"Holder.deep\['a'\]\[0\] is a builtins.object"),
        ({"rows": np.zeros(2, "i4,f4")}, "Holder.rows is an array of records"),
    ],
)
def test_what_cannot_be_seen_is_named(held, reason):
    with pytest.raises(Unsavable, match=reason):
        capture(Holder(**held))


@pytest.mark.parametrize(
    "held",
    [random.Random(3), spaces.Discrete(3, seed=1), np.random.default_rng(1)],
    ids=["random", "space", "numpy"],
)
@pytest.mark.parametrize("other", [None, 5, {"a": 1}])
def test_what_only_an_environment_can_make_goes_nowhere_else(held, other):
    """A generator of numpy is made anew; what has a state of its own must be there already."""
    target = Holder(a=other)
    if isinstance(held, np.random.Generator):
        assert moved(Holder(a=held), target).a.random() == held.random()
        return
    kind = f"builtins.{type(other).__name__}"
    with pytest.raises(Unsavable, match=f"Holder.a is a {kind}, and was something else"):
        moved(Holder(a=held), target)


def test_functions_classes_and_modules_stay_as_they_are():
    target = moved(
        Holder(f=len, g=json, h=Thing, i=lambda: 1), kept := Holder(f=max, g=np, h=Pair, i=None)
    )
    assert (target.f, target.g, target.h, target.i) == (max, np, Pair, None)
    assert target is kept


class Own(Holder):
    """Saves itself."""

    def __init__(self):
        self._secret = iter(())
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"] + 100


def test_an_environment_that_saves_itself_is_asked():
    source = wrappers.OrderEnforcing(Own())
    source.unwrapped.count = 7
    target = wrappers.OrderEnforcing(Own())
    restore(target, saved(capture(source)))
    assert target.unwrapped.count == 107


WRAPPED = [
    lambda env: wrappers.FrameStackObservation(env, 3),
    wrappers.NormalizeObservation,
    wrappers.NormalizeReward,
    wrappers.RecordEpisodeStatistics,
    lambda env: wrappers.StickyAction(env, 0.4),
    wrappers.TimeAwareObservation,
    lambda env: wrappers.DelayObservation(env, 2),
]


@pytest.mark.parametrize("wrap", WRAPPED, ids=range(len(WRAPPED)))
def test_wrappers_of_gymnasium_can_be_saved(wrap):
    assert unsaved(lambda: wrap(gymnasium.make("CartPole-v1", disable_env_checker=True))) is None


@pytest.mark.parametrize(
    "id",
    [
        *("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake-v1"),
        *("Blackjack-v1", "MountainCarContinuous-v0"),
    ],
)
def test_environments_of_gymnasium_can_be_saved(id):
    assert unsaved(lambda: gymnasium.make(id, disable_env_checker=True)) is None


@pytest.mark.parametrize("id", ["Hopper-v5", "Ant-v5"])
def test_environments_of_mujoco_can_be_saved(id):
    pytest.importorskip("mujoco")
    assert unsaved(lambda: gymnasium.make(id, disable_env_checker=True)) is None


@pytest.mark.integration
def test_environments_of_the_arcade_can_be_saved():
    ale_py = pytest.importorskip("ale_py")
    gymnasium.register_envs(ale_py)
    assert unsaved(lambda: gymnasium.make("ALE/Pong-v5", disable_env_checker=True)) is None


def test_environments_of_box2d_cannot():
    pytest.importorskip("Box2D")
    reason = unsaved(lambda: gymnasium.make("LunarLander-v3", disable_env_checker=True))
    assert reason.endswith("which holds what cannot be seen")


@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_vector_environments_can_be_saved(mode):
    assert unsaved(lambda: gymnasium.make_vec("CartPole-v1", 3, vectorization_mode=mode)) is None


_HIDDEN = {"count": 0}


class Hiding(gymnasium.Env):
    """Its rewards depend on a number that is not its own, or on nothing that was seeded."""

    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, how):
        self.how = how
        count = 0

        def counted():
            nonlocal count
            count += 1
            return count

        # What a function has closed over cannot be seen.
        self._counted = counted

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        _HIDDEN["count"] += 1
        given = {"closure": self._counted, "module": lambda: _HIDDEN["count"]}[self.how]()
        return np.zeros(1, np.float32), float(given), False, False, {}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("closure", "one that gets the state of another goes on differently"),
        ("module", "two that begin from one seed give different numbers"),
    ],
)
def test_the_trial_finds_what_the_state_does_not_hold(how, reason):
    # The walk itself sees nothing amiss.
    assert capture(Hiding(how)) is not None
    assert unsaved(lambda: Hiding(how)) == reason


def test_the_trial_says_what_an_environment_raised_and_closes_all():
    closed = []

    class Broken(Hiding):
        def step(self, action):
            raise OSError("the simulator is gone")

        def close(self):
            closed.append(self)

    assert unsaved(lambda: Broken("closure")) == "OSError: the simulator is gone"
    assert len(closed) == 3


def test_the_trial_plays_three_of_which_one_is_never_saved():
    played = []

    def play(environment, seed, steps):
        played.append((environment.number, seed, len(steps)))
        return [0]

    numbers = iter(range(3))
    assert resume_fault(lambda: Holder(number=next(numbers)), play) is None
    # Whether an environment that was saved goes on as one that never was, and as one that got it.
    assert played[:4] == [(0, 7, 12), (1, 7, 12), (0, None, 40), (1, None, 40)]
    # The third has the state of the first.
    assert played[4:] == [(2, 8, 3), (0, None, 40)]
