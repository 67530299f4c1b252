"""Rollouts in actors: the numbers of processes of this machine, and what happens when they die."""

import os
import re
import signal

import pytest
from actors import OnActors
from collector import without_pid
from waiting import wait_until

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import prepare, start
from plugrl.core.run.records.places import read_places
from plugrl.core.run.records.timeline_reader import read_timeline
from plugrl.core.text.trajectory_trainer import TrajectoryTrainer
from plugrl.testing import tiny
from plugrl.testing.suite.test_executor import ExecutorContract
from plugrl.testing.suite.test_trainer import assert_equal_states, comparable_metrics

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shared(ray_session, notes):
    collector = OnActors(notes)
    yield collector
    collector.pool.close()


@pytest.fixture
def collect(shared, ray):
    return shared


@pytest.mark.parametrize("name", ["Turns", "plain", "Silent"])
def test_actors_give_the_numbers_of_the_driver(collect, name):
    expected = collect(name, 0)
    rounds = collect.engine.rounds
    found = collect(name, 2)
    pids = {t.extra_fields["pid"] for t in found if t.extra_fields}
    assert pids <= {int(place["pid"]) for place in collect.places}
    assert len(pids) == (2 if name == "Turns" else 0)
    assert without_pid(found) == without_pid(expected)
    assert collect.engine.rounds == rounds


def test_an_actor_says_where_it_is_and_what_it_has(collect):
    collect("plain", 2)
    first, second = collect.places
    assert first["name"] == f"worker-1 on node {first['node']}"
    assert first["versions"].startswith("Python 3.")
    assert "plugrl " in first["versions"]
    assert first["pid"] != second["pid"]


def test_a_process_that_dies_once_changes_no_number(collect, caplog):
    expected = without_pid(collect("Turns", 0, items=6))
    assert without_pid(collect("ExitsOnce", 2, items=6)) == expected
    assert collect.pool.take_restarts() == 4
    assert "exited with code 7 while it attempted problem 2 in step 7; another" in caplog.text


def test_code_that_hangs_ends_its_process_and_is_invalid(collect):
    failures = [t.failure for t in collect("hangs", 2, timeout=1.0) if not t.valid]
    assert len(failures) == 2
    assert all("passed rollout_worker.timeout=1 seconds" in failure for failure in failures)
    assert collect.pool.take_restarts() == 0
    assert collect.pool.take_overdue() == 2


def test_an_actor_that_is_killed_loses_no_attempt_and_blames_none(collect, ray, caplog):
    expected = without_pid(collect("Turns", 0))
    collect("Turns", 2)
    actor = collect.pool._handles[0]._channel._actor
    relay = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    process = int(collect.places[0]["pid"])
    os.kill(relay, signal.SIGKILL)
    assert without_pid(collect("Turns", 2)) == expected
    assert collect.pool.take_restarts() == 1
    assert "worker-1 on node " in caplog.text
    assert "was killed (out of memory?) while it" in caplog.text
    # The process goes with its actor.
    assert wait_until(lambda: not _runs(process))


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_message_that_cannot_be_read_ends_the_process_and_is_said(collect, caplog):
    expected = without_pid(collect("Turns", 0))
    collect("Turns", 2)
    there = collect.pool._handles[1]
    receive = there.connection.recv_bytes
    there.connection.recv_bytes = lambda: receive() and b"garbage"
    assert without_pid(collect("Turns", 2)) == expected
    assert collect.pool.take_restarts() == 1
    assert "was ended because it sent what cannot be read (" in caplog.text


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "name", ["nothing", *map(slow, ("elsewhere", "outside", "unsampled", "long"))]
)
def test_what_is_no_trajectory_ends_the_run_and_names_the_actor(collect, name):
    with pytest.raises(RunError) as here:
        collect(name, 0)
    with pytest.raises(RunError) as there:
        collect(name, 2)
    where = r" \(worker-[12] on node \S+ in step 7\)"
    assert re.fullmatch(re.escape(str(here.value)) + where, str(there.value))


