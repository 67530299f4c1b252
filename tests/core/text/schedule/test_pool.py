"""The pool: groups, readiness rules, and that nothing is lost or given twice."""

import json
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugrl.core.errors import RunError
from plugrl.core.run.checkpoints.state import Encoder, decode
from plugrl.core.text.schedule import pool as pool_module
from plugrl.core.text.schedule.pool import BOTH, LOADED, REACHED, RULES, TrajectoryPool
from plugrl.core.text.trajectory import Trajectory


def member(group, run=0, model="policy", *, valid=True, version=0, **extra):
    return Trajectory(
        [1, 2],
        [0, 1],
        group_id=group,
        run_id=run,
        model=model,
        valid=valid,
        versions=[-1, version],
        extra_fields=extra,
    )


def saved(pool):
    """The state of a pool as a checkpoint gives it back."""
    encoder = Encoder()
    tree = json.loads(json.dumps(encoder.encode(pool.state_dict())))
    return decode(tree, encoder.tensors)


def names(trajectories):
    return [f"{t.group_id}{t.run_id}" for t in trajectories]


def test_whole_groups_by_model():
    pool = TrajectoryPool(group_size=2)
    pool.put([member("a", 0), member("b", 0), member("a", 1), member("a", 0, "judge")])
    pool.loaded_batch_finished()
    assert pool.models() == ["judge", "policy"]
    assert names(pool.take("policy")) == ["a0", "a1", "b0"]
    assert pool.take("policy") == []
    assert len(pool) == 1


def test_without_keys_each_trajectory_is_a_group():
    pool = TrajectoryPool([], group_size=8, batch_size=2, rule=REACHED)
    pool.put([member("a", 0), member("b", 0), member("a", 1)])
    assert names(pool.take("policy")) == ["a0", "b0"]
    assert not pool.ready()


def test_several_keys_nest():
    pool = TrajectoryPool(["task", "group_id"])
    pool.put(
        [member("a", task=1), member("b", task=2), member("c", task=1), member("a", 1, task=1)]
    )
    pool.loaded_batch_finished()
    assert names(pool.take("policy")) == ["a0", "a1", "c0", "b0"]


def test_a_missing_key_is_named_unless_the_attempt_failed():
    pool = TrajectoryPool(["task"])
    with pytest.raises(RunError, match=r"key_list: a trajectory of group 'a' has no 'task'"):
        pool.put([member("a")])
    pool.put([member("a", valid=False)])
    assert len(pool) == 1


@pytest.mark.parametrize(
    ("rule", "batch_size", "when"),
    [
        # Ready after: nothing, 1 of 4, 4 of 4 (two groups of 2), the loaded batch's end.
        (LOADED, 1, [False, False, False, True]),
        (REACHED, 2, [False, False, True, True]),
        ("batch_size", 4, [False, False, True, True]),
        (REACHED, 5, [False, False, False, False]),
        (BOTH, 4, [False, False, False, True]),
        (BOTH, 5, [False, False, False, False]),
    ],
)
def test_each_rule_fires_exactly_when_stated(rule, batch_size, when):
    pool = TrajectoryPool(group_size=2, batch_size=batch_size, rule=rule)
    seen = [pool.ready()]
    pool.put([member("a", 0)])
    seen.append(pool.ready())
    pool.put([member("b", 0), member("b", 1), member("a", 1)])
    seen.append(pool.ready())
    pool.loaded_batch_finished()
    seen.append(pool.ready())
    assert seen == when


def test_a_batch_by_size_takes_the_first_whole_groups_and_leaves_the_rest():
    pool = TrajectoryPool(group_size=2, batch_size=3, rule=REACHED)
    pool.put([member(g, r) for g in "abc" for r in range(2)])
    assert names(pool.take("policy")) == ["a0", "a1", "b0", "b1"]
    assert not pool.ready()
    assert pool.metrics()["pool/waiting"] == 2


def test_the_conjunction_gathers_loaded_batches_until_the_size_is_reached():
    pool = TrajectoryPool(group_size=1, batch_size=3, rule=BOTH)
    for group in "ab":
        pool.put([member(group)])
        pool.loaded_batch_finished()
        assert not pool.ready()
    pool.put([member("c"), member("d")])
    pool.loaded_batch_finished()
    assert names(pool.take("policy")) == ["a0", "b0", "c0", "d0"]


@pytest.mark.parametrize("rule", sorted(RULES))
def test_an_incomplete_group_is_flushed_and_counted(rule):
    pool = TrajectoryPool(group_size=2, batch_size=1, rule=rule)
    pool.put([member("a", 0)])
    assert not pool.ready()
    pool.loaded_batch_finished()
    assert names(pool.take("policy")) == ["a0"]
    assert pool.metrics() == {"pool/waiting": 0, "pool/incomplete_groups": 1, "pool/stale": 0}
    assert pool.metrics()["pool/incomplete_groups"] == 0


