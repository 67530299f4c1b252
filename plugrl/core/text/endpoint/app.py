"""The web application: addresses, tokens and bodies, around sessions."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.text.endpoint import answers, responses
from plugrl.core.text.endpoint.faults import ApiError, session_ended
from plugrl.core.text.endpoint.requests import EndpointRequest, read_chat, read_text
from plugrl.core.text.endpoint.session import Session

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

#: Bytes of a request's body.
MOST_BYTES = 8 * 2**20
#: Bytes of a body that is too long which are read before it is refused.
MOST_DISCARDED = 8 * MOST_BYTES
#: Seconds in which a body must have come.
BODY_SECONDS = 30.0
#: Requests of all sessions that may be open at once.
MOST_OPEN = 1024

Handler = Callable[["Request"], Awaitable["Response"]]


class Sessions(Protocol):
    """Where the application finds its sessions."""

    def find(self, identity: str | None) -> Session:
        """The session of that id; None: a request that belongs to none.

        Raises:
            ApiError: there is no such one, or one is needed.
        """

    def create(self) -> Session:
        """A new session.

        Raises:
            ApiError: clients cannot make sessions here.
        """

    def end(self, session: Session) -> None:
        """End a session that clients may end.

        Raises:
            ApiError: they may not.
        """


class Application:
    """Answers HTTP requests.

    Args:
        sessions: finds, makes and ends sessions.
        token: what clients must send as their bearer token.
    """

    def __init__(self, sessions: Sessions, token: str) -> None:
        self._sessions = sessions
        self._token = token.encode()
        self._open = 0

    def build(self) -> Starlette:
        """The application, for an ASGI server."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route

        routes = []
        for prefix in ("", "/sessions/{session}"):
            routes += [
                Route(f"{prefix}/v1/models", self._guard(self._models)),
                Route(f"{prefix}/v1/models/{{model:path}}", self._guard(self._models)),
                Route(
                    f"{prefix}/v1/chat/completions",
                    self._guard(self._answer_of(read_chat)),
                    methods=["POST"],
                ),
                Route(
                    f"{prefix}/v1/completions",
                    self._guard(self._answer_of(read_text)),
                    methods=["POST"],
                ),
                Route(
                    f"{prefix}/v1/responses",
                    self._guard(self._answer_of(responses.read_response, responses)),
                    methods=["POST"],
                ),
            ]
        routes += [
            Route("/sessions", self._guard(self._create), methods=["POST"]),
            Route("/sessions/{session}", self._guard(self._show), methods=["GET"]),
            Route("/sessions/{session}", self._guard(self._end), methods=["DELETE"]),
            Route("/health", _health),
        ]
        handlers: Any = {HTTPException: _http_error}
        return Starlette(routes=routes, exception_handlers=handlers)

    def _guard(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            try:
                self._authorize(request)
                if self._open >= MOST_OPEN:
                    raise ApiError(429, f"{MOST_OPEN} requests are open; wait for some of them")
                self._open += 1
                try:
                    return await handler(request)
                finally:
                    self._open -= 1
            except ApiError as error:
                return _refusal(error)
            except Exception as error:
                # The answer has the shape of every other one, and nothing goes to the terminal.
                return _refusal(ApiError(500, one_line(error), None, "internal_error"))

        return guarded

    def _authorize(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "replace")
        # Compared in constant time, whatever the scheme.
        right = secrets.compare_digest(given, self._token)
        if scheme.lower() != "bearer" or not right:
            raise ApiError(
                401, "the bearer token is missing or wrong; send it as the API key", None,
                "invalid_api_key",
            )  # fmt: skip

    def _session(self, request: Request) -> Session:
        identity = request.path_params.get("session") or request.headers.get("x-plugrl-session")
        return self._sessions.find(identity)

    async def _models(self, request: Request) -> Response:
        offer = self._session(request).offer
        names = [*offer.tokenizers, *offer.names]
        entries = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "plugrl",
                "max_model_len": offer.limits[offer.names.get(name, name)].context,
            }
            for name in names
        ]
        wanted = request.path_params.get("model")
        if wanted is None:
            return _json({"object": "list", "data": entries})
        for entry in entries:
            if entry["id"] == wanted:
                return _json(entry)
        raise ApiError(404, f"there is no model {wanted[:64]!r}", "model", "model_not_found")

    def _answer_of(
        self, read: Callable[[bytes], EndpointRequest], written: Any = answers
    ) -> Handler:
        """Answers requests that ``read`` reads as the module ``written`` writes answers."""

        async def answer(request: Request) -> Response:
            from starlette.responses import StreamingResponse

            session = self._session(request)
            data = await _body(request)
            asked = await asyncio.to_thread(read, data) if len(data) > 2**16 else read(data)
            choices = await _run_while_connected(
                request, _run_in_session_loop(session, session.answer(asked))
            )
            head = answers.AnswerHead(f"plugrl-{secrets.token_hex(12)}", int(time.time()))
            offer = session.offer
            spell = offer.tokenizers[offer.names.get(asked.model, asked.model)]
            if not asked.stream:
                return _json(written.answer_body(head, asked, choices, spell))
            stream = written.events(head, asked, choices, spell)
            headers = {"cache-control": "no-cache"}
            return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

        return answer

    async def _create(self, request: Request) -> Response:
        session = self._sessions.create()
        address = f"{request.url.scheme}://{request.url.netloc}/sessions/{session.identity}/v1"
        return _json({"id": session.identity, "object": "session", "base_url": address}, 201)

    async def _show(self, request: Request) -> Response:
        session = self._session(request)
        return _json({"id": session.identity, "object": "session", "turns": _turns(session)})

    async def _end(self, request: Request) -> Response:
        session = self._session(request)
        self._sessions.end(session)
        return _json({"id": session.identity, "object": "session", "deleted": True})


