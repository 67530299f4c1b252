"""Worker processes: equal numbers whatever their number, and what happens when they die."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import DEADLINE

from plugrl.core.errors import ConfigError, RunError
from plugrl.plugins.transformers.tokenizer import CharacterTokenizer

sys.path.insert(0, str(Path(__file__).parent.parent))
from agents import WAYS
from collector import Engine, without_pid

FOLDER = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["Turns", "plain", "awaiting", "Silent"])
def test_the_number_of_processes_changes_nothing(collect, name):
    expected = collect(name, 0)
    rounds = collect.engine.rounds
    assert len(expected) == 8
    for processes in (1, 3):
        found = collect(name, processes)
        pids = {t.extra_fields["pid"] for t in found if t.extra_fields}
        assert os.getpid() not in pids
        assert len(pids) == (processes if name == "Turns" else 0)
        assert without_pid(found) == without_pid(expected)
        assert collect.engine.rounds == rounds
    validation = collect(name, 2, is_val=True)
    assert without_pid(validation) == without_pid(collect(name, 0, is_val=True))


def test_plain_and_async_workers_get_the_same_answers(collect):
    assert without_pid(collect("Turns", 0)) == collect("plain", 0)


def test_processes_are_used_again(collect):
    first = {t.extra_fields["pid"] for t in collect("Turns", 2)}
    collect("plain", 2)
    assert {t.extra_fields["pid"] for t in collect("Turns", 2, step=8)} == first


def test_a_process_that_dies_once_changes_no_number(collect, caplog):
    expected = without_pid(collect("Turns", 0, items=6))
    rounds = collect.engine.rounds
    collect.fresh(max_restarts=4)
    found = collect("ExitsOnce", 2, items=6)
    assert without_pid(found) == expected
    assert collect.engine.rounds == rounds
    assert collect.pool.take_restarts() == 4
    assert "exited with code 7 while it attempted problem 2 in step 7; another" in caplog.text


@pytest.mark.parametrize(
    ("name", "how"),
    [("ExitsAlways", "exited with code 7"), ("Killed", "SIGKILL"), ("Crashes", "SIGSEGV")],
)
def test_an_attempt_that_kills_twice_is_invalid_and_the_others_go_on(collect, name, how):
    expected = without_pid(collect("Turns", 0, items=4))
    collect.fresh(max_restarts=4)
    found = without_pid(collect(name, 2, items=4))
    for trajectory, other in zip(found, expected, strict=True):
        if trajectory.group_id == "0/2":
            assert not trajectory.valid
            assert "problem 2 ended a worker process twice; the second" in trajectory.failure
            assert how in trajectory.failure
            assert trajectory.finish_reason == "error"
        else:
            assert trajectory == other
    assert collect.pool.take_restarts() == 4


@pytest.mark.integration
def test_deaths_are_bounded(collect):
    collect.fresh(max_restarts=3)
    reason = r"while it attempted problem 2 in step 7; 4 .*max_worker_restarts=3"
    with pytest.raises(RunError, match=reason):
        collect("ExitsAlways", 2)


def test_a_worker_that_cannot_be_built_is_bounded_too(collect):
    collect.fresh(max_restarts=3)
    with pytest.raises(RunError, match="exited with code 9 while it built its worker; 4"):
        collect("Unbuildable", 1)


def test_a_process_killed_from_outside_gives_all_its_attempts_back(collect, caplog):
    collect.fresh(max_restarts=3)
    expected = without_pid(collect("Turns", 0, items=3))
    assert without_pid(collect("KilledWhileItWaits", 2, items=3)) == expected
    assert collect.pool.take_restarts() == 2
    assert re.search(
        r"worker-1 was ended by SIGKILL .* while it had \d attempts? in step 7; ano", caplog.text
    )


def test_one_killed_between_two_steps_is_replaced(collect):
    collect.fresh(max_restarts=3)
    (pid,) = {t.extra_fields["pid"] for t in collect("Turns", 1)}
    os.kill(pid, 9)
    expected = without_pid(collect("Turns", 0))
    assert without_pid(collect("Turns", 1)) == expected
    assert collect.pool.take_restarts() == 1


@pytest.mark.parametrize("name", ["hangs", pytest.param("Blocks", marks=pytest.mark.integration)])
def test_code_that_hangs_ends_its_process(collect, name, caplog, own_processes):
    collect.fresh(max_restarts=0)
    expected = collect("plain", 0)
    found = without_pid(collect(name, 2, timeout=1.5))
    for trajectory, other in zip(found, expected, strict=True):
        if trajectory.group_id == "0/1":
            called = {"hangs": "hangs", "Blocks": "Blocks.rollout"}[name]
            reason = (
                f"{called} passed rollout_worker.timeout=1.5 seconds (tests/core/text/agents.py:"
            )
            assert trajectory.failure.startswith(reason)
        else:
            assert trajectory == other
    # It is the time limit that ended them: no death, and no lack of memory.
    assert collect.pool.take_restarts() == 0
    assert collect.pool.take_overdue() == 2
    assert "memory" not in caplog.text
    said = "worker-2 was ended because problem 1 passed rollout_worker.timeout=1.5 seconds; another"
    assert said in caplog.text
    # Of what `hangs` has started nothing is left, nor of the processes that took too long.
    collect.pool.close()
    assert own_processes() == {}


def test_a_time_limit_holds_in_a_process_that_had_none_before(collect):
    """Phases of a run share processes, and the first may have no limit."""
    collect.fresh(max_restarts=0)
    collect("plain", 1)
    failures = [t.failure for t in collect("hangs", 1, items=2, timeout=0.5) if not t.valid]
    assert len(failures) == 2
    assert all("passed rollout_worker.timeout=0.5 seconds" in failure for failure in failures)


@pytest.mark.integration
def test_a_function_that_hangs_in_the_driver_is_invalid_alone(collect):
    found = collect("hangs", 0, timeout=1)
    failures = [t.failure for t in found if not t.valid]
    reason = "hangs passed rollout_worker.timeout=1 seconds (tests/core/text/agents.py:"
    assert [failure.startswith(reason) for failure in failures] == [True, True]
    expected = collect("plain", 0)
    assert [t for t in found if t.valid] == [t for t in expected if t.group_id != "0/1"]


@pytest.mark.integration
@pytest.mark.parametrize("processes", [0, 2])
def test_code_that_does_not_end_is_stopped_or_left_behind(collect, processes):
    if processes:
        collect.fresh(max_restarts=0)
    found = without_pid(collect("Stuck", processes, items=len(WAYS), timeout=1.5))
    swallowed = []
    for trajectory in found[2:]:
        assert not trajectory.valid
        text = "Stuck.rollout passed rollout_worker.timeout=1.5 seconds"
        assert trajectory.failure.startswith(text)
        left = f"{text} and swallowed its cancel"
        swallowed.append(trajectory.failure.startswith(left))
        assert "(tests/core/text/agents.py:" in trajectory.failure
    # Each attempted twice: Sleeps, Swallows, SwallowsInATask, AsksOn, CleansUp.
    assert swallowed == [False, False, True, True, True, True, True, True, False, False]
    assert sorted(path.name for path in collect.notes.glob("cleaned-*")) == [
        "cleaned-5-0",
        "cleaned-5-1",
    ]
    assert found[:2] == collect("plain", 0, items=1)
    assert collect.pool.take_restarts() == 0
    # What was left behind disturbs nobody.
    assert without_pid(collect("Turns", processes)) == collect("plain", 0)


@pytest.mark.integration
def test_a_process_ends_although_code_was_left_behind(tmp_path):
    """Python throws into the coroutines that it collects as it ends; this must not go on."""
    program = f"""
