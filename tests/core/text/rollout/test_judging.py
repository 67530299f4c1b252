"""How attempts are judged: async and batched evaluators, functions, and wrong answers of theirs."""

import asyncio
import math
import sys
import threading
from contextvars import ContextVar
from pathlib import Path

import pytest
from waiting import DEADLINE, wait_until

from plugrl.core.component import build
from plugrl.core.errors import RunError, UsageError
from plugrl.core.plugins.registry import Registry
from plugrl.core.plugins.user_code.error_location import TRACE
from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.evaluate.evaluator import (
    EvaluationFailedError,
    EvaluationRunResult,
    Evaluator,
    evaluate_async,
)
from plugrl.core.text.evaluate.function_evaluator import as_evaluator
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.rollout.function_worker import as_worker
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.core.text.rollout.metrics import rollout_metrics
from plugrl.core.text.rollout.task import CURRENT
from plugrl.core.text.rollout.worker import RolloutWorker, demonstration_of, trajectory_of
from plugrl.core.wording import LONGEST, LONGEST_RECORD

sys.path.insert(0, str(Path(__file__).parent.parent))
from engines import Unloaded

SAMPLING = SamplingParams(max_new_tokens=4)

#: This file as messages name it.
HERE = "tests/core/text/rollout/test_judging.py"


class EchoService(Unloaded):
    """Answers as many tokens as it may."""

    def generate(self, requests):
        counts = [request.sampling.max_new_tokens for request in requests]
        return [Completion([97] * n, [-1.0] * n, "stop", 3) for n in counts]


class Worker(RolloutWorker):
    async def rollout(self, task):
        prompt = task.tokenizers["policy"].encode(task.prompt)
        completion = await task.ask("policy", prompt, task.sampling)
        trajectory = trajectory_of(task, "policy", prompt, completion)
        return await self.judged(task, trajectory, task.prompt)


def plain(task, worker):
    prompt = task.tokenizers["policy"].encode(task.prompt)
    completion = task.ask_now("policy", prompt, task.sampling)
    return worker.judge(task, trajectory_of(task, "policy", prompt, completion), task.prompt)


def rolled(evaluator, prompts=("a", "bb", "ccc"), worker=Worker, is_val=False, timeout=None):
    made = build(as_worker(worker), {})
    made.evaluator = evaluator
    rollouts = LockstepRollouts(made, {"policy": EchoService()}, seed=3, timeout=timeout)
    tasks = [Prompt({"prompt": text}, i, 0, f"g{i}", i) for i, text in enumerate(prompts)]
    return rollouts.collect(tasks, 0, SAMPLING, is_val=is_val)


class Length(Evaluator):
    """Rewards the length of an answer; ``b`` cannot be judged."""

    def evaluate(self, data, evaluation_target):
        return self.one(evaluation_target)

    @staticmethod
    def one(target):
        if "b" in target.final_answer:
            raise LookupError("no b")
        return EvaluationRunResult(len(target.final_answer), metrics={"twice": 2.0})


class Slow(Length):
    async def evaluate(self, data, evaluation_target):
        await asyncio.sleep(0)
        return self.one(evaluation_target)


class Batched(Length):
    def __init__(self, config=None):
        super().__init__(config)
        self.sizes = []

    def evaluate_batch(self, items):
        self.sizes.append(len(items))
        return [self.one(target) for _, target in items]


class AsyncBatched(Batched):
    async def evaluate_batch(self, items):
        await asyncio.sleep(0)
        return Batched.evaluate_batch(self, items)


@pytest.mark.parametrize("worker", [Worker, plain])
@pytest.mark.parametrize("evaluator", [Length, Slow, Batched, AsyncBatched])
def test_every_kind_of_evaluator_judges_alike_in_every_kind_of_worker(evaluator, worker):
    found = rolled(evaluator(), worker=worker)
    assert [(t.valid, t.reward if t.valid else None) for t in found] == [
        (True, 1.0),
        (False, None),
        (True, 3.0),
    ]
    assert found[1].failure.startswith(f"{evaluator.__name__} raised LookupError: no b")
    metrics = rollout_metrics(found)
    assert metrics["rollout/twice"] == 2.0
    assert metrics["rollout/reward"] == 2.0
    assert metrics["rollout/invalid"] == pytest.approx(1 / 3)


