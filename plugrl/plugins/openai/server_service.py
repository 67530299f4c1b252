"""The inference service ``server``: a server of vLLM or SGLang that the run starts itself."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from plugrl.core.errors import EngineLost, RunError
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.services import ModelSpec
from plugrl.plugins.openai import settings
from plugrl.plugins.openai.inference_service import OpenAiInferenceService
from plugrl.plugins.openai.server_process import ServerProcess
from plugrl.plugins.openai.transport import Address, Refused
from plugrl.plugins.transformers.loading import tokenizer_findings

if TYPE_CHECKING:
    import torch

    from plugrl.core.config.preflight import Finding, Preflight


class ServerInferenceService(OpenAiInferenceService):
    """What ``openai`` does, with a server that is started for it and ends with it.

    A server that ends, or gives no sign of life, is an ``EngineLost``: below the inference service
    ``ray`` another one takes over, and elsewhere the run ends and can be resumed.
    """

    Config: ClassVar[type] = settings.ServerConfig
    _process: ServerProcess | None = None
    _spec: ModelSpec
    #: Whether the server was ended by :meth:`close`, and not by a fault.
    _closed = False

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._starting = threading.Lock()

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """A command that starts no server, and what ``openai`` looks for."""
        yield from settings.server_findings(check)
        yield from tokenizer_findings(check)

    def load(self, spec: ModelSpec) -> None:
        """Start the server, wait until it answers, and ask it what it is and gives.

        Raises:
            ConfigError: the command or the tokenizer is wrong, or the server cannot do what is
                needed.
            RunError: the server ends, or does not answer in time.
        """
        self._stop_server()
        self._spec, self._closed = spec, False
        self._process = ServerProcess(self.config.command, f"the server of model {spec.name!r}")
        try:
            self._process.start(self.config.start_timeout)
            super().load(spec)
        except BaseException:
            self._stop_server()
            raise

    @property
    def process(self) -> ServerProcess:
        """The server, once the model is loaded."""
        assert self._process is not None, "no model is loaded"
        return self._process

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Answer all requests, in their order, as ``openai`` does.

        Raises:
            EngineLost: the server is gone, or gives no sign of life.
        """
        with self._losses():
            self._restart()
            return super().generate(requests)

    async def complete(self, request: GenerationRequest) -> Completion:
        """Answer one request while others are served too, as ``openai`` does.

        Raises:
            EngineLost: as :meth:`generate`.
        """
        with self._losses():
            if self._closed:
                await asyncio.to_thread(self._restart)
            return await super().complete(request)

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Have the server load weights between two requests, as ``openai`` does.

        Raises:
            EngineLost: as :meth:`generate`.
        """
        with self._losses():
            self._restart()
            super().update_weights(weights, version)

    def close(self) -> None:
        """End the server; a later request starts it anew, with the present weights."""
        super().close()
        self._closed = self._process is not None
        self._stop_server()

    def _restart(self) -> None:
        """Start the server again if it was closed."""
        if not self._closed:
            return
        with self._starting:
            if self._closed:
                folder, version = self._folder, self.version
                self.load(self._spec)
                self._restore(folder, version)

    def _stop_server(self) -> None:
        if self._process is not None:
            self._process.stop()

    def _find_address(self) -> Address:
        own = self.config
        base = f"{self.process.root}/v1"
        return Address(base, "", settings.DEFAULT_KEY, own.timeout, own.patience, own.connections)

    def _check_server(self) -> None:
        ended = self.process.ended()
        if ended:
            self._lose(ended)

    @contextlib.contextmanager
    def _losses(self) -> Iterator[None]:
        """What fails because the server is gone or silent is told as that."""
        try:
            yield
        except (EngineLost, Refused):
            raise
        except RunError as error:
            if self.process.is_healthy():
                raise
            self._lose(self.process.ended() or "gave no sign of life", error)

    def _lose(self, how: str, error: Exception | None = None) -> NoReturn:
        process = self.process
        raise EngineLost(
            f"{process.name} {how}; see {process.log}, then resume the run",
            f"lost its server, which {how} (see {process.log})",
        ) from error
