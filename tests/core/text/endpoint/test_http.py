"""The endpoint over HTTP, asked by the real client of OpenAI, and by clients that misbehave."""

import asyncio
import contextlib
import io
import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import APIStatusError, AsyncOpenAI, AuthenticationError, NotFoundError, OpenAI
from waiting import DEADLINE

from plugrl.core.errors import UsageError
from plugrl.core.text.endpoint.server import Server, listening_socket

sys.path.insert(0, str(Path(__file__).parent))
from endpoint_model import TOKEN, Written, call_text, served, tool

pytestmark = pytest.mark.integration
HELLO = [{"role": "user", "content": "hello"}]


def client(url, kind=OpenAI, **more):
    return kind(base_url=f"{url}/v1", api_key=TOKEN, **more)


def request(url, method="POST", data=b"", token=TOKEN):
    """Status and JSON of a plain request."""
    headers = {"authorization": f"Bearer {token}"}
    made = urllib.request.Request(url, data=data or None, method=method, headers=headers)
    try:
        with urllib.request.urlopen(made, timeout=DEADLINE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_client_of_openai_is_answered():
    with served(Written()) as url:
        asking = client(url)
        assert [model.id for model in asking.models.list()] == ["policy"]
        assert asking.models.retrieve("policy").owned_by == "plugrl"
        answer = asking.chat.completions.create(
            model="policy", messages=HELLO, n=2, logprobs=True, max_completion_tokens=4,
            extra_body={"return_token_ids": True},
        )  # fmt: skip
        choice = answer.choices[1]
        assert (choice.message.content, choice.finish_reason, choice.index) == ("hell", "length", 1)
        assert [entry.token for entry in choice.logprobs.content] == list("hell")
        assert [entry.logprob for entry in choice.logprobs.content] == [-0.125, -0.25, -0.375, -0.5]
        assert len(choice.token_ids) == 4
        assert choice.weight_version == 7
        assert answer.usage.completion_tokens == 8
        assert answer.usage.prompt_tokens == len(answer.prompt_token_ids) == 23
        said = asking.completions.create(
            model="policy", prompt=["<user>a<", "<user>b<"], logprobs=0,
            extra_body={"prompt_logprobs": 0, "return_token_ids": True},
        )  # fmt: skip
    assert [choice.text for choice in said.choices] == ["a", "b"]
    assert said.choices[0].logprobs.token_logprobs == [-0.125, -0.25]
    assert said.choices[0].logprobs.tokens == ["a", ""]
    first, second = said.choices[1].prompt_logprobs[:2]
    assert first is None
    assert second[str(said.choices[1].prompt_token_ids[1])]["logprob"] == -0.5


def test_a_seed_gives_an_answer_again():
    model = Written()
    with served(model) as url:
        for seed in (5, 5, None):
            client(url).chat.completions.create(model="policy", messages=HELLO, seed=seed)
    streams = [asked.stream for asked in model.asked]
    assert streams[0] == streams[1] == (5, 0, 0, 0, 0)
    assert streams[2] != streams[0]


def test_streams_of_text_and_of_calls():
    def reply(text):
        return call_text("f", x="1") if "<tools>" in text else "日本 🙂 hello"

    with served(Written(reply)) as url:
        asking = client(url)
        chunks = list(
            asking.chat.completions.create(
                model="policy",
                messages=HELLO,
                stream=True,
                n=2,
                stream_options={"include_usage": True},
            )  # fmt: skip
        )
        assert chunks[-1].usage.completion_tokens == 2 * 11
        for index in (0, 1):
            own = [c.choices[0] for c in chunks[:-1] if c.choices[0].index == index]
            assert own[0].delta.role == "assistant"
            assert "".join(c.delta.content or "" for c in own) == "日本 🙂 hello"
            assert [c.finish_reason for c in own if c.finish_reason] == ["stop"]
        with asking.chat.completions.stream(
            model="policy", messages=HELLO, tools=[tool("f", "x")]
        ) as stream:
            for _ in stream:
                pass
            called = stream.get_final_completion().choices[0]
        assert called.finish_reason == "tool_calls"
        assert called.message.tool_calls[0].function.arguments == '{"x": "1"}'
        parts = asking.completions.create(
            model="policy", prompt="<user>a<", stream=True, logprobs=0
        )
        assert "".join(part.choices[0].text for part in parts) == "日本 🙂 hello"


def test_many_requests_at_once_of_the_asynchronous_client():
    async def ask(url):
        asking = client(url, AsyncOpenAI)
        messages = [[{"role": "user", "content": str(n)}] for n in range(40)]
        answers = await asyncio.gather(
            *(asking.chat.completions.create(model="policy", messages=m) for m in messages)
        )
        stream = await asking.chat.completions.create(model="policy", messages=HELLO, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        return [answer.choices[0].message.content for answer in answers], text

    with served(Written(seconds=0.02)) as url:
        assert asyncio.run(ask(url)) == ([str(n) for n in range(40)], "hello")


def test_sessions_are_made_shown_and_ended():
    record = io.StringIO()
    with served(Written(), record) as url:
        status, made = request(f"{url}/sessions")
        assert status == 201
        assert len(made["id"]) >= 32
        own = OpenAI(base_url=made["base_url"], api_key=TOKEN)
        first = own.chat.completions.create(model="policy", messages=HELLO).choices[0].message
        by_header = client(url, default_headers={"X-Plugrl-Session": made["id"]})
        more = [*HELLO, first, {"role": "user", "content": "bye"}]
        by_header.chat.completions.create(model="policy", messages=more)
        client(url).chat.completions.create(model="policy", messages=HELLO)
        status, shown = request(f"{url}/sessions/{made['id']}", "GET")
        assert [turn["continues"] for turn in shown["turns"]] == [False, True]
        before = shown["turns"][0]["prompt_token_ids"] + shown["turns"][0]["token_ids"]
        assert shown["turns"][1]["prompt_token_ids"][: len(before)] == before
        assert request(f"{url}/sessions/{made['id']}", "DELETE")[0] == 200
        assert request(f"{url}/sessions/{made['id']}", "GET")[0] == 404
        with pytest.raises(NotFoundError):
            own.models.list()
        with pytest.raises(NotFoundError):
            client(url, default_headers={"X-Plugrl-Session": "guessed"}).models.list()
    lines = [json.loads(line) for line in record.getvalue().splitlines()]
    assert [line["session"] for line in lines] == [made["id"], made["id"], None]
    assert lines[0]["logprobs"] == [-(k + 1) / 8 for k in range(6)]


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", "é", TOKEN[:-1]])
def test_a_wrong_token_is_refused_everywhere(token):
    with served(Written()) as url:
        for path in ("v1/models", "v1/chat/completions", "sessions", "sessions/x"):
            method = "GET" if path in ("v1/models", "sessions/x") else "POST"
            sent = token.encode().decode("latin-1")
            status, error = request(f"{url}/{path}", method, b"{}" * (method == "POST"), sent)
            assert (status, error["error"]["code"]) == (401, "invalid_api_key")
        with pytest.raises(AuthenticationError):
            OpenAI(base_url=f"{url}/v1", api_key=TOKEN + "x").models.list()


def test_errors_have_the_shape_of_openai_and_are_not_asked_again():
    model = Written(lambda text: 1 / 0)
    with served(model) as url:
        with pytest.raises(APIStatusError) as caught:
            client(url).chat.completions.create(model="policy", messages=HELLO)
        assert caught.value.status_code == 500
        assert "ZeroDivisionError" in caught.value.message
        assert request(f"{url}/nowhere", "GET")[0] == 404
        assert request(f"{url}/v1/chat/completions", "GET")[0] == 405
        status, error = request(f"{url}/v1/chat/completions", data=b"{" * 100_000)
        assert (status, error["error"]["type"]) == (400, "invalid_request_error")
        large = b'{"model": "' + b"x" * 9 * 2**20 + b'"}'
        assert request(f"{url}/v1/chat/completions", data=large)[0] == 413
    assert len(model.asked) == 1


def raw(url, data):
    """A connection on which ``data`` was sent."""
    port = int(url.rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
    connection.sendall(data)
    return connection


def post(body, extra="", address="chat/completions"):
    return (
        f"POST /v1/{address} HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n{extra}\r\n{body}"
    ).encode()


def test_garbage_silence_and_lies_about_length_leave_the_server_well():
    with served(Written()) as url:
        held = [raw(url, data) for data in (b"", b"POST /v1", post("x" * 50)[:-40])]
        for junk in (b"\x00\xff" * 500, b"GET / HTTP/9.9\r\n\r\n", b"A" * 200_000, b"\x16\x03\x01"):
            # The server may have hung up already.
            with raw(url, junk) as connection, contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                connection.recv(65536)
        chunked = post("", "Transfer-Encoding: chunked\r\n").replace(b"Content-Length: 0\r\n", b"")
        with raw(url, chunked + b"zz\r\n") as connection:
            assert b"400" in connection.recv(65536)
        answer = client(url).chat.completions.create(model="policy", messages=HELLO)
        assert answer.choices[0].message.content == "hello"
        for connection in held:
            connection.close()


def let_it_read(url):
    """Let the server's one loop read what has been sent to it, and notice who has gone."""
    for _ in range(5):
        assert request(f"{url}/health", "GET")[0] == 200


def test_clients_that_go_away_cancel_what_they_asked():
    model = Written()
    model.gate.clear()
    body = json.dumps({"model": "policy", "messages": HELLO})
    with served(model) as url:
        first = raw(url, post(body))
        assert model.entered.wait(DEADLINE)
        # The first is being computed; the others wait, and go before their turn.
        others = [raw(url, post(body)) for _ in range(5)]
        let_it_read(url)
        for connection in (first, *others):
            connection.close()
        let_it_read(url)
        model.gate.set()
        client(url).chat.completions.create(model="policy", messages=HELLO)
    assert len(model.asked) == 2


@pytest.mark.parametrize(
    ("address", "asked"),
    [("chat/completions", "messages"), ("responses", "input"), ("completions", "prompt")],
)
def test_a_client_that_leaves_in_the_middle_of_a_stream(address, asked):
    value = "hello" if asked == "prompt" else HELLO
    body = json.dumps({"model": "policy", asked: value, "stream": True})
    with served(Written(lambda text: "x" * 1500)) as url:
        for _ in range(20):
            connection = raw(url, post(body, address=address))
            connection.recv(200)
            connection.close()
        answer = client(url).chat.completions.create(model="policy", messages=HELLO, max_tokens=2)
    assert answer.choices[0].message.content == "xx"


def test_a_flood_is_answered_or_refused_and_the_server_stays():
    with served(Written(seconds=0.01)) as url, ThreadPoolExecutor(32) as threads:
        body = json.dumps({"model": "policy", "messages": HELLO}).encode()
        found = list(
            threads.map(lambda _: request(f"{url}/v1/chat/completions", data=body)[0], range(400))
        )
        assert set(found) <= {200, 429}
        assert found.count(200) > 100
        assert request(f"{url}/v1/models", "GET")[0] == 200


def test_closing_ends_open_requests_and_frees_the_port():
    model = Written()
    model.gate.clear()
    with served(model) as url:
        connection = raw(url, post(json.dumps({"model": "policy", "messages": HELLO})))
        assert model.entered.wait(DEADLINE)
        started = time.monotonic()
    # It has not waited for the model, which would have gone on at the deadline.
    assert time.monotonic() - started < DEADLINE / 2
    model.gate.set()
    connection.close()
    port = int(url.rpartition(":")[2])
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=2)
    listening_socket("127.0.0.1", port).close()


def test_a_port_in_use_is_said_to_be():
    with (
        listening_socket("127.0.0.1", 0) as taken,
        pytest.raises(UsageError, match="cannot listen on"),
    ):
        listening_socket("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UsageError, match="cannot listen on"):
        listening_socket("192.0.2.1", 0)
    with pytest.raises(UsageError, match="--host is empty"):
        listening_socket("", 0)


def test_nothing_of_a_closed_server_is_left():
    before = threading.active_count()
    for _ in range(3):
        with served(Written()) as url:
            assert request(f"{url}/health", "GET")[0] == 200
    assert isinstance(Server, type)
    assert threading.active_count() <= before