def test_a_batch_holds_the_answers_of_all_open_attempts_and_a_bad_one_is_judged_alone():
    evaluator = Batched()
    rolled(evaluator)
    assert evaluator.sizes == [3, 1, 1, 1]


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda n: None, "NoneType for a batch"),
        (lambda n: [], "0 judgements for 3 answers"),
        (lambda n: [EvaluationRunResult(1.0)] * (n + 1), "4 judgements for 3 answers"),
        (lambda n: "abc", "str for a batch"),
        (lambda n: [EvaluationRunResult(math.nan)] * n, "reward nan"),
        (lambda n: [1.0] * n, "float; an EvaluationRunResult"),
    ],
)
def test_bad_answers_of_a_batch_lose_no_rollout(answer, complaint):
    class Wrong(Length):
        def evaluate_batch(self, items):
            return answer(len(items))

    found = rolled(Wrong())
    assert [t.valid for t in found] == [False] * 3
    assert all(complaint in t.failure for t in found)


def test_exit_in_a_batch_is_a_failure_of_each_answer():
    class Leaves(Length):
        def evaluate_batch(self, items):
            raise SystemExit(4)

    assert ["raised SystemExit: 4" in t.failure for t in rolled(Leaves())] == [True] * 3


class Judge(Evaluator):
    """Rewards the number of tokens that the model answers."""

    model = "policy"

    async def evaluate(self, data, evaluation_target):
        prompt = self.tokenizer("policy").encode(evaluation_target.final_answer)
        answers = await asyncio.gather(
            *(self.ask(self.model, prompt, SamplingParams(max_new_tokens=n)) for n in (1, 3))
        )
        return EvaluationRunResult(sum(len(answer.tokens) for answer in answers))


@pytest.mark.parametrize("worker", [Worker, plain])
def test_an_evaluator_asks_models(worker):
    assert [t.reward for t in rolled(Judge(), worker=worker)] == [4.0, 4.0, 4.0]


def test_an_evaluator_that_asks_an_unknown_model_ends_the_run():
    judge = Judge()
    judge.model = "gone"
    with pytest.raises(RunError, match="no model 'gone'"):
        rolled(judge)


def test_asking_outside_of_a_judgement_is_refused():
    with pytest.raises(UsageError, match="asks a model where nothing answers"):
        Judge().ask("policy", [1])


def test_an_async_evaluator_needs_an_awaiting_worker():
    class Blind(Worker):
        async def rollout(self, task):
            prompt = task.tokenizers["policy"].encode(task.prompt)
            completion = await task.ask("policy", prompt, task.sampling)
            return self.judge(task, trajectory_of(task, "policy", prompt, completion), "x")

    with pytest.raises(UsageError, match=r"await worker\.judged"):
        rolled(Slow(), worker=Blind)
    assert [t.valid for t in rolled(Length(), worker=Blind)] == [True] * 3


def number(data, target):
    return len(target.final_answer) / 2


async def result(data, target, evaluator):
    return EvaluationRunResult(1.0, metrics={"key": float(evaluator.reference_key == "answer")})


def text(data, target):
    return "1.0"


@pytest.mark.parametrize(
    ("function", "rewards"),
    [(number, [0.5, 1.0, 1.5]), (result, [1.0, 1.0, 1.0])],
)
def test_functions_are_evaluators(function, rewards):
    registry = Registry()
    cls = registry.load(registry.register("evaluator", "mine", function))
    assert [t.reward for t in rolled(build(cls, {}))] == rewards


def test_a_function_that_returns_text_gives_invalid_attempts():
    registry = Registry()
    cls = registry.load(registry.register("evaluator", "mine", text))
    found = rolled(build(cls, {}))
    assert [t.valid for t in found] == [False] * 3
    assert "text returned str" in found[0].failure
    assert "test_judging.py" in found[0].failure


def test_what_was_extracted_is_kept_of_held_out_answers_alone():
    def extracting(data, target):
        return EvaluationRunResult(1.0, extra_info={"extracted": target.final_answer})

    cls = as_evaluator(extracting)
    assert [t.get("extracted") for t in rolled(cls(), is_val=True)] == ["a", "bb", "ccc"]
    assert [t.get("extracted") for t in rolled(cls())] == [None] * 3


