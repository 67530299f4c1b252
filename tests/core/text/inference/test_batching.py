"""The asynchronous form that an engine gets from its lockstep form, and how it ends."""

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import DEADLINE

from plugrl.core.errors import ConfigError, ContractError, RunError
from plugrl.core.text.inference import batching
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams

sys.path.insert(0, str(Path(__file__).parent.parent))
from engines import Unloaded


class Engine(Unloaded):
    """Answers the prompt's first token; waits for ``gate`` before each call returns."""

    vocabulary_size = 100

    def __init__(self, answer=None):
        super().__init__()
        self.calls = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self._answer = answer

    def generate(self, requests):
        self.calls.append([request.prompt_tokens[0] for request in requests])
        self.entered.set()
        assert self.gate.wait(DEADLINE)
        if self._answer is not None:
            return self._answer(requests)
        return [Completion([r.prompt_tokens[0]], [-1.0], "stop", 0) for r in requests]


@pytest.fixture
def engine():
    service = Engine()
    yield service
    service.gate.set()
    service.close()


def request(token):
    return GenerationRequest([token], SamplingParams(max_new_tokens=2), (0, 0, token, 0, 0))


async def answers(engine, tokens):
    done = await asyncio.gather(*(engine.complete(request(token)) for token in tokens))
    return [answer.tokens for answer in done]


async def until(condition):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came")


def test_what_waits_is_served_by_one_call(engine):
    async def run():
        engine.gate.clear()
        first = asyncio.create_task(answers(engine, [1]))
        await until(engine.entered.is_set)
        others = asyncio.create_task(answers(engine, range(2, 8)))
        await asyncio.sleep(0.05)
        engine.gate.set()
        return await first + await others

    assert asyncio.run(run()) == [[token] for token in range(1, 8)]
    assert engine.calls == [[1], [2, 3, 4, 5, 6, 7]]


def test_the_event_loop_goes_on_while_the_engine_computes(engine):
    async def run():
        engine.gate.clear()
        task = asyncio.create_task(engine.complete(request(1)))
        await until(engine.entered.is_set)
        ticks = 0
        for _ in range(5):
            await asyncio.sleep(0.001)
            ticks += 1
        engine.gate.set()
        return ticks, (await task).tokens

    assert asyncio.run(run()) == (5, [1])


def test_a_cancelled_request_that_waits_is_not_asked(engine):
    async def run():
        engine.gate.clear()
        running = asyncio.create_task(engine.complete(request(1)))
        await until(engine.entered.is_set)
        waiting = [asyncio.create_task(engine.complete(request(token))) for token in (2, 3)]
        await asyncio.sleep(0.01)
        waiting[0].cancel()
        running.cancel()
        await asyncio.sleep(0.01)
        assert running.cancelled()
        engine.gate.set()
        return (await waiting[1]).tokens

    assert asyncio.run(run()) == [3]
    assert engine.calls == [[1], [3]]


def test_many_threads_with_event_loops_of_their_own(engine):
    def run(number):
        return asyncio.run(answers(engine, range(number, number + 10)))

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(run, range(8)))
    assert got == [[[token] for token in range(n, n + 10)] for n in range(8)]


def one(tokens=(1,), logprobs=(-1.0,), **kwargs):
    return Completion(list(tokens), list(logprobs), "stop", 0, **kwargs)


BAD = [
    (lambda asked: None, "answered NoneType; a list of completions is expected"),
    (lambda asked: [], "answered 0 of 2 requests"),
    (lambda asked: [one()] * 3, "answered 3 of 2 requests"),
    (lambda asked: [one(), None], "answered NoneType to a request"),
    (lambda asked: [one(), one(logprobs=[])], "1 tokens with 0 log-probabilities"),
    (lambda asked: [one(), one(versions=[1, 2])], "1 tokens with 2 versions"),
    (lambda asked: [one([1] * 3, [-1.0] * 3)] * 2, "3 tokens where at most 2 were asked for"),
    (lambda asked: [one(), one([100])], "token 100, outside the vocabulary of 100"),
    (lambda asked: [one(), one([-1])], "token -1, outside the vocabulary"),
]


@pytest.mark.parametrize(("answer", "complaint"), BAD)
def test_an_engine_that_breaks_its_contract_fails_all_that_it_was_asked(engine, answer, complaint):
    async def run():
        engine.gate.clear()
        first = asyncio.create_task(engine.complete(request(9)))
        await until(engine.entered.is_set)
        both = [asyncio.create_task(engine.complete(request(token))) for token in (1, 2)]
        await asyncio.sleep(0.02)
        engine.gate.set()
        await first
        return await asyncio.gather(*both, return_exceptions=True)

    engine._answer = lambda asked: [one()] if len(asked) == 1 else answer(asked)
    for error in asyncio.run(run()):
        assert isinstance(error, ContractError)
        assert complaint in str(error)


def test_an_engine_that_raises_fails_every_waiter_and_is_asked_again(engine):
    async def run():
        return await asyncio.gather(
            *(engine.complete(request(token)) for token in (1, 2)), return_exceptions=True
        )

    def broken(asked):
        raise TimeoutError("engine is gone")

    engine._answer = broken
    assert [str(error) for error in asyncio.run(run())] == ["engine is gone"] * 2
    engine._answer = None
    assert [answer.tokens for answer in asyncio.run(run())] == [[1], [2]]


def test_closing_ends_what_waits_though_the_engine_hangs(engine, monkeypatch):
    monkeypatch.setattr(batching, "PATIENCE", 0.2)

    async def run():
        engine.gate.clear()
        running = asyncio.create_task(engine.complete(request(1)))
        await until(engine.entered.is_set)
        waiting = asyncio.create_task(engine.complete(request(2)))
        await asyncio.sleep(0.01)
        start = time.monotonic()
        await asyncio.to_thread(engine.close)
        assert time.monotonic() - start < 5
        return await asyncio.gather(running, waiting, return_exceptions=True)

    for error in asyncio.run(run()):
        assert isinstance(error, RunError)
        assert "closed before it answered" in str(error)
    engine.gate.set()
    assert asyncio.run(answers(engine, [5])) == [[5]]


def test_the_thread_ends_by_itself(engine, monkeypatch):
    monkeypatch.setattr(batching, "LINGER", 0.05)
    for _ in range(2):
        assert asyncio.run(answers(engine, [4])) == [[4]]
        asyncio.run(until(lambda: engine._batching._thread is None))


def test_scores_come_from_prompt_log_probabilities(engine):
    engine._answer = lambda asked: [
        one((), (), prompt_logprobs=[0.0, -float(r.prompt_tokens[1])]) for r in asked
    ]
    assert engine.score([[1, 2], [1, 3]]) == [[0.0, -2.0], [0.0, -3.0]]
    engine._answer = lambda asked: [one((), ()) for r in asked]
    with pytest.raises(ContractError, match="no prompt log-probabilities where 2 were"):
        engine.score([[1, 2]])


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"min_new_tokens": -1}, "min_new_tokens is -1"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "more than max_new_tokens, which is 8"),
        ({"stop": ("a", "")}, "stop is"),
        ({"stop": "word"}, "stop is 'word'"),
        ({"stop_token_ids": (-2,)}, "stop_token_ids is"),
        ({"stop_token_ids": [1]}, "stop_token_ids is"),
    ],
)
def test_sampling_parameters_outside_their_range(params, complaint):
    with pytest.raises(ConfigError, match=complaint):
        SamplingParams(**params)


def test_an_empty_prompt():
    with pytest.raises(ConfigError, match="a prompt has no tokens"):
        GenerationRequest([], SamplingParams(), (0,) * 5)
