"""Collecting in the background, whatever the order in which attempts end and the run is killed.

The stream of attempts is a scripted one here: it ends attempts in an order that is drawn. The
collectors, the pool, the loader, the account of attempts and the state machine are the real ones.
"""

import json
import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugrl.core.errors import RunError
from plugrl.core.run.checkpoints.state import Encoder, decode
from plugrl.core.text.data.loader import PromptLoader
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.schedule.free_running import Streaming
from plugrl.core.text.schedule.items import Items
from plugrl.core.text.schedule.overlapping import BatchAhead, Sizes
from plugrl.core.text.schedule.pool import LOADED, REACHED, TrajectoryPool
from plugrl.core.text.schedule.state_machine import (
    BATCH_ASYNC,
    FULLY_ASYNC,
    Rules,
    Versions,
    WeightStates,
)
from plugrl.core.text.trajectory import Trajectory

REPEAT, LOADED_AT_ONCE = 2, 3


class Script:
    """Ends open attempts in any order, some of them in odd ways."""

    #: How many of the attempts that began first may end next.
    window = 1000

    def __init__(self, draws, states, odd):
        self.draws, self.states, self.odd = draws, states, odd
        self.running, self.ended = {}, []

    @property
    def version(self):
        return self.states.models["policy"].sampler

    @property
    def open(self):
        return len(self.running)

    def start(self, prompts, context):
        self.running |= {number: (prompt, self.version) for number, prompt in prompts.items()}

    def wait(self, count, numbers=()):
        # Now and then more end than are waited for.
        while self.running and (
            len(self.ended) < count
            or self.running.keys() & set(numbers)
            or self.draws.random() < 0.3
        ):
            self.end(self.draws.choice(sorted(self.running)[: self.window]))

    def end(self, number):
        prompt, began = self.running.pop(number)
        kind = self.draws.choice(self.odd) if self.draws.random() < 0.2 else "plain"
        fields = {"group_id": prompt.group_id, "run_id": prompt.run_id}
        good = Trajectory([1, 2, 3], [0, 1, 1], 0.0, None, [-1, began, self.version], **fields)
        bad = Trajectory([1], [0], valid=False, **fields)
        good.reward = self.draws.choice([0.0, 1.0])
        made = {"plain": [good], "invalid": [bad], "nothing": [], "frozen": [], "two": [good, good]}
        made["two"] = [good, Trajectory([1, 2], [0, 1], 1.0, None, [-1, began], **fields)]
        self.ended.append((number, made[kind]))

    def results(self):
        ended, self.ended = self.ended, []
        return ended

    def cancel(self, numbers):
        gone = [number for number in numbers if number in self.running]
        for number in gone:
            del self.running[number]
        return gone

    def yield_workers(self):
        assert not self.running

    def close(self):
        self.running.clear()


