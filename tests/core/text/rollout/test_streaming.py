"""Attempts in the background: in the driver and in processes, ended, cancelled and left behind."""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import DEADLINE, wait_until

from plugrl.core.errors import ContractError, RunError
from plugrl.core.text.evaluate.evaluator import EvaluationRunResult, Evaluator
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.rollout.attempts import RolloutContext
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.core.text.rollout.stream import AttemptStream
from plugrl.core.text.rollout.worker import RolloutWorker, trajectory_of

sys.path.insert(0, str(Path(__file__).parent.parent))
import collector
from collector import SAMPLING, without_pid
from engines import Engine

OCCASION = RolloutContext(5, 7, SAMPLING, False)


def prompts(items=4):
    """By number, as those of :class:`TrajectoryCollector`."""
    return dict(enumerate(collector.prompts(items)))


@pytest.fixture
def opened():
    """Keeps streams and closes them; closing takes a bounded time."""
    streams = []

    def keep(stream):
        streams.append(stream)
        return stream

    yield keep
    for stream in streams:
        began = time.monotonic()
        stream.close()
        assert time.monotonic() - began < 60


def streamed(collect, opened, name, processes, **section):
    """What a worker of ``agents.py`` came to in the background, in the order of the prompts."""
    for note in collect.notes.iterdir():
        note.unlink()
    stream = opened(collect.rollouts(name, processes, **section).stream())
    given = prompts()
    stream.start(given, OCCASION)
    stream.wait(len(given))
    found = dict(stream.results())
    assert stream.open == 0
    assert sorted(found) == sorted(given)
    return without_pid([t for number in sorted(found) for t in found[number]])


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("name", ["Turns", "plain", "awaiting", "Silent"])
def test_in_the_background_attempts_come_to_the_same(collect, opened, name, processes):
    # This engine answers by the coordinates of the request alone.
    assert streamed(collect, opened, name, processes) == without_pid(collect(name, 0))


def test_a_process_that_dies_begins_its_attempts_anew(collect, opened):
    expected = without_pid(collect("Turns", 0))
    collect.fresh(max_restarts=4)
    assert streamed(collect, opened, "ExitsOnce", 2) == expected
    assert collect.pool.take_restarts() >= 1


def test_an_attempt_that_kills_twice_is_invalid(collect, opened):
    expected = without_pid(collect("Turns", 0))
    collect.fresh(max_restarts=8)
    found = streamed(collect, opened, "ExitsAlways", 2)
    bad = [t for t in found if not t.valid]
    assert {t.group_id for t in bad} == {"0/2"}
    assert all("problem 2 ended a worker process twice" in t.failure for t in bad)
    assert [t for t in found if t.valid] == [t for t in expected if t.group_id != "0/2"]


def test_deaths_are_bounded(collect, opened):
    collect.fresh(max_restarts=3)
    with pytest.raises(RunError, match="max_worker_restarts=3"):
        streamed(collect, opened, "ExitsAlways", 2)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["hangs", "Blocks"])
def test_code_that_hangs_ends_its_process(collect, opened, name):
    collect.fresh(max_restarts=0)
    found = streamed(collect, opened, name, 2, timeout=1.5)
    bad = [t for t in found if not t.valid]
    assert {t.group_id for t in bad} == {"0/1"}
    assert all("passed rollout_worker.timeout=1.5 seconds" in t.failure for t in bad)
    assert collect.pool.take_overdue() == 2


