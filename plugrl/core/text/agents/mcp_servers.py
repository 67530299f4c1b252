"""Tools of MCP servers: a command that is started, or an address, asked through the ``mcp`` kit.

A server is connected to once in a process, by the first agent that names it, and serves all its
attempts. The connection lives in a thread of its own, since attempts come and go with their event
loops.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import importlib.util
import inspect
import tempfile
import threading
from collections.abc import Collection, Coroutine, Mapping, Sequence
from keyword import iskeyword
from typing import IO, Any

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.text.agents.tools import Tool

#: Seconds in which a server must have told of its tools.
STARTING_SECONDS = 60.0
#: Seconds in which it must have ended.
_ENDING_SECONDS = 10.0
_MISSING = 'mcp is not installed; run: pip install "plugrl[mcp]"'

#: Codes of JSON-RPC with which a server that is there refuses a request.
_REFUSALS = range(-32700, -32599)


class McpError(Exception):
    """A server refused a call, or its tool failed; the text is what it said."""


class McpServer:
    """The connection to one server, which is made anew where it was lost.

    Args:
        command: the program with its arguments; empty: ``url`` is asked.
        url: its address.
        environment: variables of the program, over those that are safe to inherit.
        folder: where the program runs.
    """

    def __init__(
        self,
        command: Sequence[str] = (),
        url: str = "",
        environment: Mapping[str, str] | None = None,
        folder: str = ".",
    ) -> None:
        self._command, self._url = tuple(command), url
        self._environment, self._folder = dict(environment or {}), folder
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._ending: asyncio.Event | None = None
        self._listed: list[Any] | None = None
        self._closing = False
        self._said = ""

    def tools(self, names: Sequence[str] = ()) -> list[Tool]:
        """The tools of the server; of ``names`` alone, if there are any.

        Raises:
            ConfigError: it does not answer, or has no tool of such a name.
        """
        if importlib.util.find_spec("mcp") is None:
            raise ConfigError(_MISSING)
        with self._lock:
            if self._listed is None:
                self._listed = self._list()
            found = {each.name: each for each in self._listed}
        lost = [name for name in names if name not in found]
        if lost:
            raise ConfigError(f"has no tool {lost[0]!r}; it has: {', '.join(found) or 'none'}")
        return [self._tool(found[name]) for name in names or found]

    def close(self) -> None:
        """End the connection, and the program."""
        loop, ending = self._loop, self._ending
        if loop is None or ending is None or not loop.is_running():
            return
        self._closing = True
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(ending.set)
        for thread in threading.enumerate():
            if thread.name == self._thread_name:
                thread.join(_ENDING_SECONDS)

    @property
    def _thread_name(self) -> str:
        return f"plugrl-mcp-{id(self)}"

    def _list(self) -> list[Any]:
        try:
            listed = self._run(self._list_all()).result(STARTING_SECONDS)
        except TimeoutError:
            self.close()
            raise ConfigError(f"told of no tools within {STARTING_SECONDS:g} seconds") from None
        except Exception as error:
            said = f"; it said: {self._said}" if self._said else ""
            raise ConfigError(f"cannot be asked for its tools: {_line(error)}{said}") from error
        return list(listed)

    async def _list_all(self) -> list[Any]:
        client = await self._connected()
        return list((await client.list_tools()).tools)

    def _tool(self, listed: Any) -> Tool:
        name, schema = listed.name, listed.input_schema or {"type": "object"}
        # Some parsers give arguments in their order.
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        order = [*required, *(each for each in properties if each not in required)]

        async def call(*given: Any, **named: Any) -> str:
            arguments = {**dict(zip(order, given, strict=False)), **named}
            return await asyncio.wrap_future(self._run(self._call(name, arguments)))

        if all(each.isidentifier() and not iskeyword(each) for each in order):
            call.__signature__ = _signature(order, required)  # type: ignore[attr-defined]
        return Tool(name, call, listed.description or "", schema)

    async def _call(self, name: str, arguments: dict[str, Any]) -> str:
        client = await self._connected()
        try:
            result = await client.call_tool(name, arguments)
        except Exception as error:
            if getattr(error, "code", None) not in _REFUSALS and self._ending is not None:
                # The connection is gone; the next call makes another.
                self._client = None
                self._ending.set()
            raise
        said = "\n".join(part.text for part in result.content if getattr(part, "text", None))
        if result.is_error:
            raise McpError(said or "it failed")
        return said

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do ``work`` in the thread of the connection."""
        if self._loop is None or not self._loop.is_running():
            self._closing = False
            ready = threading.Event()
            loop = asyncio.new_event_loop()

            def run() -> None:
                asyncio.set_event_loop(loop)
                loop.call_soon(ready.set)
                loop.run_forever()

            threading.Thread(target=run, name=self._thread_name, daemon=True).start()
            ready.wait()
            self._loop = loop
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _connected(self) -> Any:
        """The client, connected. One task opens and closes it, as its kit wants."""
        if self._client is None:
            connected: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._client = connected
            self._ending = asyncio.Event()
            self._task = asyncio.ensure_future(self._keep(connected, self._ending))
        return await asyncio.shield(self._client)

    async def _keep(self, connected: asyncio.Future[Any], ending: asyncio.Event) -> None:
        # What a program logs has no place between the lines of a run.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            try:
                async with self._make_client(log) as client:
                    connected.set_result(client)
                    await ending.wait()
            except Exception as error:
                self._said = _last_line(log)
                if not connected.done():
                    connected.set_exception(error)
            finally:
                if self._client is connected:
                    self._client = None
                if self._closing and self._loop is not None:
                    self._loop.call_soon(self._loop.stop)

    def _make_client(self, log: IO[str]) -> Any:
        # Optional, and typed by nothing that is always there.
        kit: Any = importlib.import_module("mcp")
        if not self._command:
            return kit.Client(self._url)
        program, *rest = self._command
        asked = kit.StdioServerParameters(
            command=program, args=rest, env=self._environment or None, cwd=self._folder
        )
        return kit.Client(kit.stdio_client(asked, errlog=log))


def _last_line(log: IO[str]) -> str:
    """The last line of what a program wrote."""
    log.seek(0)
    lines = [line.strip() for line in log if line.strip()]
    return lines[-1][:300] if lines else ""


def _signature(names: Sequence[str], required: Collection[str]) -> inspect.Signature:
    """The parameters of a tool, so that a call with others is refused before it is sent."""
    kind, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    defaults = {name: none if name in required else None for name in names}
    return inspect.Signature([inspect.Parameter(n, kind, default=defaults[n]) for n in names])


def _line(error: BaseException) -> str:
    """What is at the bottom of an error; task groups wrap it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return one_line(error)


_SERVERS: dict[tuple[Any, ...], McpServer] = {}
_MAKING = threading.Lock()


def server_of(
    command: Sequence[str], url: str, environment: Mapping[str, str], folder: str
) -> McpServer:
    """The server of these parameters in this process."""
    key = (tuple(command), url, tuple(sorted(environment.items())), folder)
    with _MAKING:
        if not _SERVERS:
            atexit.register(_close_all)
        if key not in _SERVERS:
            _SERVERS[key] = McpServer(command, url, environment, folder)
        return _SERVERS[key]


def _close_all() -> None:
    for server in _SERVERS.values():
        server.close()