class Training:
    """The loop of a trainer, without models."""

    def __init__(self, rules, draws, steps, *, drop_equal=False, odd=("plain",), state=None):
        self.rules, self.draws, self.steps = rules, draws, steps
        fully = rules.mode == FULLY_ASYNC
        self.pool = TrajectoryPool(
            group_size=REPEAT,
            batch_size=rules.batch_size,
            rule=REACHED if fully else LOADED,
            drop_equal_groups=drop_equal,
            oldest_first=fully,
        )
        items = [{"prompt": str(number)} for number in range(5)]
        self.loader = PromptLoader(items, batch_size=LOADED_AT_ONCE, repeat=REPEAT)
        self.states = WeightStates(rules, {"policy": Versions()})
        self.script = Script(draws, self.states, odd)
        params = SimpleNamespace(
            seed=0,
            data=SimpleNamespace(batch_size=LOADED_AT_ONCE),
            trajectory_pool=SimpleNamespace(max_idle_batches=50),
        )
        self.collector = (Streaming if fully else BatchAhead)(
            params,
            self.loader,
            self.pool,
            SamplingParams(),
            [],
            stream=self.script,
            states=self.states,
            sizes=Sizes(steps),
        )
        self.step, self.trained, self.gaps, self.syncs, self.told = 0, [], [], [], []
        self.said, self.counts = [], {"restarted": 0, "given_back": 0}
        if state is not None:
            self.restore(state)

    def run_step(self, *, validates=False):
        states, collector = self.states, self.collector
        versions = states.models["policy"]
        self.step += 1
        states.begin(holds=validates or self.step == self.steps)
        self.told += [key(t) for t in collector.fill({"policy": None}, self.step)]
        batch = collector.take()["policy"]
        states.take(collector.oldest)
        collector.start_during_training(self.step)
        self.trained += [key(t) for t in {key(t): t for t in batch}.values()]
        self.gaps += [versions.train - v for t in batch for v in (t.versions or ()) if v >= 0]
        self.script.wait(self.draws.randrange(3))
        states.train({"policy": versions.train + 1})
        if states.sync_due:
            collector.before_sync()
            states.sync(collector.open)
            self.syncs.append(self.step)
            states.synced()
        if validates:
            collector.wait_until_idle()
            states.validate(collector.open)
            assert versions.gap == 0
            assert not self.script.running
            states.validated()
        states.end()
        said = collector.metrics()
        self.said.append(said["sync/staleness_max"])
        for name in self.counts:
            self.counts[name] += said[f"sync/{name}"]

    def state(self):
        assert self.states.state == "idle"
        state = {
            "loader": self.loader.state_dict(),
            "pool": self.pool.state_dict(),
            "collector": self.collector.state_dict(),
            "version": self.states.models["policy"].train,
            "step": self.step,
        }
        encoder = Encoder()
        return decode(json.loads(json.dumps(encoder.encode(state))), encoder.tensors)

    def restore(self, state):
        self.loader.load_state_dict(state["loader"])
        self.pool.load_state_dict(state["pool"])
        self.collector.load_state_dict(state["collector"])
        version, self.step = state["version"], state["step"]
        self.states.models["policy"] = Versions(version, version)


def key(trajectory):
    return trajectory.group_id, trajectory.run_id


MODES = st.sampled_from(
    [(BATCH_ASYNC, "finish"), *((FULLY_ASYNC, kind) for kind in ("finish", "restart", "continue"))]
)


@settings(max_examples=60, deadline=None)
@given(
    MODES,
    st.integers(0, 3),
    st.integers(1, 9),
    st.integers(0, 2**32),
    st.booleans(),
    st.sampled_from([("plain",), ("invalid", "nothing", "two")]),
)
def test_nothing_is_lost_doubled_or_too_old(kind, threshold, batch, seed, drop_equal, odd):
    mode, in_flight = kind
    draws = random.Random(seed)
    rules = Rules(mode, threshold, in_flight, batch)
    options = {"drop_equal": drop_equal, "odd": odd}
    training = Training(rules, draws, 12, **options)
    trained, gaps = [], []
    while training.step < 12:
        training.run_step(validates=draws.random() < 0.2)
        if draws.random() < 0.3:
            # Killed after a checkpoint: what the process had in memory is gone.
            state = training.state()
            trained, gaps = trained + training.trained, gaps + training.gaps
            training.trained, training.gaps = [], []
            training = Training(rules, draws, 12, state=state, **options)
    trained, gaps = trained + training.trained, gaps + training.gaps
    assert len(trained) == len(set(trained)), "an attempt was trained twice"
    assert max(gaps, default=0) <= threshold
    # Every attempt that the loader gave is trained, in the account, or was left out for a reason.
    kept = {(a[2], a[1]) for a in training.state()["collector"]["attempts"]}
    assert not kept & set(trained)
    given = training.loader.state_dict()
    loaded = {
        (f"{epoch}/{index}", run)
        for epoch in range(given["epoch"] + 1)
        for index in range(5)
        for run in range(REPEAT)
    }
    assert set(trained) | kept <= loaded
    if not drop_equal and odd == ("plain",):
        count = (given["epoch"] * 5 + given["position"]) * REPEAT
        assert len(set(trained) | kept) == count