import asyncio, gc, pathlib, sys
sys.path.insert(0, {str(FOLDER)!r})
from collector import Collector
collect = Collector(pathlib.Path({str(tmp_path)!r}), None)
for name in ("Swallows", "AsksOn"):
    failures = [t.failure for t in collect(name, 0, timeout=0.2) if not t.valid]
    assert any("swallowed its cancel" in failure for failure in failures), failures
# What is held here is collected last, when nothing works any more that the code could wait for.
sys.held = [each for each in gc.get_objects() if isinstance(each, asyncio.Task)]
assert len(sys.held) >= 4
print("left behind")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "left behind\n"), done.stderr


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("name", ["Interrupts", "interrupts"])
@pytest.mark.parametrize("timeout", [None, 60])
def test_an_interrupt_that_code_raises_fails_its_attempt(collect, name, processes, timeout):
    found = without_pid(collect(name, processes, timeout=timeout))
    failures = [t.failure for t in found if not t.valid]
    assert len(failures) == 2
    called = "interrupts" if name == "interrupts" else "Interrupts.rollout"
    for failure in failures:
        assert failure.startswith(f"{called} raised KeyboardInterrupt (tests/core/text/agents.py:")
    assert collect.pool.take_restarts() == 0


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "nothing",
            r"^nothing returned NoneType; a Trajectory .*\(tests/core/text/agents.py:\d+",
        ),
        ("lost", "no model 'judge'; models are: policy"),
        ("elsewhere", "a trajectory of model 'judge'; models are: policy"),
        ("outside", "token 999, outside the vocabulary of model 'policy' .96 tokens"),
        ("long", r"^long returned .* 65 tokens, more than the context .*64 tokens.*agents.py:\d+"),
        ("unsampled", r"^unsampled returned .* trains token 0, which no model .*agents.py:\d+"),
    ],
)
def test_a_wrong_result_ends_the_run(collect, name, complaint, processes):
    with pytest.raises(RunError, match=complaint):
        collect(name, processes)


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("raises", "raises raised OSError: tool is down (tests/core/text/agents.py:"),
        ("wrong_mask", "loss_mask has 5 values for 6 tokens"),
        ("exits", "SystemExit: tool is down"),
    ],
)
def test_a_failed_attempt_is_counted(collect, name, failure, processes):
    found = collect(name, processes)
    assert len(found) == 8
    assert all(failure in t.failure for t in found if not t.valid)
    assert [t.group_id for t in found if not t.valid][:2] == ["0/1", "0/1"]
    assert found == collect(name, 0)


