"""The asynchronous form of the embedded engine: requests join and leave between steps."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from waiting import DEADLINE

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.plugins.transformers.engine.serving import Turns

LONG = 20


def request(prompt, run=0, **sampling):
    params = SamplingParams(**{"max_new_tokens": LONG, **sampling})
    return GenerationRequest(prompt, params, (0, 0, len(prompt), run, 0))


def mixed(count):
    """Requests that differ in prompt, length and parameters."""
    kinds = [{}, {"temperature": 0}, {"top_k": 3}, {"temperature": 2.0, "stop_token_ids": (1, 2)}]
    return [
        request([2 + i % 7] * (1 + i % 5), i, **{"max_new_tokens": 3 + 5 * i % 17, **kinds[i % 4]})
        for i in range(count)
    ]


class Steps:
    """Lets the engine do one step at a time, and counts them."""

    def __init__(self, engine, monkeypatch):
        self.done, self.sizes = 0, []
        self._may = threading.Semaphore(0)
        self._free = False
        decode = engine._runner.decode

        def one(tokens, *rest):
            assert self._free or self._may.acquire(timeout=DEADLINE)
            self.done += 1
            self.sizes.append(len(tokens))
            return decode(tokens, *rest)

        monkeypatch.setattr(engine._runner, "decode", one)

    async def go(self, count):
        # What was asked before must not be overtaken by the steps.
        await asyncio.sleep(0)
        before = self.done
        for _ in range(count):
            self._may.release()
        while self.done < before + count:
            await asyncio.sleep(0.002)

    def run_free(self):
        self._free = True
        self._may.release()


@pytest.fixture
def steps(engine, monkeypatch):
    counter = Steps(engine, monkeypatch)
    yield counter
    counter.run_free()
    engine.close()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, DEADLINE))


def test_answers_equal_those_of_the_lockstep_form(any_engine):
    async def all_at_once():
        return await asyncio.gather(*map(any_engine.complete, mixed(12)))

    expected = any_engine.generate(mixed(12))
    for got, wanted in zip(run(all_at_once()), expected, strict=True):
        assert (got.tokens, got.finish_reason) == (wanted.tokens, wanted.finish_reason)
        assert got.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
    any_engine.close()


@pytest.mark.parametrize("prompt", [[3], [4] * 4, [5] * 10])
def test_a_request_that_joins_others_gets_what_it_gets_alone(engine, steps, prompt):
    # Its prompt is shorter or longer than what the others have by then.
    others = [request([2, 3, 4], 1), request([6], 2, temperature=0, max_new_tokens=9)]

    async def go():
        first = [asyncio.create_task(engine.complete(other)) for other in others]
        await steps.go(3)
        late = asyncio.create_task(engine.complete(request(prompt)))
        await asyncio.sleep(0.01)
        await steps.go(2)
        assert steps.sizes[-1] == 3
        steps.run_free()
        return await asyncio.gather(*first, late)

    got = run(go())
    for answer, asked in zip(got, [*others, request(prompt)], strict=True):
        (alone,) = engine.generate([asked])
        assert answer.tokens == alone.tokens
        assert answer.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_a_place_that_became_free_is_used_again(engine, engine_like, steps):
    small = engine_like(engine, max_batch_size=2)
    small._continuous = None
    asked = [request([3], 0), *(request([4 + i], i, max_new_tokens=4) for i in range(3))]

    async def go():
        steps.run_free()
        return await asyncio.gather(*map(small.complete, asked))

    got = run(go())
    assert max(steps.sizes) == 2
    assert [a.tokens for a in got] == [a.tokens for a in engine.generate(asked)]
    small.close()


def test_a_cancelled_request_leaves_at_the_next_step(engine, steps):
    asked = [request([3, 4], i) for i in range(4)]

    async def go():
        tasks = [asyncio.create_task(engine.complete(one)) for one in asked]
        await steps.go(2)
        for task in tasks[:3]:
            task.cancel()
        await asyncio.sleep(0.01)
        await steps.go(2)
        assert max(steps.sizes) == 4
        assert steps.sizes[-1] == 1
        steps.run_free()
        return await tasks[3]

    assert run(go()).tokens == engine.generate(asked[3:])[0].tokens


def test_a_request_cancelled_before_it_joined_is_never_computed(engine, engine_like, steps):
    small = engine_like(engine, max_batch_size=1)
    small._continuous = None

    async def go():
        first = asyncio.create_task(small.complete(request([3])))
        await steps.go(1)
        second = asyncio.create_task(small.complete(request([4, 5, 6])))
        await asyncio.sleep(0.01)
        second.cancel()
        steps.run_free()
        await first
        with pytest.raises(asyncio.CancelledError):
            await second

    run(go())
    assert steps.done == LONG - 1
    small.close()


def test_an_update_on_the_way_is_stamped_on_the_tokens_after_it(engine, steps):
    new = {name: value + 0.1 for name, value in engine._model.state_dict().items()}

    async def go():
        task = asyncio.create_task(engine.complete(request([3, 4])))
        other = asyncio.create_task(engine.complete(request([5], max_new_tokens=3)))
        await steps.go(5)
        update = asyncio.to_thread(engine.update_weights, new, 7)
        # The thread waits for its turn; the step that has begun still uses the old weights.
        waiting = asyncio.create_task(update)
        await asyncio.sleep(0.05)
        steps.run_free()
        await waiting
        return await task, await other, await engine.complete(request([3, 4]))

    changed, short, after = run(go())
    assert sorted(set(changed.versions)) == [0, 7]
    assert changed.versions == sorted(changed.versions)
    # Six tokens were drawn for sure, and a step may have begun.
    assert changed.versions.count(0) in (6, 7)
    assert changed.version == 0
    assert (short.version, short.versions) == (0, None)
    assert (after.version, after.versions) == (7, None)
    with torch.no_grad():
        own = engine._model(torch.tensor([[3, 4, *after.tokens]])).logits[0].log_softmax(-1)
    expected = own[1:-1].gather(1, torch.tensor(after.tokens)[:, None])[:, 0]
    assert after.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_many_threads_and_both_forms_at_once(engine):
    asked = mixed(12)
    expected = [answer.tokens for answer in engine.generate(asked)]

    def asynchronous(_):
        async def go():
            return await asyncio.gather(*map(engine.complete, asked))

        return [answer.tokens for answer in asyncio.run(go())]

    def lockstep(_):
        return [answer.tokens for answer in engine.generate(asked)]

    with ThreadPoolExecutor(8) as pool:
        works = [pool.submit(what, 0) for what in [asynchronous, lockstep] * 4]
        assert [work.result(60) for work in works] == [expected] * 8
    engine.close()


def test_a_refused_request_ends_alone(engine):
    async def go():
        return await asyncio.gather(
            engine.complete(request([3])),
            engine.complete(request([3] * 32)),
            engine.complete(request([99])),
            return_exceptions=True,
        )

    good, long, unknown = run(go())
    assert len(good.tokens) == LONG
    assert isinstance(long, ConfigError)
    assert "outside the vocabulary" in str(unknown)
    engine.close()


def test_a_failure_reaches_every_request_and_the_next_is_served(engine, monkeypatch):
    async def go():
        return await asyncio.gather(
            *(engine.complete(request([3], i)) for i in range(3)), return_exceptions=True
        )

    with monkeypatch.context() as broken:
        broken.setattr(engine._runner, "decode", lambda *_: 1 / 0)
        assert [type(error) for error in run(go())] == [ZeroDivisionError] * 3
    assert [len(answer.tokens) for answer in run(go())] == [LONG] * 3
    engine.close()


def test_closing_ends_what_is_being_decoded(engine, steps):
    async def go():
        task = asyncio.create_task(engine.complete(request([3])))
        await steps.go(2)
        closing = asyncio.create_task(asyncio.to_thread(engine.close))
        await asyncio.sleep(0.02)
        steps.run_free()
        await closing
        with pytest.raises(RunError, match="closed before it answered"):
            await task

    run(go())
    assert steps.done < LONG
    assert not [t for t in threading.enumerate() if t.name == "the transformers engine"]


def test_turns_are_taken_in_order_and_can_be_given_up():
    turns, order = Turns(), []

    class Interrupt(BaseException):
        pass

    def interrupt():
        raise Interrupt

    def work(name):
        with turns.take():
            order.append(name)

    def started(name):
        thread = threading.Thread(target=work, args=(name,))
        asked = len(turns._asked)
        thread.start()
        while len(turns._asked) == asked:
            time.sleep(0.001)
        return thread

    with turns.take():
        threads = [started("first")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(turns._changed, "wait", interrupt)
            with pytest.raises(Interrupt):
                work("never")
        threads += [started("second"), started("third")]
    for thread in threads:
        thread.join(DEADLINE)
    assert order == ["first", "second", "third"]