@pytest.mark.parametrize("in_flight", ["finish", "restart", "continue"])
def test_attempts_go_on_while_a_batch_is_trained(in_flight):
    training = Training(Rules(FULLY_ASYNC, 2, in_flight, 6), random.Random(0), 100)
    training.script.window = 6
    open_after = []
    for _ in range(20):
        training.run_step()
        open_after.append(training.script.open)
    assert training.syncs == list(range(1, 21))
    assert max(training.gaps) <= 2
    # Only those that go on are open when the weights have moved.
    assert (max(open_after) > 0) == (in_flight == "continue")
    assert (training.counts["restarted"] > 0) == (in_flight == "restart")
    assert max(training.said) == max(training.gaps) > 0


@pytest.mark.parametrize("threshold", [0, 1, 3])
@pytest.mark.parametrize("in_flight", ["finish", "continue"])
def test_nothing_is_dropped_whatever_the_order(in_flight, threshold):
    training = Training(Rules(FULLY_ASYNC, threshold, in_flight, 6), random.Random(0), 1000)
    for _ in range(100):
        training.run_step()
    assert training.counts == {"restarted": 0, "given_back": 0}
    assert max(training.gaps) == threshold


def test_everything_that_ended_is_told_once():
    training = Training(Rules(FULLY_ASYNC, 2, "continue", 6), random.Random(1), 1000)
    for _ in range(30):
        training.run_step()
    assert set(training.trained) <= set(training.told)


def test_a_slow_attempt_is_waited_for_before_it_gets_too_old():
    training = Training(Rules(FULLY_ASYNC, 1, "continue", 2), random.Random(0), 100)
    script, waited, slow = training.script, [], None
    plain = script.wait

    def wait(count, numbers=()):
        # The first attempt of all ends only when nothing else helps.
        nonlocal slow
        slow = slow or (script.running[0][0].group_id, script.running[0][0].run_id)
        if 0 in numbers:
            waited.append(training.step)
        held = {} if 0 in numbers else {0: script.running.pop(0, None)}
        plain(count, numbers)
        script.running |= {number: entry for number, entry in held.items() if entry}

    script.wait = wait
    for _ in range(5):
        training.run_step()
    # It began with version 0, and step 2 is the last that may train it.
    assert waited == [2]
    assert max(training.gaps) == 1
    assert slow in training.trained
    assert training.counts == {"restarted": 0, "given_back": 0}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60))
