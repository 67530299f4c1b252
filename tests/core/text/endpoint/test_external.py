"""The worker ``external``: programs and functions that make attempts, and what they do wrong."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import DEADLINE

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import Registry
from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.endpoint.clients.attempts import SESSIONS
from plugrl.core.text.evaluate.evaluator import EvaluationRunResult, Evaluator
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.core.text.rollout.processes.lockstep import PooledRollouts
from plugrl.core.text.rollout.processes.messages import worker_setup
from plugrl.core.text.rollout.processes.pool import WorkerPool

sys.path.insert(0, str(Path(__file__).parent))
from endpoint_model import Written

PROGRAMS = Path(__file__).parent / "programs"
integration = pytest.mark.integration


class Length(Evaluator):
    """Rewards the length of an answer and keeps what it was shown."""

    def __init__(self, config=None):
        super().__init__(config)
        self.targets = []

    def evaluate(self, data, evaluation_target):
        self.targets.append(evaluation_target)
        return EvaluationRunResult(len(evaluation_target.final_answer))


class Drawn(Written):
    """Answers letters that depend on the stream alone, and keeps the sizes of its rounds."""

    def __init__(self):
        super().__init__()
        self.rounds = []

    def generate(self, requests):
        self.rounds.append(len(requests))
        return super().generate(requests)

    def _answer(self, request):
        self._reply = lambda text: "abcdefgh"[hash(request.stream) % 8] * (1 + request.stream[3])
        return super()._answer(request)


@pytest.fixture
def attempt():
    """Attempts problems with the worker; gives the trajectories."""
    pool = WorkerPool(max_restarts=3)

    def run(
        *,
        model=None,
        items=1,
        runs=1,
        is_val=False,
        processes=0,
        evaluator=True,
        data=None,
        **options,
    ):
        registry = Registry()
        record = registry.resolve("rollout_worker", "external")
        factory = Factory(registry, {"rollout_worker": record})
        if "command" in options and isinstance(options["command"], str):
            options["command"] = ["python", "asking.py", options["command"]]
        section = {"workspace": str(PROGRAMS), "processes": processes, **options}
        view = configure(registry.load(record), section)
        worker = factory.build("rollout_worker", view, "rollout_worker")
        if evaluator is True and not processes:
            worker.evaluator = Length()
        services = {"policy": model or Written()}
        pooled = None
        if processes:
            setup = worker_setup(factory, view, services)
            pooled = PooledRollouts(pool, processes, setup, worker, services)
        rollouts = LockstepRollouts(worker, services, 5, pooled=pooled, timeout=view.timeout)
        prompts = [
            Prompt({"prompt": "ab"[: 1 + i % 2], **(data or {})}, i, run, f"0/{i}", i)
            for i in range(items)
            for run in range(runs)
        ]
        sampling = SamplingParams(max_new_tokens=500)
        found = rollouts.collect(prompts, 1, sampling, is_val=is_val)
        assert not SESSIONS._sessions
        run.worker = worker
        return found

    yield run
    pool.close()


def gone(pids, seconds=DEADLINE):
    """Whether all processes have ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("function", ["asking:plain", "asking:awaiting"])
def test_a_function_makes_one_trajectory_of_its_turns(attempt, function):
    (trajectory,) = attempt(function=function)
    assert trajectory.valid, trajectory.failure
    assert sum(trajectory.loss_mask) == len("a") + 1 + len("b") + 1
    assert trajectory.reward == 1.0
    assert trajectory.metrics["turns"] == 2.0
    assert trajectory.logprobs[-1] == -0.25
    (target,) = attempt.worker.evaluator.targets
    assert [m["content"] for m in target.observation] == ["a", "a", "b", "b"]


def test_a_function_may_reward_itself(attempt):
    (trajectory,) = attempt(function="asking:rewarding", evaluator=False)
    assert (trajectory.valid, trajectory.reward) == (True, 0.25)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("asking:exiting", "SystemExit: 3"),
        ("asking:stopping", "StopIteration()"),
        ("asking:raising", "KeyError: 'lost'"),
        ("asking:silent", "asked nothing of model 'policy'"),
        ("asking:strange", "the reward is str; a number is expected"),
    ],
)
def test_a_function_that_fails_gives_an_invalid_attempt(attempt, function, said):
    (trajectory,) = attempt(function=function)
    assert not trajectory.valid
    assert said in trajectory.failure


def test_a_function_that_hangs_is_left_behind(attempt):
    started = time.monotonic()
    (trajectory,) = attempt(function="asking:hanging", timeout=0.3)
    assert time.monotonic() - started < 1200
    assert "passed rollout_worker.timeout=0.3 seconds" in trajectory.failure


def test_requests_after_the_end_are_refused(attempt, tmp_path):
    note = tmp_path / "note"
    data = {"note": str(note), "after": 0.5}
    (trajectory,) = attempt(function="asking:asks_after_its_end", data=data)
    assert trajectory.valid
    end = time.monotonic() + DEADLINE
    while not note.exists() or not note.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert note.read_text() == "404"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"function": "asking:wrong_parameters"}, "has the wrong parameters"),
        ({"function": "asking:nothing"}, "has no 'nothing'"),
        ({"function": "nowhere_at_all:f"}, "no installed module 'nowhere_at_all'"),
        ({}, "name either command or function"),
        ({"function": "asking:plain", "command": ["x"]}, "name either command or function"),
        ({"command": ["x"], "at_once": 0}, "at_once: must be at least 1"),
    ],
)
def test_a_wrong_section_is_refused(attempt, options, said):
    with pytest.raises(ConfigError, match=said):
        attempt(**options)