@pytest.mark.parametrize("name", ["wrong_mask", "raises", "exits"])
def test_attempts_that_fail_in_actors_are_those_that_fail_here(collect, name):
    expected = collect(name, 0)
    assert not all(trajectory.valid for trajectory in expected)
    assert collect(name, 2) == expected
    assert collect.pool.take_restarts() == 0


def test_a_result_that_cannot_be_sent_is_invalid_alone(collect):
    found = collect("unpicklable", 2)
    assert [t.valid for t in found] == [True, True, False, False, True, True, True, True]
    assert found[2].failure.startswith("what unpicklable returned cannot be sent to the driver: ")
    assert collect.pool.take_restarts() == 0


def test_actors_that_do_not_fit_are_refused(ray, notes):
    collect = OnActors(notes, resources={"CPU": 4})
    with pytest.raises(ConfigError, match=r"2 actors with 4 CPU each do not fit: 1 do \(.* 6 CPU"):
        collect("plain", 2)


def test_a_whole_run_equals_one_in_processes(tmp_path, ray, settings, own_processes):
    runs = {}
    for name, how in (("near", {"processes": 2}), ("far", {"executor": "ray"})):
        (tmp_path / name).mkdir()
        tree = tiny.config("self_hosted_grpo", tmp_path / name, {"rollout_worker": how})
        tree["settings"]["cluster"] = settings
        runs[name] = start(prepare(tree))
    assert comparable_metrics(runs["near"]) == comparable_metrics(runs["far"])
    # Its page and the timeline say who did what, and where.
    shown = read_places(runs["far"].folder)
    lanes = read_timeline(runs["far"].folder).lanes
    assert len(shown) == 2
    for name, text in shown.items():
        assert name.startswith("worker-")
        assert " on node " in name
        assert re.search(r"plugrl .* busy, .*waiting for models, .* tokens a second$", text)
        assert lanes[name.partition(" ")[0]].spans
    near, far = (runs[name].checkpoint()["trainer"]["models"] for name in ("near", "far"))
    assert_equal_states(near, far)


@pytest.mark.slow
def test_a_fully_asynchronous_run_trains_each_attempt_once(tmp_path, ray, settings, monkeypatch):
    trained = []
    plain = TrajectoryTrainer._train_models

    def watched(self, batches, metrics):
        version = self.models.trained["policy"].version
        trained.append([(t.group_id, t.run_id) for t in batches["policy"]])
        gaps = [version - v for t in batches["policy"] for v in t.versions if v >= 0]
        assert max(gaps) <= 1
        assert all(t.valid for t in batches["policy"])
        return plain(self, batches, metrics)

    monkeypatch.setattr(TrajectoryTrainer, "_train_models", watched)
    how = {"executor": {"type": "ray", "workers": 2}}
    tree = tiny.config("self_hosted_grpo", tmp_path, {"rollout_worker": how})
    tree["models"]["policy"]["inference"] = {"type": "ray", "replicas": 2}
    tree["trainer"]["total_train_steps"] = 4
    tree["weight"] = {"sync_mode": "fully-async", "staleness_threshold": 1}
    tree["trajectory_pool"] = {
        "check_batch_ready_function": "batch_size_reached",
        "batch_size": 8,
    }
    tree["settings"]["cluster"] = settings
    run = start(prepare(tree))
    assert [len(batch) for batch in trained] == [8] * 4
    assert len({key for batch in trained for key in batch}) == 32
    shown = read_places(run.folder)
    assert [name.partition(" on node ")[0] for name in shown] == [
        *("replica 1 of model 'policy'", "replica 2 of model 'policy'"),
        *("worker-1", "worker-2"),
    ]


@pytest.mark.usefixtures("ray")
class TestRayExecutor(ExecutorContract):
    __test__ = True
    plugrl_executor = "ray"
    conformance = {"config": {"workers": 1, "resources": {"CPU": 0.1}}}