def _turns(session: Session) -> list[dict[str, Any]]:
    return [turn.as_json() for turn in list(session.recording.turns)]


async def _run_in_session_loop(session: Session, work: Coroutine[Any, Any, Any]) -> Any:
    """Do ``work`` in the event loop of the session."""
    if session.loop is None:
        try:
            return await work
        except asyncio.CancelledError:
            if session.closed:
                raise session_ended(session.identity) from None
            raise
    try:
        future = asyncio.run_coroutine_threadsafe(work, session.loop)
    except RuntimeError:
        work.close()
        raise session_ended(session.identity) from None
    session.waiting.add(future)
    try:
        if session.closed:
            future.cancel()
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if session.closed and future.cancelled():
            raise session_ended(session.identity) from None
        raise
    finally:
        session.waiting.discard(future)


async def _run_while_connected(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Do ``work`` as long as the client waits for it."""
    doing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        # Nobody reads what is sent; the status is for the sake of form.
        raise ApiError(400, "the client has gone")
    finally:
        watching.cancel()
        doing.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    """The body of a request, which must not be too long or too slow."""
    data = bytearray()
    length = 0
    announced = request.headers.get("content-length", "")
    large = announced.isdecimal() and (len(announced) > 18 or int(announced) > MOST_BYTES)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                length += len(chunk)
                large = large or length > MOST_BYTES
                # Read on for a while: who is refused in the middle of sending is not told why.
                if length > MOST_DISCARDED:
                    break
                if not large:
                    data += chunk
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {BODY_SECONDS:g} seconds") from None
    except Exception:
        raise ApiError(400, "the client has gone") from None
    if large:
        raise ApiError(413, f"the body has more than {MOST_BYTES} bytes", None, "body_too_large")
    return bytes(data)


def _json(value: dict[str, Any], status: int = 200) -> Response:
    from starlette.responses import Response

    text = json.dumps(value, ensure_ascii=False)
    return Response(text.encode("utf-8", "replace"), status, media_type="application/json")


def _refusal(error: ApiError) -> Response:
    response = _json(error.body(), error.status)
    # The answer to the same request would be the same; OpenAI's client asks again otherwise.
    if error.status != 429 or error.code is not None:
        response.headers["x-should-retry"] = "false"
    if error.status in (408, 413):
        response.headers["connection"] = "close"
    return response


async def _http_error(request: Request, error: Any) -> Response:
    message = f"{request.method} {request.url.path[:128]}: {error.detail}"
    return _refusal(ApiError(error.status_code, message, None, "no_such_address"))


async def _health(request: Request) -> Response:
    return _json({"status": "ok"})