def test_places_are_few_and_answers_the_same(attempt):
    many, few = Drawn(), Drawn()
    expected = attempt(function="asking:plain", items=3, runs=3, model=many)
    assert attempt(function="asking:plain", items=3, runs=3, model=few, at_once=2) == expected
    assert len({tuple(t.tokens) for t in expected}) > 4
    # Nobody holds up the others: all that have a place are served together.
    assert many.rounds == [9, 9]
    assert few.rounds == [2] * 8 + [1] * 2


def test_attempts_that_wait_for_one_another_go_on_without_the_others(attempt):
    started = time.monotonic()
    found = attempt(function="asking:sharing", items=3, patience=0.2)
    assert [t.valid for t in found] == [True] * 3
    assert time.monotonic() - started < 1200


def test_asynchronous_functions_may_ask_from_threads(attempt):
    """The threads that ``asyncio`` has by itself are fewer than these attempts."""
    started = time.monotonic()
    items = min(32, (os.cpu_count() or 1) + 4) + 1
    found = attempt(function="asking:awaiting", items=items, model=Written(seconds=0.05))
    assert [t.valid for t in found] == [True] * items
    assert time.monotonic() - started < 1200


def test_an_engine_that_breaks_its_contract_ends_the_run(attempt):
    class Broken(Written):
        def generate(self, requests):
            return []

    with pytest.raises(RunError, match="answered 0 of 1 requests"):
        attempt(function="asking:plain", model=Broken())


def test_an_answer_that_fails_is_told_with_the_failure(attempt):
    (trajectory,) = attempt(function="asking:plain", model=Written(lambda text: 1 / 0))
    assert not trajectory.valid
    assert "HTTP Error 500" in trajectory.failure


@integration
@pytest.mark.parametrize(
    ("command", "reward"), [("two_turns", 1.0), ("last", 1.0), ("noisy", 1.0), ("impatient", 1.0)]
)
def test_a_program_is_judged_by_its_answer(attempt, command, reward):
    model = Written(seconds=0.2) if command == "impatient" else Written()
    (trajectory,) = attempt(command=command, model=model)
    assert trajectory.valid, trajectory.failure
    assert trajectory.reward == reward
    assert sum(trajectory.loss_mask) == 4


@integration
def test_a_program_may_reward_itself_and_knows_its_problem(attempt):
    (trajectory,) = attempt(command="rewards", evaluator=False)
    assert (trajectory.reward, trajectory.metrics["steps"]) == (0.75, 2.0)
    (trajectory,) = attempt(command="rewards", reward="program")
    assert trajectory.reward == 0.75
    for is_val in (False, True):
        (trajectory,) = attempt(command="variables", evaluator=False, is_val=is_val)
        assert (trajectory.valid, trajectory.reward) == (True, float(is_val)), trajectory.failure
    (trajectory,) = attempt(command="large", evaluator=False, data={"more": "ü" * 90_000})
    assert trajectory.reward == 90_000.0, trajectory.failure


@integration
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("fails", "the program exited with code 1: first line | it is | all over"),
        ("killed", "the program was ended by SIGKILL"),
        ("silent", "asked nothing of model 'policy'"),
        ("no_reward", "gave no reward"),
    ],
)
def test_a_program_that_fails_gives_an_invalid_attempt(attempt, command, said):
    (trajectory,) = attempt(command=command, evaluator=False)
    assert not trajectory.valid
    assert said in trajectory.failure


@integration
@pytest.mark.parametrize("command", ["hangs", "leaves_children"])
def test_nothing_that_a_program_started_is_left(attempt, tmp_path, command):
    note = tmp_path / "note"
    started = time.monotonic()
    (trajectory,) = attempt(command=command, data={"note": str(note)}, timeout=3)
    assert time.monotonic() - started < 120
    assert trajectory.valid == (command == "leaves_children")
    pids = note.read_text().split()
    assert len(pids) == 2
    assert gone(pids)


@integration
def test_several_open_requests_of_one_attempt(attempt):
    trajectories = attempt(command="at_once", evaluator=False, items=2)
    assert [sum(t.loss_mask) for t in trajectories] == [2] * 8
    assert {t.reward for t in trajectories} == {1.0}


@integration
def test_a_program_that_floods_is_refused(attempt):
    trajectories = attempt(command="floods", evaluator=False, max_requests=10)
    assert {t.reward for t in trajectories} == {20.0}
    assert len(trajectories) == 10


@integration
def test_a_program_that_is_not_there_is_a_fault_of_the_configuration(attempt):
    with pytest.raises(ConfigError, match="cannot start 'no-such-program'"):
        attempt(command=["no-such-program"])


@integration
@pytest.mark.parametrize("options", [{"command": "rewards"}, {"function": "asking:rewarding"}])
def test_the_number_of_processes_changes_nothing(attempt, options):
    first, second = Drawn(), Drawn()
    expected = attempt(**options, items=2, runs=2, evaluator=False, model=first)
    found = attempt(**options, items=2, runs=2, evaluator=False, model=second, processes=2)
    assert [t.failure for t in expected] == [""] * 4
    assert found == expected
    assert first.rounds == second.rounds == [4, 4]


@integration
def test_the_server_of_a_process_ends_when_nobody_needs_it(attempt, monkeypatch):
    monkeypatch.setattr("plugrl.core.text.endpoint.clients.attempts.LINGER", 0.5)
    attempt(function="asking:plain")
    end = time.monotonic() + DEADLINE
    while any(thread.name == "plugrl-endpoint" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.1)
    attempt(function="asking:plain")
    assert os.getpid() > 0
