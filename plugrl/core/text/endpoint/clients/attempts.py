"""The endpoint of a run: one server for a process, with a session for each attempt."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from plugrl.core.text.endpoint.app import Application
from plugrl.core.text.endpoint.faults import ApiError, session_ended
from plugrl.core.text.endpoint.requests import EndpointRequest
from plugrl.core.text.endpoint.server import Server, listening_socket
from plugrl.core.text.endpoint.session import Offer, Session
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.rollout.task import RolloutTask

HOST = "127.0.0.1"
#: Seconds without a session after which the server ends; the next session starts another.
LINGER = 5.0


@dataclass
class AttemptSource:
    """Asks on behalf of one attempt, in its lockstep and with its random numbers."""

    task: RolloutTask
    chooses: bool = False

    async def ask(
        self,
        model: str,
        tokens: list[int],
        sampling: SamplingParams,
        asked: EndpointRequest,
        number: int,
        /,
    ) -> Completion:
        """The answer of ``model``."""
        return await self.task.ask(model, tokens, sampling)


@dataclass(frozen=True)
class Address:
    """Where a session is served: what a program needs to know."""

    base_url: str
    api_key: str
    session: str


class AttemptSessions:
    """The sessions of the attempts of this process."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._changed = threading.Lock()
        self._server: Server | None = None
        self._token = ""
        self._idle_since = 0.0

    @contextmanager
    def open_session(self, task: RolloutTask, offer: Offer) -> Iterator[tuple[Session, Address]]:
        """A session for ``task``, which ends with the block; to be called in its event loop.

        Raises:
            PluginError: the extra is not installed.
            RunError: the server does not start.
        """
        loop = asyncio.get_running_loop()
        session = Session(secrets.token_urlsafe(24), offer, AttemptSource(task), loop)
        with self._changed:
            server = self._running()
            self._sessions[session.identity] = session
            token = self._token
        url = f"http://{HOST}:{server.port}/sessions/{session.identity}/v1"
        try:
            yield session, Address(url, token, session.identity)
        finally:
            session.close()
            with self._changed:
                del self._sessions[session.identity]
                self._idle_since = time.monotonic()

    def find(self, identity: str | None) -> Session:
        """The session of an open attempt."""
        session = self._sessions.get(identity or "")
        if session is None:
            raise session_ended(identity or "")
        return session

    def create(self) -> NoReturn:
        """Clients make no sessions: each attempt has one."""
        raise ApiError(404, "sessions cannot be made here: each attempt has one")

    def end(self, session: Session) -> NoReturn:
        """Clients end no sessions."""
        raise ApiError(404, "sessions end with their attempts")

    def _running(self) -> Server:
        if self._server is None or not self._server.alive:
            self._token = secrets.token_urlsafe(32)
            application = Application(self, self._token).build()
            self._server = Server(application, listening_socket(HOST, 0))
            self._server.start()
            watch = threading.Thread(target=self._watch, args=(self._server,), daemon=True)
            watch.start()
        return self._server

    def _watch(self, server: Server) -> None:
        """End the server when nothing needs it."""
        while server.alive:
            time.sleep(LINGER / 5)
            with self._changed:
                if self._sessions or time.monotonic() - self._idle_since < LINGER:
                    continue
                self._server = None
            server.close()


#: Those of this process.
SESSIONS = AttemptSessions()