def test_a_cut_answer_is_judged_and_its_flag_decides_nothing_by_itself():
    class Cut(EchoService):
        def generate(self, requests):
            return [Completion([97], [-1.0], "length", 3) for _ in requests]

    seen = []

    class Sees(Length):
        async def evaluate(self, data, evaluation_target):
            seen.append(evaluation_target.is_truncated)
            return EvaluationRunResult(0.7)

    made = build(Worker, {})
    made.evaluator = Sees()
    rollouts = LockstepRollouts(made, {"policy": Cut()}, seed=3)
    found = rollouts.collect([Prompt({"prompt": "a"}, 0, 0, "g", 0)], 0, SAMPLING)
    assert (seen, found[0].reward, found[0].valid) == ([True], 0.7, True)
    assert rollout_metrics(found)["rollout/truncated"] == 1.0


def test_an_evaluator_of_batches_cannot_ask():
    class Asks(Length):
        def evaluate_batch(self, items):
            self.ask("policy", [1])

    assert all("asks a model where nothing answers" in t.failure for t in rolled(Asks()))


def test_names_of_own_numbers_are_not_taken():
    class Named(Length):
        def evaluate(self, data, evaluation_target):
            return EvaluationRunResult(0.5, metrics={"reward": 9.0, "invalid": 8.0, "mine": 1.0})

    metrics = rollout_metrics(rolled(Named()))
    assert metrics["rollout/reward"] == 0.5
    assert metrics["rollout/invalid"] == 0.0
    assert metrics["rollout/evaluator/reward"] == 9.0
    assert metrics["rollout/evaluator/invalid"] == 8.0
    assert metrics["rollout/mine"] == 1.0


class Odd(BaseException):
    pass


class Mute(Odd):
    """Nothing can be asked of it without a further exception."""

    def __str__(self):
        raise Mute

    __repr__ = __str__


class Blocks(Evaluator):
    """Does not come back from judging ``bb``; ``free`` lets it go at the end of the test."""

    def __init__(self):
        super().__init__({})
        self.free = threading.Event()

    def evaluate(self, data, evaluation_target):
        if evaluation_target.final_answer == "bb":
            self.free.wait(DEADLINE)
        return EvaluationRunResult(float(len(evaluation_target.final_answer)))


class BlocksBatches(Blocks):
    def evaluate_batch(self, items):
        return [self.evaluate(*item) for item in items]


class BlocksLoop(Blocks):
    """The same in the event loop."""

    async def evaluate(self, data, evaluation_target):
        await asyncio.sleep(0)
        return Blocks.evaluate(self, data, evaluation_target)


class BlocksTasks(BlocksLoop):
    """The same in a task that it starts."""

    async def evaluate(self, data, evaluation_target):
        (result,) = await asyncio.gather(BlocksLoop.evaluate(self, data, evaluation_target))
        return result


class BlocksLoopBatches(BlocksBatches):
    async def evaluate_batch(self, items):
        await asyncio.sleep(0)
        return BlocksBatches.evaluate_batch(self, items)


class CallsAnother(Evaluator):
    """Combines another one in a coroutine, as ``weighted`` does."""

    def __init__(self, inner):
        super().__init__({})
        self.inner = inner

    async def evaluate(self, data, evaluation_target):
        return await evaluate_async(self.inner, data, evaluation_target)


class InPlace(RolloutWorker):
    """A plain worker that is not called in a thread without need."""

    asks_now = False

    def rollout(self, task):
        trajectory = demonstration_of(task, "policy", [1], [2])
        return self.judge(task, trajectory, task.prompt)


@pytest.mark.parametrize(
    ("made", "worker"),
    [
        (Blocks, Worker),
        (lambda: CallsAnother(Blocks()), Worker),
        (Blocks, plain),
        (Blocks, InPlace),
        (BlocksLoop, Worker),
        (BlocksLoop, plain),
        (BlocksTasks, Worker),
        (lambda: CallsAnother(BlocksTasks()), Worker),
    ],
)
def test_code_that_does_not_come_back_costs_its_attempt(made, worker):
    evaluator = made()
    found = rolled(evaluator, worker=worker, timeout=0.2)
    getattr(evaluator, "inner", evaluator).free.set()
    assert [t.valid for t in found] == [True, False, True]
    assert [t.reward for t in found if t.valid] == [1.0, 3.0]
    assert "passed rollout_worker.timeout=0.2 seconds" in found[1].failure
    if worker is Worker:
        name = type(getattr(evaluator, "inner", evaluator)).__name__
        assert found[1].failure.startswith(f"evaluator {name} ({HERE}:")


