"""Serving the models of a run or of a folder to whoever has the token."""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

from plugrl.core.errors import UsageError
from plugrl.core.loaded_run import LoadedRun
from plugrl.core.text.agents.parsing import Parser
from plugrl.core.text.endpoint.app import Application
from plugrl.core.text.endpoint.faults import session_ended
from plugrl.core.text.endpoint.recording import Turn
from plugrl.core.text.endpoint.requests import EndpointRequest
from plugrl.core.text.endpoint.server import Server, listening_socket
from plugrl.core.text.endpoint.session import Offer, Session
from plugrl.core.text.inference import completions
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams, ending
from plugrl.core.text.inference.services import TokenLimits
from plugrl.core.text.loaded_models import text_trainer, trained_stops

if TYPE_CHECKING:
    from plugrl.core.text.inference.services import InferenceService

#: Holds the token that clients must send; without it one is made.
TOKEN = "PLUGRL_SERVE_TOKEN"
#: Sessions that are kept; the one that was not used for longest goes first.
MOST_SESSIONS = 4096
_ANY_LENGTH = 2**31


@dataclass
class ServiceSource:
    """Asks inference services, which answer many requests at once."""

    services: Mapping[str, InferenceService]
    chooses: bool = True

    async def ask(
        self,
        model: str,
        tokens: list[int],
        sampling: SamplingParams,
        asked: EndpointRequest,
        number: int,
        /,
    ) -> Completion:
        """The answer of ``model``; with a seed, the same one each time."""
        service = self.services[model]
        seed = secrets.randbits(62) if asked.seed is None else asked.seed
        request = GenerationRequest(
            tokens,
            ending(sampling, service.tokenizer),
            (seed, 0, 0, number, 0),
            asked.prompt_logprobs,
        )
        answer = await completions.complete_request(model, service, request)
        return replace(answer, temperature=sampling.temperature or 1.0)


class ServedSessions:
    """Sessions that clients make and end; a request without one is a session of its own.

    Args:
        offer: what can be asked.
        source: answers.
        record: gets every answer as a JSON line.
    """

    def __init__(self, offer: Offer, source: ServiceSource, record: IO[str] | None = None) -> None:
        self._offer = offer
        self._source = source
        self._record = record
        self._serials = itertools.count()
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def find(self, identity: str | None) -> Session:
        """The session of that id, or a new one that is not kept."""
        if identity is None:
            return self._make("")
        if identity not in self._sessions:
            raise session_ended(identity)
        self._sessions.move_to_end(identity)
        return self._sessions[identity]

    def create(self) -> Session:
        """A session that is kept."""
        session = self._make(secrets.token_urlsafe(24))
        self._sessions[session.identity] = session
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def end(self, session: Session) -> None:
        """Forget a session; its open requests are cancelled."""
        self._sessions.pop(session.identity, None)
        session.close()

    def _make(self, identity: str) -> Session:
        session = Session(identity, self._offer, self._source, serials=self._serials)
        session.listener = self._note
        return session

    def _note(self, session: Session, turn: Turn) -> None:
        if self._record is not None:
            line = {"session": session.identity or None, **turn.as_json()}
            self._record.write(json.dumps(line) + "\n")
            self._record.flush()


@dataclass(frozen=True)
class Serving:
    """A server that runs: its address, what clients must send, and the names of the models."""

    base_url: str
    api_key: str
    models: list[str]


def token_of_environment() -> str | None:
    """The token that the environment gives; None: none.

    Raises:
        UsageError: it cannot be sent in a header.
    """
    token = os.environ.get(TOKEN, "")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise UsageError(f"{TOKEN} must be printable ASCII without spaces")
    return token or None


@contextmanager
def serving(
    saved: LoadedRun,
    host: str,
    port: int,
    *,
    token: str | None = None,
    parsers: Sequence[Parser] = (),
    call_parsers: Sequence[Parser] = (),
    record: IO[str] | None = None,
) -> Iterator[Serving]:
    """Serve the models of what was opened until the block ends.

    Args:
        saved: a run or a model folder.
        host: address to listen on.
        port: 0 takes a free one.
        token: what clients must send; None makes one.
        parsers: read the reasoning of replies.
        call_parsers: read the calls of replies.
        record: gets every answer as a JSON line.

    Raises:
        UsageError: the address cannot be used, or there are no language models.
        PluginError: the extra is not installed.
    """
    trainer = text_trainer(saved)
    listening = listening_socket(host, port)
    with closing(listening), closing(trainer.loaded_models()) as models:
        services = models.inference
        offer = Offer(
            tokenizers={name: service.tokenizer for name, service in services.items()},
            limits=TokenLimits.of(services),
            sampling=SamplingParams(max_new_tokens=_ANY_LENGTH, **trained_stops(saved)),
            parsers=parsers,
            call_parsers=call_parsers,
        )
        token = token or secrets.token_urlsafe(32)
        sessions = ServedSessions(offer, ServiceSource(services), record)
        with closing(Server(Application(sessions, token).build(), listening)) as server:
            server.start()
            shown = f"[{host}]" if ":" in host else host
            yield Serving(f"http://{shown}:{server.port}/v1", token, list(services))