def test_the_same_processes_serve_a_stream_and_rounds_in_turn(collect, opened):
    expected = without_pid(collect("Turns", 0))
    collect.fresh(max_restarts=10)
    rollouts = collect.rollouts("Turns", 2)
    stream = opened(rollouts.stream())
    for begin in (0, 100, 200):
        given = {begin + number: prompt for number, prompt in prompts().items()}
        stream.start(given, OCCASION)
        stream.wait(len(given))
        found = dict(stream.results())
        assert without_pid([t for n in sorted(found) for t in found[n]]) == expected
        stream.yield_workers()
        for handle in collect.pool._handles[: begin // 100]:
            # One that is killed while nobody listens is replaced by whoever needs it next.
            os.kill(handle.pid, signal.SIGKILL)
        found = rollouts.collect(list(prompts().values()), 7, SAMPLING)
        assert without_pid(found) == expected


class Endless(RolloutWorker):
    """Waits for ever, and says when it begins and how it ends."""

    def __init__(self):
        super().__init__()
        self.began, self.ended, self.waiting = [], [], 0

    async def rollout(self, task):
        prompt = task.tokenizers["policy"].encode(task.prompt)
        answer = await task.ask("policy", prompt)
        self.began.append(task.item)
        try:
            if task.item == 0:
                await asyncio.sleep(1000)
        finally:
            self.ended.append(task.item)
        return trajectory_of(task, "policy", prompt, answer)


def local(opened, worker, engine=None, spent=None):
    return opened(LockstepRollouts(worker, {"policy": engine or Engine()}, 5).stream(spent))


def test_what_is_cancelled_has_no_result_and_may_begin_again(opened):
    worker, spent = Endless(), []
    stream = local(opened, worker, spent=lambda count, seconds: spent.append(count))
    given = prompts(2)
    stream.start(given, OCCASION)
    stream.wait(2)
    wait_until(lambda: len(worker.began) == 4)
    assert stream.open == 2
    assert stream.cancel([0, 1, 2, 3]) == [0, 1]
    assert sorted(worker.ended) == [0, 0, 1, 1]
    assert stream.open == 0
    assert [number for number, _ in stream.results()] == [2, 3]
    stream.start({10: given[2]}, OCCASION)
    stream.wait(1, [10])
    assert [number for number, _ in stream.results()] == [10]
    assert spent == [4, 1]


def test_closing_ends_what_is_open(opened):
    worker = Endless()
    stream = local(opened, worker)
    stream.start(prompts(1), OCCASION)
    wait_until(lambda: len(worker.began) == 2)
    stream.close()
    assert worker.ended == [0, 0]
    assert not [t for t in threading.enumerate() if t.name == "plugrl-rollouts"]


@pytest.mark.integration
def test_code_that_blocks_the_loop_is_left_behind(opened):
    entered, release = threading.Event(), threading.Event()

    class Blocks(RolloutWorker):
        asks_now = False

        def rollout(self, task):
            entered.set()
            release.wait(DEADLINE)

    stream = local(opened, Blocks())
    stream.start(prompts(1), OCCASION)
    assert entered.wait(DEADLINE)
    assert stream.cancel([0]) == [0]
    stream.close()
    assert not release.is_set()
    assert [t for t in threading.enumerate() if t.name == "plugrl-rollouts"]
    release.set()


def test_a_task_that_calls_exit_ends_the_run(opened):
    class Leaves(RolloutWorker):
        async def rollout(self, task):
            async def leave():
                sys.exit("no more")

            self.task = asyncio.create_task(leave())
            await asyncio.sleep(1000)

    stream = local(opened, Leaves())
    stream.start(prompts(1), OCCASION)
    with pytest.raises(RunError, match=r"a task that a worker started called exit \(no more\)"):
        stream.wait(1)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (lambda requests: [], ContractError, "answered 0 of"),
        (lambda requests: sys.exit(3), RunError, "called exit"),
    ],
)
def test_an_engine_that_breaks_its_contract_ends_the_run(opened, fault, error, message):
    stream = local(opened, Endless(), Engine(fault))
    stream.start(prompts(2), OCCASION)
    with pytest.raises(error, match=message):
        stream.wait(4)


def test_an_engine_that_raises_costs_the_attempts_that_asked(opened):
    def refuse(requests):
        raise OSError("server down")

    stream = local(opened, Endless(), Engine(refuse))
    stream.start(prompts(2), OCCASION)
    stream.wait(4)
    failures = {own[0].failure for _, own in stream.results()}
    assert len(failures) == 1
    assert "model 'policy': Engine.complete raised OSError: server down" in failures.pop()


class Batched(Evaluator):
    """Judges several answers at once, slowly the first time."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def evaluate(self, data, evaluation_target):
        raise NotImplementedError

    async def evaluate_batch(self, items):
        self.sizes.append(len(items))
        if len(self.sizes) == 1:
            await asyncio.sleep(1000)
        return [EvaluationRunResult(1.0) for _ in items]


class Judged(RolloutWorker):
    async def rollout(self, task):
        trajectory = trajectory_of(task, "policy", [65], Completion([66], [-1.0], "stop", 0))
        return await self.judged(task, trajectory, "B")


def test_judgements_go_on_when_the_attempt_that_made_them_is_cancelled(opened):
    worker = Judged()
    worker.evaluator = evaluator = Batched()
    stream = local(opened, worker)
    stream.start(prompts(2), OCCASION)
    wait_until(lambda: evaluator.sizes)
    # The first of them works for all four.
    assert stream.cancel([0]) == [0]
    stream.wait(3)
    results = stream.results()
    assert [number for number, _ in results] == [1, 2, 3]
    assert all(own[0].reward == 1.0 and own[0].valid for _, own in results)
    assert evaluator.sizes == [4, 3]


class Held(AttemptStream):
    """Attempts that end when the test says so."""

    def begin(self, prompts, context):
        pass

    async def stop(self, numbers):
        pass


def test_it_waits_for_the_attempts_that_are_named_and_no_longer(opened):
    stream = opened(Held())
    stream.start(dict.fromkeys(range(4)), OCCASION)
    stream.give(1, [])
    # Enough results are there, and the attempt that is named is not among them.
    later = threading.Timer(0.2, stream.give, (3, []))
    later.start()
    stream.wait(1, [3, 99])
    assert [number for number, _ in stream.results()] == [1, 3]
    # What has ended is waited for no longer, though others are open.
    rescue = threading.Timer(DEADLINE / 2, stream.close)
    rescue.start()
    stream.start({7: None}, OCCASION)
    last = threading.Timer(0.2, stream.give, (7, []))
    last.start()
    stream.wait(1, [7])
    rescue.cancel()
    assert [number for number, _ in stream.results()] == [7]
    assert stream.open == 2
    for timer in (later, last):
        timer.join()


def test_the_first_fault_is_told_whatever_follows(opened):
    stream = opened(Held())
    stream.start({0: None}, OCCASION)
    stream.fail(ContractError("the cause"))
    stream.fail(ContractError("what came of it"))
    for call in (lambda: stream.wait(1), stream.results, lambda: stream.start({1: None}, OCCASION)):
        with pytest.raises(ContractError, match="the cause"):
            call()
