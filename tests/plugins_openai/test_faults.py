"""What the service ``openai`` makes of servers that fail: bounded time, the cause, the remedy."""

import asyncio
import socket
import time
from types import SimpleNamespace

import pytest
from documented_server import DOWN, request

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.remote import calls
from plugrl.plugins.openai import handshake

PASSING = {
    "too many requests": (429, "slow down", {"retry-after": "0.2"}),
    "a server error": (500, "internal"),
    "overload": (503, "loading"),
    "garbage": "garbage",
    "half an answer": "half",
}


@pytest.mark.parametrize("kind", ["vllm", pytest.param("sglang", marks=pytest.mark.integration)])
@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_passes_costs_another_try_of_the_same_request(server, connect, fault, kind):
    there = server(kind)
    service = connect(there)
    there.bodies.clear()
    there.faults = [PASSING[fault]] * 2
    begun = time.monotonic()
    answer = service.generate([request(temperature=0.0, max_new_tokens=3, top_p=0.5)])[0]
    assert len(there.bodies) == 3
    assert there.bodies[0] == there.bodies[1] == there.bodies[2]
    assert len(answer.tokens) == 3
    if fault == "too many requests":
        assert time.monotonic() - begun >= 0.4


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ((429, "quota"), r"answers 429: quota while asked to answer a request \(\d+ tries in "),
        ((500, "no memory"), "answers 500: no memory while asked .*see the server's log"),
        ("garbage", "answers what is no JSON: <html>502"),
        ("half", "broke its answer off"),
    ],
)
def test_a_fault_that_stays_ends_with_its_name(server, connect, fault, said):
    there = server()
    service = connect(there, patience=0.5)
    there.always = fault
    with pytest.raises(RunError, match=f"{there.base_url}/completions .*{said}"):
        service.generate([request()])


def test_patience_bounds_the_number_of_tries(server, connect):
    there = server()
    service = connect(there, patience=0.35)
    there.bodies.clear()
    there.always = (429, "quota", {"retry-after": "0.1"})
    with pytest.raises(RunError, match=r"asks for 0.1 seconds of waiting .* \(\d+ tries in "):
        service.generate([request()])
    # At 0, 0.1, 0.2 and 0.3 seconds; fewer on a machine that is busy.
    assert 1 <= len(there.bodies) <= 4


def test_a_longer_wait_than_the_patience_is_not_begun(server, connect):
    there = server()
    service = connect(there, patience=2.0)
    there.bodies.clear()
    there.always = (429, "later", {"retry-after": "3600"})
    with pytest.raises(RunError, match="asks for 3600 seconds of waiting"):
        service.generate([request()])
    assert len(there.bodies) == 1


def test_an_answer_without_what_training_needs_ends_at_once(server, connect):
    there = server()
    service = connect(there)
    there.faults = ["empty"]
    with pytest.raises(RunError, match="did not give choices; use a vLLM that has return_token_"):
        service.generate([request()])


def test_a_server_that_hangs_ends_the_request_after_its_timeout(server, connect):
    there = server()
    service = connect(there, timeout=0.5)
    there.bodies.clear()
    there.always = "hang"
    with pytest.raises(RunError, match=r"did not answer a request within timeout=0\.5 seconds"):
        asyncio.run(service.complete(request()))
    assert len(there.bodies) == 1


@pytest.mark.integration
def test_a_server_that_is_silent_as_a_whole_ends_the_request_by_its_patience(
    connect, server, monkeypatch
):
    monkeypatch.setattr(calls, "_PROBE_EVERY", 0.1)
    monkeypatch.setattr(calls, "_PROBE_TIMEOUT", 0.1)
    there = server()
    service = connect(there, timeout=600.0, patience=0.2)
    there.stop()
    # It accepts connections, and never answers.
    silent = pytest.raises(RunError, match="was silent for .* does not answer")
    with socket.create_server(("127.0.0.1", there.port)), silent:
        service.generate([request()])


def test_a_server_that_is_down_at_the_start_is_named_soon(server, connect, monkeypatch):
    monkeypatch.setattr(handshake, "_AT_START", 0.2)
    there = server()
    there.stop()
    said = f"{there.base_url}{DOWN} .*check base_url and that "
    with pytest.raises(RunError, match=said):
        connect(there)


def test_a_server_that_goes_down_in_the_middle_is_named(server, connect):
    there = server()
    service = connect(there, patience=0.2)
    there.always = "down"
    with pytest.raises(RunError, match=f"{there.base_url}({DOWN}|/completions broke)"):
        service.generate([request(stream=(0, 0, i, 0, 0)) for i in range(4)])


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_named_by_its_variable_and_never_shown(
    server, connect, monkeypatch, status
):
    there = server(key="right")
    with pytest.raises(ConfigError, match=r"wants a key \(401\), and the .* OPENAI_API_KEY is not"):
        connect(there)
    monkeypatch.setenv("MY_KEY", "wrong-secret")
    with pytest.raises(ConfigError, match=r"refuses the key of MY_KEY \(401\)") as failure:
        connect(there, api_key="MY_KEY")
    assert "wrong-secret" not in str(failure.value)
    monkeypatch.setenv("MY_KEY", "right")
    service = connect(there, api_key="MY_KEY")
    there.always = (status, "token right has expired")
    with pytest.raises(ConfigError, match=rf"refuses the key of MY_KEY \({status}\)"):
        service.generate([request()])
    there.always = (400, "bad token right")
    with pytest.raises(RunError, match="bad token <key>"):
        service.generate([request()])
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ConfigError, match="variable MY_KEY, which holds the key of .* is not set"):
        connect(there, api_key="MY_KEY")


def test_a_key_in_the_configuration_is_refused_without_repeating_it(server, connect):
    with pytest.raises(ConfigError, match="name of an environment variable") as failure:
        connect(server(), api_key="sk-live-123")
    assert "sk-live-123" not in str(failure.value)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_wrong_model_is_answered_with_the_servers_own(server, connect, kind):
    with pytest.raises(ConfigError, match=r"has no model 'tinny'; it has: tiny.*tiny"):
        connect(server(kind), model="tinny")
    assert connect(server(kind), model="tiny").generate([request()])


@pytest.mark.parametrize(
    "options",
    [{}, {"engine": "vllm", "model": "tiny"}, {"engine": "generic", "model": "tiny"}],
    ids=["nothing", "an engine", "a generic one"],
)
def test_an_address_without_its_end_is_answered_with_the_whole_one(server, connect, options):
    whole = server().base_url
    short = whole.removesuffix("/v1")
    said = f"at {short}.*; base_url probably has to end in /v1: write {whole}$"
    with pytest.raises(ConfigError, match=said):
        connect(SimpleNamespace(base_url=short), trained=False, **options)


def test_a_whole_address_without_a_list_asks_for_the_name(server, connect):
    there = server()
    there.hidden.add("/v1/models")
    with pytest.raises(ConfigError, match="gives no list of models .* into model$"):
        connect(there, trained=False)


def test_a_request_that_the_server_refuses_is_not_tried_again(server, connect):
    there = server()
    service = connect(there)
    there.bodies.clear()
    there.always = (422, "temperature is not for you")
    with pytest.raises(RunError, match="answers 422 .* temperature is not for you"):
        service.generate([request()])
    assert len(there.bodies) == 1
