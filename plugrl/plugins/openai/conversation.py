"""What goes on with one server: requests for tokens, and the weights that it samples from."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from plugrl.core.errors import PlugrlError, RunError
from plugrl.core.text.remote.calls import RemoteCalls
from plugrl.plugins.openai.transport import Address, Again, Refused, Transport
from plugrl.plugins.openai.weights import Call, Control, check_loaded, label

logger = logging.getLogger(__name__)
Value = TypeVar("Value")
#: What a request for tokens is called in messages, and one for new weights.
ANSWER, LOAD = "answer a request", "load new weights"
#: Seconds that a server which did not load new weights has to take up sampling again.
_RESUME = 3.0


class Conversation:
    """Requests to one server; none is open there while its weights move, if ``frozen``.

    Everything but the methods for other threads runs in the thread of the transport, so that
    nothing needs a lock.

    Args:
        address: of the server.
        frozen: let open requests end before weights move.
        check: called before each try; it raises where the server is known to be gone.
    """

    def __init__(
        self, address: Address, *, frozen: bool, check: Callable[[], None] | None = None
    ) -> None:
        self._address, self._frozen, self._check = address, frozen, check
        self._transport = Transport(address)
        # How long a request may take is counted from when it is sent; here it may wait for others.
        self.calls = RemoteCalls(
            "the server",
            address.base,
            health=f"{address.root}/health",
            timeout=math.inf,
            patience=address.patience,
            explain=lambda what, error: None,
        )
        self._version = 0
        self._loaded: Control | None = None
        self._reset()

    def _reset(self) -> None:
        self._gate, self._idle = asyncio.Event(), asyncio.Event()
        self._gate.set()
        self._idle.set()
        self._restoring = asyncio.Lock()
        self._open = 0
        self._lost = False

    # -- for other threads --------------------------------------------------------------------

    def get(self, path: str, *, patience: float) -> Any:
        """The JSON behind ``path`` of the OpenAI interface.

        Raises:
            PlugrlError: it cannot be had.
        """
        url, what = f"{self._address.base}{path}", "name its models"
        ask = self._transport.ask
        return self.calls.result(
            what,
            self._transport.submit(
                lambda: ask(what, url, None, read=lambda answer: answer, patience=patience)
            ),
        )

    def ask(
        self, url: str, body: dict[str, Any], read: Callable[[Any, int], Value]
    ) -> Future[Value]:
        """Send a request for tokens; ``read`` gets the answer and the version of the weights."""
        return self._transport.submit(lambda: self._ask(url, body, read))

    def move(self, control: Control, version: int) -> None:
        """Let the server load weights, whose version is ``version``.

        Raises:
            RunError: it does not load them, or requests do not end before.
        """
        self.calls.result(LOAD, self._transport.submit(lambda: self._move(control, version)))

    def switch_model(self, version: int) -> None:
        """Answers are those of another model from now on, whose version is ``version``."""
        self._version, self._loaded = version, None

    def close(self) -> None:
        """End open requests and the thread; a later request starts another."""
        self._transport.close()
        self._reset()

    # -- in the thread ------------------------------------------------------------------------

    async def _ask(
        self, url: str, body: dict[str, Any], read: Callable[[Any, int], Value]
    ) -> Value:
        await self._gate.wait()
        self._open += 1
        self._idle.clear()
        version = self._version
        try:
            return await self._transport.ask(
                ANSWER,
                url,
                body,
                read=lambda said: read(said, version),
                before=self._prepare,
                lost=self._note_loss,
            )
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    def check_weights(self, named: str | None, version: int) -> None:
        """Check the server's name for the weights of an answer to a request of ``version``.

        Raises:
            Again: they are not those that it was given.
        """
        if self._loaded is None or named in (None, label(version), label(self._version)):
            return
        raise Again(f"samples from weights that it calls {named!r}", lost=True)

    async def _move(self, control: Control, version: int) -> None:
        if self._frozen:
            self._gate.clear()
        try:
            if self._frozen:
                await self._wait_for_open()
            await self._load(control)
            self._version, self._loaded, self._lost = version, control, False
        finally:
            self._gate.set()

    async def _wait_for_open(self) -> None:
        try:
            async with asyncio.timeout(self._address.timeout):
                await self._idle.wait()
        except TimeoutError:
            raise RunError(
                f"{self._open} requests to the server at {self._address.base} were open for "
                f"timeout={self._address.timeout:g} seconds when new weights were to be loaded; "
                "see its log"
            ) from None

    async def _load(self, control: Control) -> None:
        try:
            if self._frozen:
                await self._control(control, control.pause)
            for call in control.load:
                await self._control(control, call)
        except BaseException:
            if self._frozen:
                await self._resume_anyway(control)
            raise
        if self._frozen:
            await self._control(control, control.resume)

    async def _control(self, control: Control, call: Call, patience: float | None = None) -> None:
        url = f"{self._address.root}{call.path}"
        try:
            await self._transport.ask(
                LOAD,
                url,
                call.body,
                read=check_loaded,
                before=self._check_server,
                patience=patience,
            )
        except Refused as error:
            remedy = f"; {control.remedy}" if error.status in (404, 405, 501) else ""
            raise RunError(f"{error}{remedy}") from error

    async def _resume_anyway(self, control: Control) -> None:
        """Do not leave the server paused for others."""
        try:
            async with asyncio.timeout(_RESUME):
                await self._control(control, control.resume, patience=0.0)
        except (PlugrlError, TimeoutError) as error:
            logger.debug("the server could not be resumed: %s", error)

    def _note_loss(self) -> None:
        """Assume that the server was restarted and has lost the trained weights."""
        self._lost = self._loaded is not None

    async def _check_server(self) -> None:
        if self._check is not None:
            self._check()

    async def _prepare(self) -> None:
        await self._check_server()
        await self._reload_weights()

    async def _reload_weights(self) -> None:
        """Load the weights again into a server that was lost."""
        if not self._lost:
            return
        async with self._restoring:
            if not self._lost or self._loaded is None:
                return
            logger.warning(
                "the server at %s was lost; the weights of version %d are loaded into it again",
                self._address.base, self._version,
            )  # fmt: skip
            await self._load(self._loaded)
            self._lost = False