def test_groups_over_loaded_batches_go_on_waiting():
    pool = TrajectoryPool(["task"], group_size=2, batch_size=2, rule=REACHED)
    pool.put([member("0/1", task="x")])
    pool.loaded_batch_finished()
    assert not pool.ready()
    pool.put([member("1/1", task="x")])
    pool.loaded_batch_finished()
    assert names(pool.take("policy")) == ["0/10", "1/10"]
    assert pool.metrics()["pool/incomplete_groups"] == 0


def test_attempts_are_counted_not_their_trajectories():
    pool = TrajectoryPool(group_size=2, batch_size=1, rule=REACHED)
    pool.put([member("a", 0), member("a", 0), member("a", 0)])
    assert not pool.ready()
    pool.put([member("a", 1)])
    assert len(pool.take("policy")) == 4


def test_groups_with_old_tokens_are_dropped_whole_and_counted():
    pool = TrajectoryPool(group_size=2, batch_size=9, rule=REACHED)
    pool.put([member("a", 0, version=3), member("a", 1, version=5), member("b", 0, version=4)])
    pool.drop_older("policy", 4)
    assert len(pool) == 1
    assert pool.metrics()["pool/stale"] == 2


def test_what_waits_survives_a_checkpoint():
    pool = TrajectoryPool(group_size=2, batch_size=4, rule=REACHED)
    pool.put([member("a", 0, note="x"), member("b", 0, note="y"), member("b", 1, note="z")])
    state = saved(pool)
    again = TrajectoryPool(group_size=2, batch_size=4, rule=REACHED)
    again.load_state_dict(state)
    for p in (pool, again):
        p.put([member("a", 1, note="w")])
    assert again.take("policy") == pool.take("policy")
    assert len(again) == len(pool) == 0


def test_the_state_that_version_01_kept_is_taken_back():
    """Each group had its members as mappings, a number of theirs after another."""
    kept = [member("a", 0, note="x"), member("b", 0), member("b", 1)]
    groups = [
        {"key": ["a"], "given_up": True, "members": [kept[0].state_dict()]},
        {"key": ["b"], "given_up": False, "members": [t.state_dict() for t in kept[1:]]},
    ]
    state = {"arrived": 3, "lines": {"policy": {"loaded": True, "groups": groups}}}
    pool = TrajectoryPool(group_size=2, batch_size=3, rule=REACHED)
    pool.load_state_dict(json.loads(json.dumps(state)))
    assert pool.complete("policy") == len(pool) == 3
    assert pool.take("policy") == kept


def test_what_each_attempt_asks_of_the_pool_does_not_grow_with_what_waits(monkeypatch):
    """Counted in questions whether a group is complete: 4 of each attempt, whatever waits."""
    asked = [0]
    complete = pool_module._Group.complete

    def counted(group, size):
        asked[0] += 1
        return complete(group, size)

    monkeypatch.setattr(pool_module._Group, "complete", counted)
    counts = {}
    for number in (50, 400):
        pool = TrajectoryPool(
            group_size=2, batch_size=2 * number, rule=REACHED, drop_equal_groups=True
        )
        asked[0] = 0
        for group in range(number):
            for run in range(2):
                pool.put([replace(member(str(group), run), reward=float(run))])
                pool.ready()
                pool.complete("policy")
                pool.waiting("policy")
            pool.group_finished(str(group))
        counts[number] = asked[0]
        assert len(pool.take("policy")) == 2 * number
    assert counts[400] == 8 * counts[50]


def test_only_valid_rewards_say_whether_a_group_is_equal():
    """An attempt that failed has reward 0, which is not what its group is compared by."""

    def rated(group, *rewards):
        made = []
        for run, reward in enumerate(rewards):
            made.append(member(group, run, valid=reward is not None))
            made[-1].reward = reward or 0.0
        return made

    pool = TrajectoryPool(group_size=3, drop_equal_groups=True)
    pool.put(rated("equal", 1.0, 1.0, 1.0) + rated("failed once", 1.0, None, 1.0))
    pool.put(rated("failed always", None, None, None) + rated("apart", 1.0, None, 0.5))
    dropped = pool.loaded_batch_finished()
    assert {t.group_id for t in dropped} == {"equal", "failed once", "failed always"}
    assert names(pool.take("policy")) == ["apart0", "apart1", "apart2"]
    assert pool.metrics()["pool/equal_groups"] == 3


