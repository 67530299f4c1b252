"""Whatever a client sends is answered, or refused in the shape of OpenAI's errors."""

import itertools
import json
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from waiting import DEADLINE

from plugrl.core.text.endpoint import server
from plugrl.core.text.endpoint.faults import ApiError
from plugrl.core.text.endpoint.requests import read_chat, read_text

sys.path.insert(0, str(Path(__file__).parent))
from endpoint_model import TOKEN, Written, served

HUGE = 10**400
JUNK = [0, -1, 1.5, HUGE, 1e300, True, "", "x", "\ud800", [], [[]], [{}], {}, {"a": {}}, [None]]
JUNK += [[HUGE], [True], [1.5], ["\ud800"], {"type": []}, {"type": "text"}, float("nan")]
COMMON = ["model", "n", "seed", "stream", "stream_options", "temperature", "top_p", "top_k"]
COMMON += ["max_tokens", "min_tokens", "stop", "stop_token_ids", "prompt_logprobs", "logit_bias"]
COMMON += ["logprobs", "user", "return_token_ids", "frequency_penalty", "no_such_parameter"]
COMMON += ["presence_penalty", "repetition_penalty", "min_p"]
CHAT = ["messages", "tools", "tool_choice", "top_logprobs", "max_completion_tokens"]
CHAT += ["response_format", "modalities", "parallel_tool_calls"]
CHAT += ["chat_template_kwargs", "reasoning_effort"]
MESSAGE = ["role", "content", "name", "tool_calls", "tool_call_id", "refusal", "no_such_key"]
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat(**values):
    return {"model": "policy", "messages": [{"role": "user", "content": "x"}], **values}


def message(sender, **values):
    return chat(messages=[{"role": sender, "content": "x", **values}])


def bodies():
    """Requests with one wrong value each, at every place of them, and how each is read."""
    for junk in JUNK:
        for name in [*COMMON, *CHAT]:
            yield read_chat, chat(**{name: junk})
        for name in [*COMMON, "prompt", "echo", "best_of", "suffix"]:
            yield read_text, {"model": "policy", "prompt": "x", name: junk}
        for role, name in itertools.product(["user", "assistant", "tool"], MESSAGE):
            yield read_chat, message(role, **{name: junk})
        for name in ("type", "text"):
            yield read_chat, message("user", content=[{"type": "text", "text": "x", name: junk}])
        for name in CALL:
            yield read_chat, message("assistant", tool_calls=[{**CALL, name: junk}])
        for name in ("name", "arguments"):
            function = {**CALL["function"], name: junk}
            yield read_chat, message("assistant", tool_calls=[{**CALL, "function": function}])
        for name in ("name", "description", "parameters"):
            function = {"name": "f", name: junk}
            yield read_chat, chat(tools=[{"type": "function", "function": function}])


def test_a_wrong_value_at_any_place_is_refused_or_read():
    refusals = []
    for read, values in bodies():
        try:
            read(json.dumps(values).encode())
        except ApiError as error:
            refusals.append((error.status, str(error)))
        else:
            assert "\\ud800" not in json.dumps(values), "half of a surrogate pair was read"
    assert len(refusals) > 500
    assert {status for status, _ in refusals} == {400, 422}
    assert not [said for _, said in refusals if "\n" in said]


RAW = [b"", b"\xff\xfe", b"[", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"null"]


@pytest.mark.parametrize("data", RAW, ids=lambda data: repr(data[:8]))
def test_what_is_no_object_is_refused(data):
    with pytest.raises(ApiError, match="the body is no JSON"):
        read_chat(data)


def asked_raw(url, data):
    made = urllib.request.Request(f"{url}/v1/chat/completions", data=data, method="POST")
    made.add_header("authorization", f"Bearer {TOKEN}")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(made, timeout=DEADLINE)
    return caught.value.code, json.load(caught.value)["error"]


@pytest.mark.integration
def test_a_fault_of_the_server_itself_is_told_in_the_same_shape(monkeypatch, capfd):
    def broken(*_):
        raise ZeroDivisionError("a fault\nof two lines")

    with served(Written()) as url:
        status, error = asked_raw(url, json.dumps(message([])).encode())
        assert (status, error["type"]) == (400, "invalid_request_error")
        monkeypatch.setattr("plugrl.core.text.endpoint.app._body", broken)
        status, error = asked_raw(url, b"{}")
    assert (status, error["type"], error["code"]) == (500, "server_error", "internal_error")
    assert error["message"].startswith("ZeroDivisionError: a fault")
    assert "\n" not in error["message"]
    assert "Traceback" not in "".join(capfd.readouterr())


HALF = b"GET /health HTTP/1.1\r\nhost: x\r\n"
ANSWERED = "HTTP/1.1 200"


# After a request that was answered, uvicorn waits for 60 seconds for the first byte of the next.
@pytest.mark.parametrize(
    ("before", "sent"),
    [(b"", b""), (b"", b"G"), (b"", HALF), (HALF + b"\r\n", b"G"), (HALF + b"\r\n", HALF)],
)
def test_headers_that_do_not_come_end_their_connection(monkeypatch, before, sent):
    monkeypatch.setattr(server, "HEADERS_SECONDS", 0.1)
    with served(Written()) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=DEADLINE) as connection:
            connection.sendall(before + sent)
            said = b""
            while got := connection.recv(2**16):
                said += got
            assert said.startswith(ANSWERED.encode() if before else b"")


def test_a_body_may_take_longer_than_headers(monkeypatch):
    monkeypatch.setattr(server, "HEADERS_SECONDS", 0.1)
    data = json.dumps(chat()).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
    with served(Written()) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=DEADLINE) as connection:
            connection.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode())
            time.sleep(0.3)
            connection.sendall(data)
            assert connection.recv(2**16).startswith(ANSWERED.encode())


def test_headers_that_come_in_pieces_are_read():
    with served(Written()) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=DEADLINE) as connection:
            # The second comes on a connection that has answered already.
            for _ in range(2):
                for piece in (HALF[:1], HALF[1:10], HALF[10:], b"\r\n"):
                    connection.sendall(piece)
                    time.sleep(0.02)
                assert connection.recv(2**16).startswith(ANSWERED.encode())
