"""HTTP to a server: many requests at once over a thread of their own, tried again when it fails."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.plugins.user_code.error_location import one_line

if TYPE_CHECKING:
    import httpx

Value = TypeVar("Value")
#: Answers that another try may better.
_AGAIN = (408, 425, 429)
#: The first wait before another try, and the longest, in seconds; the second is twice the first.
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 20.0
_JSON = "application/json"
#: Seconds that opening a connection may take.
_CONNECT = 10.0
#: Seconds that closing waits for the thread.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Address:
    """A server and how it is spoken to.

    Attributes:
        base: where its OpenAI interface is, such as ``http://127.0.0.1:8000/v1``.
        key: sent as bearer token; "": none.
        key_name: the environment variable that the key is from.
        timeout: seconds that one try may take.
        patience: seconds after the first failure in which a request is tried again.
        connections: requests that may be open at once.
    """

    base: str
    key: str
    key_name: str
    timeout: float
    patience: float
    connections: int

    @property
    def root(self) -> str:
        """Where the server's other interfaces are."""
        return self.base.removesuffix("/v1")

    def redact(self, text: str) -> str:
        """``text`` without the key."""
        return text.replace(self.key, "<key>") if self.key else text


@dataclass(frozen=True)
class Content:
    """What is posted, and its content type."""

    data: bytes
    kind: str


class Again(Exception):
    """A failure that another try may better.

    Args:
        reason: what the server did.
        after: seconds that it asked to wait.
        lost: whether nothing listened, so that the server may have been started anew.
    """

    def __init__(self, reason: str, after: float | None = None, *, lost: bool = False) -> None:
        super().__init__(reason)
        self.after, self.lost = after, lost


class _Tries:
    """Ends the tries of one request when its patience is used up, and says how long to wait."""

    def __init__(self, patience: float) -> None:
        from tenacity import wait_random_exponential

        self._patience = patience
        self._backoff = wait_random_exponential(_FIRST_WAIT, _LONGEST_WAIT)
        self._failed: float | None = None
        self.count = 0

    def wait(self, state: Any) -> float:
        """Seconds before the next try: what the server asked for, or more after each failure."""
        asked = state.outcome.exception().after
        return float(self._backoff(state)) if asked is None else float(asked)

    def stop(self, state: Any) -> bool:
        """Whether the next try would begin too late."""
        now = time.monotonic()
        self.count += 1
        self._failed = now if self._failed is None else self._failed
        return now + self.wait(state) - self._failed > self._patience

    @property
    def seconds(self) -> float:
        """Seconds since the first failure."""
        return 0.0 if self._failed is None else time.monotonic() - self._failed