@pytest.mark.parametrize("worker", [Worker, plain])
def test_an_evaluator_that_waits_for_ever_costs_its_attempt(worker):
    class Waits(Evaluator):
        async def evaluate(self, data, evaluation_target):
            if data["prompt"] == "bb":
                await asyncio.Event().wait()
            return EvaluationRunResult(1.0)

    found = rolled(Waits({}), worker=worker, timeout=0.2)
    assert [t.valid for t in found] == [True, False, True]
    assert "passed rollout_worker.timeout=0.2 seconds" in found[1].failure


@pytest.mark.parametrize("kind", [BlocksBatches, BlocksLoopBatches])
def test_batches_that_do_not_come_back_cost_attempts_alone(kind):
    evaluator = kind()
    found = rolled(evaluator, timeout=0.2)
    evaluator.free.set()
    failures = [t.failure for t in found if not t.valid]
    assert failures
    assert all(f.startswith(f"evaluator {kind.__name__} (tests/") for f in failures)


def test_async_code_with_a_time_limit_is_in_the_event_loop_as_far_as_it_can_tell():
    variable = ContextVar("variable", default=0)

    class Looks(Judge):
        async def evaluate(self, data, evaluation_target):
            variable.set(7)
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
                child = group.create_task(self.child(loop, task))
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(asyncio.sleep(DEADLINE), 0.01)
            in_thread = await asyncio.to_thread(lambda: variable.get())
            assert asyncio.current_task() is task
            assert (await child, in_thread, variable.get()) == (True, 7, 7)
            with pytest.raises(UsageError, match="write `await task.ask"):
                CURRENT.get().ask_now("policy", [1])
            return await super().evaluate(data, evaluation_target)

        async def child(self, loop, task):
            await asyncio.sleep(0)
            return asyncio.get_running_loop() is loop and asyncio.current_task() is not task

    found = rolled(Looks({}), timeout=60)
    assert [(t.reward, t.failure) for t in found] == [(4.0, "")] * 3
    assert variable.get() == 0


def test_code_that_was_left_behind_asks_for_nothing():
    asked = []

    class Asks(BlocksLoop):
        async def evaluate(self, data, evaluation_target):
            blocks = evaluation_target.final_answer == "bb"
            result = await super().evaluate(data, evaluation_target)
            asked.append(blocks)
            await self.ask("policy", [1], SamplingParams(max_new_tokens=1))
            asked.append("answered")
            return result

    evaluator = Asks()
    found = rolled(evaluator, timeout=0.2)
    assert [t.valid for t in found] == [True, False, True]
    evaluator.free.set()
    wait_until(lambda: True in asked)
    assert asked == [False, False, "answered", "answered", True]


@pytest.mark.parametrize("worker", [Worker, plain])
@pytest.mark.parametrize("timeout", [None, 60])
def test_an_exception_of_any_class_is_a_failure_of_the_attempt(worker, timeout):
    class Raises(Length):
        def evaluate(self, data, evaluation_target):
            if evaluation_target.final_answer == "bb":
                raise Odd("boo")
            return EvaluationRunResult(1.0)

    found = rolled(Raises({}), worker=worker, timeout=timeout)
    assert [t.valid for t in found] == [True, False, True]
    assert found[1].failure.startswith(f"Raises raised Odd: boo ({HERE}:")


def test_an_exception_that_raises_others_is_a_failure_of_the_attempt():
    class Raises(Length):
        def evaluate(self, data, evaluation_target):
            raise Mute

    found = rolled(Raises({}))
    assert [t.valid for t in found] == [False] * 3
    assert found[1].failure.startswith(f"Raises raised Mute ({HERE}:")


@pytest.mark.parametrize("kind", [ValueError, Odd, EvaluationFailedError])
def test_what_an_exception_says_is_bounded(kind, caplog):
    class Raises(Length):
        def evaluate(self, data, evaluation_target):
            raise kind("x" * 5_000_000)

    found = rolled(Raises({}))
    assert all(len(t.failure) < 2 * LONGEST + 100 for t in found)
    # 5,000,000 characters of which 2,000 are kept, and twice as many of what evaluators say.
    left_out = "4,996,000" if kind is EvaluationFailedError else "4,998,000"
    assert all(f"[... {left_out} characters ...]" in t.failure for t in found)
    (record,) = caplog.records
    assert len(record.getMessage()) < 2 * LONGEST + 200
    assert len(getattr(record, TRACE)) < LONGEST_RECORD + 100