def test_the_account_refuses_what_its_table_does_not_have(moves):
    items, states = Items(), {}
    does = [
        ("load", None, "queued", lambda a: items.load([a])),
        ("start", "queued", "open", lambda a: items.start([a])),
        ("restart", "open", "queued", lambda a: items.restart([key(a)])),
        ("finish", "open", "pooled", lambda a: items.finish(key(a), ["policy"])),
        ("train", "pooled", None, lambda a: items.train([key(a)], "policy")),
        ("give back", "pooled", "queued", lambda a: items.give_back([key(a)], "policy")),
    ]
    for number, move in moves:
        attempt = SimpleNamespace(group_id=str(number // 2), run_id=number % 2)
        _, state, target, act = does[move]
        if states.get(number) == state:
            act(attempt)
            states[number] = target
        else:
            with pytest.raises(RunError):
                act(attempt)
        assert items.state(key(attempt)) == states.get(number)
    queued = sum(state == "queued" for state in states.values())
    assert items.queued == queued
    for group in range(3):
        own = [states.get(2 * group + run) for run in range(2)]
        assert items.pending(str(group)) == sum(state in ("queued", "open") for state in own)


class Given(Script):
    """Ends attempts with the trajectories that ``make`` gives for a prompt."""

    def end(self, number):
        prompt, _ = self.running.pop(number)
        self.ended.append((number, self.make(prompt)))


def coming_to(training, make):
    """Let the attempts of a training come to what ``make`` gives from now on."""
    training.script.__class__ = Given
    training.script.make = make
    return training


def answer(prompt, versions, mask=(0, 1, 1), **fields):
    own = {"group_id": prompt.group_id, "run_id": prompt.run_id, "reward": 1.0, **fields}
    return Trajectory([1, 2, 3], list(mask), versions=list(versions), **own)


@pytest.mark.parametrize("mode", [BATCH_ASYNC, FULLY_ASYNC])
def test_staleness_is_of_the_trained_tokens_of_valid_attempts(mode):
    """What was said long ago and is not trained, or will not be, is not too old."""
    training = Training(Rules(mode, 0, "finish", REPEAT), random.Random(0), 9)
    for _ in range(3):
        training.run_step()
    now = training.states.models["policy"].train
    assert now == 3

    def make(prompt):
        if prompt.run_id:
            return [answer(prompt, [-1, 0, 0], valid=False)]
        return [answer(prompt, [-1, 0, now], mask=(0, 0, 1))]

    coming_to(training, make)
    # A pool that asks for the oldest token of a group would drop it.
    training.pool.drop_older = lambda model, version: []
    training.run_step()
    assert training.said[-1] == 0.0


def test_nothing_begins_while_the_last_batch_is_trained():
    training = Training(Rules(BATCH_ASYNC, 5, "finish", REPEAT), random.Random(0), 2)
    for step in (1, 2):
        training.states.begin(holds=False)
        training.collector.fill({"policy": None}, step)
        training.collector.take()
        training.states.take(training.collector.oldest)
        training.collector.start_during_training(step)
        assert (training.collector.open > 0) == (step == 1)
        version = training.states.models["policy"].train
        training.states.train({"policy": version + 1})
        training.states.end()


def test_what_was_not_told_is_told_after_a_resume_and_once():
    rules = Rules(FULLY_ASYNC, 2, "finish", REPEAT)
    training = Training(rules, random.Random(3), 6)
    training.run_step()
    state = training.state()
    untold = {tuple(each) for each in state["collector"]["untold"]}
    assert untold
    again = Training(rules, random.Random(4), 6, state=state)
    again.run_step()
    told = [each for each in again.told if each in untold]
    assert sorted(told) == sorted(untold)


def test_trajectories_of_other_groups_are_passed_over_after_a_resume():
    """A worker may give a trajectory to a group that nobody asked for; it gets too old."""
    rules = Rules(FULLY_ASYNC, 1, "finish", REPEAT)
    training = coming_to(
        Training(rules, random.Random(3), 9),
        lambda prompt: [
            answer(prompt, [-1, 0, 0]),
            answer(prompt, [-1, 0, 0], group_id=f"{prompt.group_id} of another"),
        ],
    )
    training.run_step()
    state = training.state()
    assert state["collector"]["foreign"] is True
    again = Training(rules, random.Random(4), 9, state=state)
    for _ in range(4):
        again.run_step()
    assert not any("another" in t.group_id for t in again.pool.trajectories())


@pytest.mark.parametrize("mode", [BATCH_ASYNC, FULLY_ASYNC])
def test_what_an_attempt_came_to_is_checked_before_it_is_pooled(mode):
    training = Training(Rules(mode, 1, "finish", REPEAT), random.Random(0), 9)
    checked = []

    def check(prompt, trajectories):
        assert len(training.pool) == 0
        checked.append((prompt.group_id, {t.group_id for t in trajectories}))
        raise RunError("another prompt's")

    training.collector._check = check
    with pytest.raises(RunError, match="another prompt's"):
        training.run_step()
    ((group, groups),) = checked
    assert groups == {group}
