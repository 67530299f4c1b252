"""Sessions that clients make: found again until they end, and the longest unused make room."""

import asyncio
import sys
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse

from plugrl.core.text.endpoint import app, serving
from plugrl.core.text.endpoint.faults import ApiError
from plugrl.core.text.endpoint.serving import ServedSessions, ServiceSource

sys.path.insert(0, str(Path(__file__).parent))
from endpoint_model import TOKEN, Written, offer_of, run


@pytest.fixture
def sessions():
    model = Written()
    yield ServedSessions(offer_of(model), ServiceSource({"policy": model}))
    model.close()


def test_a_session_is_found_until_it_ends(sessions):
    first, second = sessions.create(), sessions.create()
    assert first.identity != second.identity
    assert sessions.find(first.identity) is first
    assert sessions.find(second.identity) is second
    sessions.end(first)
    assert first.closed
    with pytest.raises(ApiError) as caught:
        sessions.find(first.identity)
    assert caught.value.status == 404
    assert sessions.find(second.identity) is second


def test_a_request_without_a_session_has_one_that_is_not_kept(sessions):
    assert sessions.find(None) is not sessions.find(None)
    with pytest.raises(ApiError):
        sessions.find("")


def test_the_session_that_was_asked_longest_ago_makes_room(sessions, monkeypatch):
    monkeypatch.setattr(serving, "MOST_SESSIONS", 2)
    first, second = sessions.create(), sessions.create()
    sessions.find(first.identity)
    third = sessions.create()
    with pytest.raises(ApiError):
        sessions.find(second.identity)
    assert [sessions.find(each.identity) for each in (first, third)] == [first, third]


def test_as_many_requests_may_be_open_as_is_said(sessions, monkeypatch):
    monkeypatch.setattr(app, "MOST_OPEN", 3)
    gate, entered = asyncio.Event(), []

    class Waiting:
        """Sessions that are looked for until the gate opens."""

        async def create(self, request):
            entered.append(request)
            await gate.wait()
            return JSONResponse({})

    made = app.Application(sessions, TOKEN)
    handler = made._guard(Waiting().create)
    scope = {"type": "http", "headers": [(b"authorization", f"Bearer {TOKEN}".encode())]}

    async def ask(count):
        return [asyncio.create_task(handler(Request(scope))) for _ in range(count)]

    async def both_rounds():
        for _ in range(2):
            gate.clear()
            open_ones = await ask(3)
            (refused,) = await asyncio.gather(*await ask(1))
            assert refused.status_code == 429
            gate.set()
            assert {done.status_code for done in await asyncio.gather(*open_ones)} == {200}

    run(both_rounds())
    assert len(entered) == 6