def test_a_group_that_was_given_up_is_so_after_a_checkpoint():
    """What waits for members that will not come would wait for ever."""
    pool = TrajectoryPool(group_size=2, batch_size=2, rule=REACHED)
    pool.put([member("a", 0)])
    pool.loaded_batch_finished()
    assert not pool.ready()
    again = TrajectoryPool(group_size=2, batch_size=2, rule=REACHED)
    again.load_state_dict(saved(pool))
    for each in (pool, again):
        each.put([member("b", 0)])
        each.group_finished("b")
        assert each.complete("policy") == 2
        assert names(each.take("policy")) == ["a0", "b0"]
    # Of one that is still waiting nothing else is told.
    waiting = TrajectoryPool(group_size=2, batch_size=1, rule=REACHED)
    waiting.put([member("c", 0)])
    again.load_state_dict(saved(waiting))
    assert again.complete("policy") == 0


def test_the_end_of_a_loaded_batch_is_so_after_a_checkpoint():
    again = TrajectoryPool()
    pool = TrajectoryPool()
    pool.put([member("a")])
    pool.loaded_batch_finished()
    again.load_state_dict(saved(pool))
    assert again.ready()
    assert names(again.take("policy")) == ["a0"]


def test_groups_without_keys_stay_apart_after_a_checkpoint():
    """They are told apart by how many came before them."""
    pool = TrajectoryPool([], batch_size=3, rule=REACHED)
    pool.put([member("a", 0), member("b", 0)])
    again = TrajectoryPool([], batch_size=3, rule=REACHED)
    again.load_state_dict(saved(pool))
    again.put([member("c", 0)])
    assert len(again.ages("policy")) == 3
    assert names(again.take("policy")) == ["a0", "b0", "c0"]


def test_age_is_that_of_the_oldest_sampled_token_of_a_group():
    pool = TrajectoryPool(group_size=2, batch_size=2, rule=REACHED, oldest_first=True)
    pool.put([member("young", 0, version=9), member("old", 0, version=5)])
    assert [age.oldest for age in pool.ages("policy")] == [9, 5]
    pool.put([member("young", 1, version=9), member("old", 1, version=4)])
    assert [(age.oldest, age.size, age.complete) for age in pool.ages("policy")] == [
        (9, 2, True),
        (4, 2, True),
    ]
    # What is as old as the bound is kept; its prompt's tokens, which nobody sampled, have no age.
    assert pool.drop_older("policy", 4) == []
    assert names(pool.take("policy")) == ["old0", "old1"]
    assert names(pool.drop_older("policy", 10)) == ["young0", "young1"]
    assert pool.metrics()["pool/stale"] == 2


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["policy", "critic"])),
        st.sampled_from(["finish", "take policy", "take critic", "save"]),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(OPERATIONS, st.integers(1, 3), st.integers(1, 5), st.sampled_from(sorted(RULES)))
def test_nothing_is_lost_given_twice_or_torn_from_its_group(operations, size, batch, rule):
    def new():
        return TrajectoryPool(group_size=size, batch_size=batch, rule=rule)

    pool, put, taken = new(), [], []
    for operation in operations:
        if isinstance(operation, tuple):
            # The run number tells them apart.
            put.append(member(operation[0], len(put), operation[1]))
            pool.put([put[-1]])
        elif operation == "finish":
            pool.loaded_batch_finished()
        elif operation == "save":
            state = saved(pool)
            pool = new()
            pool.load_state_dict(state)
        else:
            model = operation.split()[1]
            was_ready = pool.ready(model)
            waiting = (
                {t.group_id for t in pool._lines[model].trajectories()} if was_ready else set()
            )
            got = pool.take(model)
            assert bool(got) == was_ready
            assert {t.group_id for t in got} <= waiting
            left = pool._lines[model].groups if model in pool._lines else {}
            assert not {t.group_id for t in got} & {key[0] for key in left}
            taken += got
    runs = [t.run_id for t in taken]
    assert len(set(runs)) == len(runs)
    assert len(runs) + len(pool) == len(put)


def test_many_threads_lose_nothing():
    pool = TrajectoryPool([], batch_size=1, rule=REACHED)
    got = []

    def work(number):
        for i in range(50):
            pool.put([member(f"{number}-{i}")])
            got.extend(pool.take("policy"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while pool.ready():
        got += pool.take("policy")
    assert len({t.group_id for t in got}) == len(got) == 400


@pytest.mark.parametrize("rule", [LOADED, BOTH])
def test_a_loaded_batch_that_has_begun_is_not_finished_by_the_one_before(rule):
    pool = TrajectoryPool(batch_size=2, rule=rule)
    pool.put([member("a")])
    pool.loaded_batch_finished()
    pool.put([member("b")])
    assert not pool.ready()
    pool.loaded_batch_finished()
    assert names(pool.take("policy")) == ["a0", "b0"]


@pytest.mark.parametrize("value", [["x"], {"x": 1}, float("nan")])
def test_a_key_that_cannot_be_grouped_by_is_named(value):
    with pytest.raises(RunError, match=r"key_list: 'task' of group 'a' is .* a text or a number"):
        TrajectoryPool(["task"]).put([member("a", task=value)])