def test_a_result_that_cannot_be_sent_is_invalid(collect):
    found = collect("unpicklable", 2)
    assert [t.valid for t in found] == [True, True, False, False, True, True, True, True]
    assert found[2].failure.startswith("what unpicklable returned cannot be sent to the driver: ")
    assert collect.pool.take_restarts() == 0


def test_what_an_engine_does_wrong_ends_as_in_the_driver(collect):
    def broken(requests):
        raise TimeoutError("engine is gone")

    found = collect("plain", 2, engine=Engine(broken))
    assert {t.failure.partition(" (")[0] for t in found} == {
        "model 'policy': Engine.generate raised TimeoutError: engine is gone"
    }
    with pytest.raises(RunError, match="answered 0 of 8 requests"):
        collect("plain", 2, engine=Engine(lambda requests: []))
    with pytest.raises(RunError, match="answered NoneType; a list"):
        collect("plain", 2, engine=Engine(lambda requests: None))


def test_messages_reach_the_driver_with_the_name_of_the_process(collect, caplog):
    with caplog.at_level(logging.WARNING, "plugrl"):
        collect("logs", 2, items=2)
        collect("raises", 2, items=2)
    texts = [record.getMessage() for record in caplog.records]
    assert "worker-1: problem 0" in texts
    assert "worker-2: problem 1" in texts
    assert len([text for text in texts if "tool is down" in text]) == 1
    (failure,) = [r for r in caplog.records if "tool is down" in r.getMessage()]
    assert 'raise OSError("tool is down")' in failure.plugrl_trace


class Unsendable(CharacterTokenizer):
    def __reduce__(self):
        raise TypeError("a handle cannot be pickled")


def test_a_tokenizer_that_cannot_be_sent_is_named(collect):
    engine = Engine()
    engine.tokenizer = Unsendable("ab")
    with pytest.raises(ConfigError, match=r"'policy' \(Unsendable\) cannot be sent .*a handle"):
        collect("Turns", 1, engine=engine)


def test_closing_ends_the_processes(collect, monkeypatch):
    # Those that do not end by themselves would be waited for, for so long.
    monkeypatch.setattr("plugrl.core.text.rollout.processes.handle._PATIENCE", 2 * DEADLINE)
    collect.fresh(max_restarts=0)
    pids = {t.extra_fields["pid"] for t in collect("Turns", 2)}
    assert len(pids) == 2
    collect.pool.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
