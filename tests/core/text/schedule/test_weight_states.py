"""The state machine of weight syncs: its table, its bound, and that it never gets stuck."""

import re
from pathlib import Path

import pytest

from plugrl.core.errors import UsageError
from plugrl.core.text.schedule.items import ITEM_STATES, ITEM_TRANSITIONS
from plugrl.core.text.schedule.state_machine import (
    BATCH_ASYNC,
    FULLY_ASYNC,
    STATES,
    SYNC,
    TRANSITIONS,
    Rules,
    Versions,
    WeightStates,
)

PAGE = Path(__file__, "../../../../../docs/weight-sync-states.md").resolve()


def machine(mode, threshold=0, **rules):
    return WeightStates(Rules(mode, threshold, **rules), {"policy": Versions()})


def step(states, *, holds=False, oldest=0):
    """One step without open attempts; whether it synced."""
    states.begin(holds=holds)
    states.take({"policy": oldest})
    states.train({"policy": states.models["policy"].train + 1})
    synced = states.sync_due
    if synced:
        states.sync(0)
        states.synced()
    states.end()
    return synced


@pytest.mark.parametrize(
    ("mode", "threshold", "steps"),
    [
        (SYNC, 0, "1111111111"),
        (SYNC, 3, "1111111111"),
        (BATCH_ASYNC, 0, "1111111111"),
        (BATCH_ASYNC, 1, "0101010101"),
        (BATCH_ASYNC, 2, "0010010010"),
        (FULLY_ASYNC, 2, "1111111111"),
    ],
)
def test_the_schedule_of_syncs(mode, threshold, steps):
    states = machine(mode, threshold)
    took = "".join(str(int(step(states, oldest=states.models["policy"].sampler))) for _ in steps)
    assert took == steps


def test_a_step_that_holds_syncs_although_none_was_due():
    states = machine(BATCH_ASYNC, 5)
    assert not step(states)
    assert step(states, holds=True)


@pytest.mark.parametrize(
    ("mode", "gaps", "due"),
    [
        (BATCH_ASYNC, {"a": 2, "b": 0}, True),
        (BATCH_ASYNC, {"a": 1, "b": 1}, False),
        (FULLY_ASYNC, {"a": 0, "b": 1}, True),
        (FULLY_ASYNC, {"a": 0, "b": 0}, False),
    ],
)
def test_one_model_that_is_behind_makes_a_sync_due_and_lets_no_batch_begin(mode, gaps, due):
    """A sync is of all models, and a batch is answered by all of them."""
    states = WeightStates(Rules(mode, 1), {name: Versions(gap, 0) for name, gap in gaps.items()})
    assert states.sync_due == due
    states.begin()
    assert states.admits_batch(0) == (max(gaps.values()) <= 1)
    # In the middle of an update the sampler is one more behind.
    states.take({})
    assert states.admits_batch(0) == (max(gaps.values()) < 1)
    assert states.overdue("a", gaps["a"] - 2)
    assert not states.overdue("a", gaps["a"] - 1)


def test_no_batch_begins_in_a_step_that_holds_or_near_the_bound():
    states = machine(BATCH_ASYNC, 1)
    states.begin()
    assert states.admits_batch(0)
    assert not states.admits_batch(1)
    states.take({})
    assert states.admits_batch(0)
    held = machine(BATCH_ASYNC, 1)
    held.begin(holds=True)
    held.take({})
    assert not held.admits_batch(0)
    step_later = machine(BATCH_ASYNC, 1)
    step(step_later)
    step_later.begin()
    # The sampler is one behind already; the batch after this one would be two behind.
    assert step_later.admits_batch(0)
    step_later.take({"policy": 0})
    assert not step_later.admits_batch(0)


@pytest.mark.parametrize(
    ("threshold", "state", "admitted"),
    [(0, "collecting", 8), (2, "collecting", 24), (0, "training", 0), (2, "training", 16)],
)
def test_as_much_begins_as_the_bound_leaves_room_for(threshold, state, admitted):
    states = machine(FULLY_ASYNC, threshold, batch_size=8)
    states.begin()
    if state == "training":
        states.take({})
    count = 0
    while states.admits({"policy": count + 1}, batches_left=100):
        count += 1
    assert count == admitted


def test_no_more_begins_than_the_steps_that_are_left_can_train():
    states = machine(FULLY_ASYNC, 5, batch_size=8)
    states.begin()
    assert states.admits({"policy": 16}, batches_left=2)
    assert not states.admits({"policy": 17}, batches_left=2)


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda s: s.train({}), "'train' in state 'idle': the table has no such transition"),
        (lambda s: (s.begin(), s.take({"policy": -3})), "version 0 may train none before -1"),
        (lambda s: (s.begin(), s.take({}), s.train({}), s.sync(0)), "no sync is due"),
        (lambda s: (s.begin(), s.take({}), s.train({"policy": 2}), s.end()), "a sync is due"),
        (lambda s: (s.begin(), s.take({}), s.train({"policy": 2}), s.sync(3)), "3 attempts"),
        (lambda s: (s.begin(), s.take({}), s.train({"policy": 1}), s.validate(0)), "sampler does"),
        (lambda s: (s.begin(), s.take({}), s.train({}), s.validate(2)), "2 attempts are open"),
        (lambda s: (s.begin(), s.take({}), s.train({}), s.drain(0)), "no attempt is open"),
        (lambda s: (s.close(), s.begin()), "in state 'closed'"),
    ],
)
def test_what_the_table_or_a_guard_refuses(do, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        do(machine(BATCH_ASYNC, 1))


def rows(title):
    """The cells of the table below a heading of the page, backticks taken off."""
    text = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [
        tuple(c.strip().replace("`", "") for c in line.strip("|").split("|")) for line in lines[2:]
    ]


def test_the_page_has_the_table_of_states():
    assert rows("States") == list(STATES.items())
    assert rows("Transitions") == [(t.state, t.event, t.target, t.when) for t in TRANSITIONS]
    assert rows("What happens to an attempt")[: len(ITEM_STATES)] == list(ITEM_STATES.items())
    moves = rows("Moves of an attempt")
    assert moves == list(ITEM_TRANSITIONS)


def test_every_state_can_be_reached_and_left():
    reached, before = {"idle"}, set()
    while reached != before:
        before = set(reached)
        reached |= {t.target for t in TRANSITIONS if t.state in reached}
    assert reached == set(STATES)
    assert {t.state for t in TRANSITIONS} == set(STATES) - {"closed"}
    items = {"queued"} | {target for _, _, target in ITEM_TRANSITIONS}
    assert items == set(ITEM_STATES)