class Transport:
    """Posts JSON to one server; its event loop runs in a thread that the first request starts."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: httpx.AsyncClient | None = None
        self._room: asyncio.Semaphore | None = None

    def submit(self, work: Callable[[], Coroutine[Any, Any, Value]]) -> Future[Value]:
        """Run ``work()`` in the thread; cancelling the future cancels it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="plugrl: openai", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def close(self) -> None:
        """End what is open and the thread; a later request starts another."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), loop)
        thread.join(_PATIENCE)
        if not thread.is_alive():
            loop.close()

    async def _end(self) -> None:
        loop, own = asyncio.get_running_loop(), asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client, self._client, self._room = self._client, None, None
        if client is not None:
            await client.aclose()
        loop.stop()

    def _connect(self) -> tuple[httpx.AsyncClient, asyncio.Semaphore]:
        if self._client is None or self._room is None:
            import httpx

            own = self.address
            headers = {"authorization": f"Bearer {own.key}"} if own.key else {}
            most = httpx.Limits(
                max_connections=own.connections, max_keepalive_connections=own.connections
            )
            times = httpx.Timeout(None, connect=min(_CONNECT, own.timeout))
            self._client = httpx.AsyncClient(headers=headers, limits=most, timeout=times)
            self._room = asyncio.Semaphore(own.connections)
        return self._client, self._room

    async def ask(
        self,
        what: str,
        url: str,
        body: dict[str, Any] | Content | None,
        *,
        read: Callable[[Any], Value],
        before: Callable[[], Awaitable[None]] | None = None,
        lost: Callable[[], None] | None = None,
        patience: float | None = None,
    ) -> Value:
        """What ``read`` makes of the JSON that answers a POST of ``body``, or a GET without one.

        Each try sends the same bytes.

        Args:
            what: is asked for, in messages.
            url: whole address.
            body: the JSON to send, or something else.
            read: may raise :class:`Again` too.
            before: awaited before each try; what it raises ends the tries.
            lost: called when the server may have been started anew.
            patience: in place of the address's.

        Raises:
            ConfigError: the key is refused.
            RunError: the server fails, refuses the request or does not answer in time.
        """
        from tenacity import AsyncRetrying, retry_if_exception_type

        limit = self.address.patience if patience is None else patience
        tries = _Tries(limit)
        content = Content(json.dumps(body).encode(), _JSON) if isinstance(body, dict) else body
        again = retry_if_exception_type(Again)
        try:
            async for attempt in AsyncRetrying(
                retry=again, wait=tries.wait, stop=tries.stop, reraise=True
            ):
                with attempt:
                    if before is not None:
                        await before()
                    try:
                        return read(await self._once(what, url, content))
                    except Again as failure:
                        if failure.lost and lost is not None:
                            lost()
                        raise
        except Again as failure:
            raise self._give_up_error(what, url, failure, tries) from failure
        raise RunError(f"nothing was asked of {url}")

    def _give_up_error(self, what: str, url: str, failure: Again, tries: _Tries) -> RunError:
        asked = failure.after
        wait = "" if asked is None else f", and asks for {asked:g} seconds of waiting"
        spent = f" ({tries.count} tries in {tries.seconds:.0f} seconds)" if tries.count > 1 else ""
        remedy = (
            "check base_url and that the server runs, then start or resume the run"
            if failure.lost
            else "see the server's log, and lower connections if it is overloaded; then resume"
        )
        return RunError(
            f"the server at {url} {failure}{wait} while asked to {what}{spent}; {remedy}"
        )

    async def _once(self, what: str, url: str, content: Content | None) -> Any:
        import httpx

        client, room = self._connect()
        async with room:
            try:
                async with asyncio.timeout(self.address.timeout):
                    response = await client.request(
                        "GET" if content is None else "POST",
                        url,
                        content=None if content is None else content.data,
                        headers={} if content is None else {"content-type": content.kind},
                    )
            except TimeoutError:
                raise RunError(
                    f"the server at {url} did not {what} within timeout="
                    f"{self.address.timeout:g} seconds; raise the timeout, or resume when it is "
                    "less busy"
                ) from None
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                raise Again(_refused(error), lost=True) from error
            except httpx.RequestError as error:
                raise Again(f"broke its answer off ({one_line(error)[:200]})") from error
        return self._read(what, url, response)

    def _read(self, what: str, url: str, response: httpx.Response) -> Any:
        status = response.status_code
        if status in (401, 403):
            raise self._access_error(url, status)
        if status >= 500 or status in _AGAIN:
            raise Again(f"answers {status}{self._reason(response)}", _retry_after(response.headers))
        if status >= 300:
            raise Refused(
                f"the server at {url} answers {status} when asked to {what}"
                f"{self._reason(response)}",
                status,
            )
        try:
            return response.json() if response.content.strip() else None
        except ValueError:
            raise Again(f"answers what is no JSON{self._reason(response)}") from None

    def _access_error(self, url: str, status: int) -> ConfigError:
        name = self.address.key_name
        if not self.address.key:
            return ConfigError(
                f"the server at {url} wants a key ({status}), and the environment variable {name} "
                "is not set; set it, or name another in api_key"
            )
        return ConfigError(
            f"the server at {url} refuses the key of {name} ({status}); set that variable to a "
            "valid key"
        )

    def _reason(self, response: httpx.Response) -> str:
        """What an answer says of its failure, on one short line."""
        try:
            value = response.json()
            error = value.get("error", value)
            text = error.get("message", error.get("detail", "")) if hasattr(error, "get") else error
        except (ValueError, AttributeError):
            text = response.text
        line = " ".join(self.address.redact(str(text)).split())
        return f": {line[:300]}" if line else ""


class Refused(RunError):
    """The server refuses a request, and would again; ``status`` is its answer's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def _refused(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return f"cannot be reached ({' '.join(text.split())[:200]})"


def _retry_after(headers: Any) -> float | None:
    """The seconds of ``Retry-After``; a date, which is the header's other form, is not read."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
