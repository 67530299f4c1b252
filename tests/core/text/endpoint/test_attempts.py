"""The server of a process's attempts: one for all of them, and another when it has ended."""

import asyncio
import sys
from pathlib import Path

import pytest

from plugrl.core.text.endpoint.clients import attempts
from plugrl.core.text.endpoint.clients.attempts import AttemptSessions
from plugrl.core.text.endpoint.faults import ApiError

sys.path.insert(0, str(Path(__file__).parent))
from endpoint_model import Written, offer_of


def test_attempts_share_a_server_and_get_another_when_it_has_ended(monkeypatch):
    monkeypatch.setattr(attempts, "LINGER", 0.05)
    model, sessions = Written(), AttemptSessions()

    async def use():
        with sessions.open_session(None, offer_of(model)) as (first, one):
            with sessions.open_session(None, offer_of(model)) as (second, two):
                assert sessions.find(one.session) is first
                assert sessions.find(two.session) is second
            with pytest.raises(ApiError):
                sessions.find(two.session)
            started = sessions._server
            await asyncio.to_thread(started.close)
            with sessions.open_session(None, offer_of(model)) as (_, three):
                assert sessions._server is not started
                assert sessions._server.alive
                await asyncio.to_thread(sessions._server.close)
        return one, two, three

    one, two, three = asyncio.run(use())
    model.close()
    port, again, other = (each.base_url.partition("/sessions/")[0] for each in (one, two, three))
    assert port == again
    assert one.api_key == two.api_key != three.api_key
    assert len({one.session, two.session, three.session}) == 3
    assert other.startswith("http://127.0.0.1:")
