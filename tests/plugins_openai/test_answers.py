"""The service ``openai`` over local servers that follow the documents of vLLM and SGLang."""

import asyncio

import pytest
from documented_server import request
from waiting import DEADLINE

from plugrl.core.errors import ConfigError, RunError

KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])


@KINDS
def test_answers_of_a_documented_server_are_its_tokens_with_their_log_probabilities(
    server, connect, kind
):
    there = server(kind)
    service = connect(there)
    asked = [request((2, 3, i), (0, 0, i, 0, 0), stop_token_ids=(1,)) for i in range(2, 7)]
    for entry, answer in zip(asked, service.generate(asked), strict=True):
        assert 1 <= len(answer.tokens) <= 6
        whole = [*entry.prompt_tokens, *answer.tokens]
        expected = there.engine.score([whole])[0][len(entry.prompt_tokens) :]
        assert answer.logprobs == pytest.approx(expected, abs=1e-5)
        ended = answer.tokens[-1] == 1
        assert answer.finish_reason == ("stop" if ended else "length")


@KINDS
def test_prompts_are_scored_by_a_documented_server(server, connect, kind):
    there = server(kind)
    service = connect(there)
    sequences = [[2, 3, 4, 5], [6, 7, 8], [5] * service.max_sequence_length]
    assert service.scores_prompts
    for own, expected in zip(service.score(sequences), there.engine.score(sequences), strict=True):
        assert own == pytest.approx(expected, abs=1e-5)


def test_seeds_of_vllm_requests_depend_on_their_place_alone(server, connect):
    there = server()
    service = connect(there)
    first = service.generate([request(stream=(0, 0, i, 0, 0)) for i in range(6)])
    again = service.generate([request(stream=(0, 0, i, 0, 0)) for i in (3, 0, 5)])
    assert [a.tokens for a in again] == [first[i].tokens for i in (3, 0, 5)]
    assert len({tuple(a.tokens) for a in first}) > 1


@KINDS
def test_sampling_parameters_reach_a_documented_server(server, connect, kind):
    there = server(kind)
    service = connect(there)
    there.bodies.clear()
    service.generate(
        [request(temperature=0.0, top_p=0.9, top_k=3, min_new_tokens=2, stop=("ab",),
                 stop_token_ids=(1, 5), max_new_tokens=4)]
    )  # fmt: skip
    body = there.bodies[0] if kind == "vllm" else there.bodies[0]["sampling_params"]
    least, most = ("min_tokens", "max_tokens") if kind == "vllm" else (
        "min_new_tokens", "max_new_tokens")  # fmt: skip
    sent = {name: body[name] for name in ("temperature", "top_p", "top_k", "stop", least, most)}
    assert sent == {
        "temperature": 0.0, "top_p": 0.9, "top_k": 3, "stop": ["ab"], least: 2, most: 4
    }  # fmt: skip
    assert body["stop_token_ids"] == [1, 5]
    # Otherwise the generation config of the model would decide.
    assert (body["repetition_penalty"], body["min_p"]) == (1.0, 0.0)


def test_an_answer_is_as_long_as_the_context_leaves_room_for(server, connect):
    service = connect(server())
    room = service.max_sequence_length
    prompt = [2 + i % 8 for i in range(room - 2)]
    answer = service.generate([request(prompt, max_new_tokens=50)])[0]
    assert (len(answer.tokens), answer.finish_reason) == (2, "length")
    with pytest.raises(ConfigError, match="fills the model's context"):
        service.generate([request([2] * room)])


def test_vllm_log_probabilities_of_another_temperature_are_refused_unless_processed(
    server, connect
):
    there = server()
    with pytest.raises(ConfigError, match="processed_logprobs; start it so"):
        connect(there).generate([request(temperature=0.7)])
    processed = connect(there, logprobs_mode="processed")
    assert processed.generate([request(temperature=0.7)])[0].tokens
    with pytest.raises(ConfigError, match="leave those at 0 and 1"):
        processed.generate([request(temperature=0.7, top_k=2)])


@KINDS
def test_many_requests_share_the_connections(server, connect, kind):
    there = server(kind)
    there.slow = 0.03
    service = connect(there, connections=3)

    async def all_of_them():
        asked = [request(stream=(0, 0, i, 0, 0)) for i in range(15)]
        return await asyncio.gather(*map(service.complete, asked))

    assert len(asyncio.run(all_of_them())) == 15
    assert 2 <= there.most_open <= 3
    # From another event loop too.
    assert len(asyncio.run(all_of_them())) == 15


def test_cancelling_a_request_closes_its_connection(server, connect):
    there = server()
    service = connect(there)
    there.faults = ["hang"]

    async def give_up():
        task = asyncio.create_task(service.complete(request()))
        while not there.bodies[2:]:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not there.gone:
            await asyncio.sleep(0.01)
        return await asyncio.wait_for(service.complete(request()), DEADLINE)

    assert asyncio.run(asyncio.wait_for(give_up(), DEADLINE)).tokens
    assert there.gone == 1


def test_closing_ends_open_requests_and_a_later_one_starts_anew(server, connect):
    there = server()
    service = connect(there)
    there.faults = ["hang"]

    async def close_meanwhile():
        task = asyncio.create_task(service.complete(request()))
        while not there.bodies[2:]:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(service.close)
        with pytest.raises(RunError):
            await task

    asyncio.run(close_meanwhile())
    assert service.generate([request()])[0].tokens


def test_prompts_that_a_server_does_not_score_are_said_to_be_unscored(server, connect):
    there = server()
    there.prompts_scored = False
    service = connect(there)
    assert not service.scores_prompts
    assert service.generate([request()])[0].tokens
    with pytest.raises(ConfigError, match="no log-probabilities of prompts"):
        service.score([[2, 3]])
