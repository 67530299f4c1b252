"""An HTTP server in a thread, on a socket that is bound before it starts."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import PluginError, RunError, UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette

#: What is missing without the extra, for a message.
MISSING = 'starlette and uvicorn are not installed; run: pip install "plugrl[serve]"'
#: Connections that may be open at once; more are refused.
_MOST_CONNECTIONS = 2048
#: Seconds that the server may take to start or to end.
_PATIENCE = 10.0
#: Seconds in which the headers of a request must have come.
HEADERS_SECONDS = 30.0


def is_installed() -> bool:
    """Whether what serves is installed."""
    return all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn"))


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0: a free one.

    Raises:
        UsageError: the address cannot be used.
    """
    if not host:
        # The system would take it for every address of the machine.
        raise UsageError("--host is empty; name an address, such as 127.0.0.1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_MOST_CONNECTIONS)
    except (OSError, OverflowError) as error:
        listening.close()
        said = getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot listen on {host} port {port}: {said}; take another --port, or 0 for a free one"
        ) from error
    return listening


def _protocol() -> Any:
    """The connections of uvicorn, each of which ends when headers begin and do not come."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):  # type: ignore[misc, unused-ignore]
        late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            # The next request may have begun to come meanwhile.
            if self.conn.trailing_data[0]:
                self._look()

        def _look(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self._expect_headers()
            else:
                self._forget()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _expect_headers(self) -> None:
            # A byte now and then gives no more time.
            if self.late is None:
                self.late = self.loop.call_later(HEADERS_SECONDS, self.transport.close)

        def _forget(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

    return Connection


class Server:
    """Serves an application until it is closed.

    Args:
        application: answers the requests.
        listening: a socket that listens already.

    Raises:
        PluginError: the extra is not installed.
    """

    def __init__(self, application: Starlette, listening: socket.socket) -> None:
        if not is_installed():
            listening.close()
            raise PluginError(MISSING)
        import uvicorn

        self.port: int = listening.getsockname()[1]
        self._listening = listening
        self._failure: BaseException | None = None
        config: Any = uvicorn.Config(
            application,
            http=_protocol(),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=1,
            limit_concurrency=_MOST_CONNECTIONS,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="plugrl-endpoint", daemon=True)

    def start(self) -> None:
        """Serve from now on.

        Raises:
            RunError: the server does not start.
        """
        self._thread.start()
        end = time.monotonic() + _PATIENCE
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > end:
                self.close()
                raise RunError(
                    f"the endpoint does not start ({self._failure or 'it takes too long'})"
                )
            time.sleep(0.005)

    @property
    def alive(self) -> bool:
        """Whether the server answers requests."""
        return self._thread.is_alive() and not self._server.should_exit

    def close(self) -> None:
        """End the server; returns within a bounded time, and nothing listens afterwards."""
        self._server.should_exit = True
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)
        self._listening.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._listening])
        except BaseException as error:
            # uvicorn leaves by SystemExit when it cannot start.
            self._failure = error
