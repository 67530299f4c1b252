"""The inference service ``openai``: samples from a model behind a server of OpenAI's interface."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from plugrl.core.errors import ConfigError, PlugrlError, RunError
from plugrl.core.text.remote_calls import RemoteCalls
from plugrl.core.text.sampling import SamplingParams
from plugrl.core.text.services import (
    Completion,
    GenerationRequest,
    InferenceService,
    ModelSpec,
    Tokenizer,
)
from plugrl.plugins.openai import handshake, settings, wire
from plugrl.plugins.openai.transport import Again, Refused, Transport
from plugrl.plugins.openai.weights import (
    Call,
    Control,
    WeightFolder,
    check_loaded,
    label,
    sglang,
    vllm,
)
from plugrl.plugins.transformers.loading import load_tokenizer, tokenizer_findings
from plugrl.plugins.transformers.outline import context_length, vocabulary_size

if TYPE_CHECKING:
    import torch

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.config.view import ConfigView

logger = logging.getLogger(__name__)
Value = TypeVar("Value")
#: Seconds in which a server that cannot be reached is tried again when a run begins.
_AT_START = 3.0
_CONTROLS = {"vllm": vllm, "sglang": sglang}


class OpenAiInferenceService(InferenceService):
    """Sends token ids and gets token ids with log-probabilities, many requests at a time.

    The weights stay at the server; the source of the model gives the tokenizer alone. A server
    that gives text alone (engine ``generic``) serves models that are not trained.
    """

    Config: ClassVar[type] = settings.OpenAiConfig
    keeps_weights: ClassVar[bool] = False

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Settings that are missing or do not fit, and a source without a tokenizer."""
        yield from settings.findings(check)
        yield from tokenizer_findings(check)

    @classmethod
    def context_length(cls, source: ConfigView) -> int | None:
        """The longest sequence of the model, as its configuration says."""
        return context_length(source)

    def load(self, spec: ModelSpec) -> None:
        """Load the tokenizer and ask the server what it is, what it has and what it gives.

        Raises:
            ConfigError: tokenizer, key or model are wrong, or the server cannot do what is needed.
            RunError: the server cannot be reached.
        """
        self._tokenizer = load_tokenizer(spec)
        self._address = settings.address_of(self.config)
        self._transport = Transport(self._address)
        self._calls = RemoteCalls(
            "the server",
            self._address.base,
            health=f"{self._address.root}/health",
            timeout=math.inf,
            patience=self.config.patience,
            explain=lambda what, error: None,
        )
        self._reset()
        self._folder: WeightFolder | None = None
        self._told = False
        url = self._address.base
        found = handshake.look(self._cards(), self.config, url)
        self._engine = found.engine
        self._dialect = handshake.dialect_of(found, self.config, self._tokenizer)
        if spec.trained:
            handshake.check_trained(spec.name, found, self._dialect, url)
        self._vocabulary_size = vocabulary_size(spec.source, self._tokenizer)
        self._context = self._known_context(spec, found)
        self._try_out(spec, found)

    def _reset(self) -> None:
        """What belongs to the thread of the transport."""
        self._gate, self._idle = asyncio.Event(), asyncio.Event()
        self._gate.set()
        self._idle.set()
        self._restoring = asyncio.Lock()
        self._open = 0
        self._lost = False

    def _cards(self) -> Any:
        try:
            return self._wait("name its models", lambda: self._get("/models"))
        except Refused as error:
            if error.status in (404, 405):
                return None
            raise

    async def _get(self, path: str) -> Any:
        url = f"{self._address.base}{path}"
        return await self._transport.ask(
            "name its models", url, None, read=lambda answer: answer, patience=_AT_START
        )

    def _known_context(self, spec: ModelSpec, found: handshake.Found) -> int:
        limits = [self.config.max_context, found.context, context_length(spec.source)]
        known = [int(limit) for limit in limits if limit]
        if not known:
            raise ConfigError(
                f"models.{spec.name}.inference.max_context: neither the server nor the source says "
                "how long a sequence may be; set it"
            )
        return min(known) - self._dialect.reserve

    def _try_out(self, spec: ModelSpec, found: handshake.Found) -> None:
        """Ask for one token, so that whatever is wrong shows before anything else is done."""
        prompt = [self._tokenizer.eos_token_id] * 2
        one = SamplingParams(temperature=0.0, max_new_tokens=1)
        stream = (0, 0, 0, 0, 0)
        try:
            self.generate([GenerationRequest(prompt, one, stream)])
        except Refused as error:
            raise ConfigError(
                f"models.{spec.name}.inference: {error}; is {found.model!r} a model of it, and the "
                f"engine {found.engine}?"
            ) from error
        self.scores_prompts = self._dialect.exact
        if self._dialect.exact:
            none = SamplingParams(max_new_tokens=0)
            try:
                self.generate([GenerationRequest(prompt, none, stream, prompt_logprobs=True)])
            except (Refused, wire.Missing):
                self.scores_prompts = False

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self._tokenizer

    @property
    def vocabulary_size(self) -> int:
        """Token ids are below this number."""
        return self._vocabulary_size

    @property
    def max_sequence_length(self) -> int:
        """Prompt and answer together have at most this many tokens."""
        return self._context

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Answer all requests, in their order; each has a seed of its own, if the server has them.

        Raises:
            ConfigError: a prompt leaves no room in the context, the server cannot be asked for
                this, or it refuses the key.
            RunError: it fails, is silent, or does not answer in time.
        """
        prepared = [(request, self._prepared(request)) for request in requests]
        futures = [self._submit(request, body) for request, body in prepared]
        try:
            return [self._calls.result("answer a request", future) for future in futures]
        finally:
            for future in futures:
                future.cancel()

    async def complete(self, request: GenerationRequest) -> Completion:
        """Answer one request while others are served too; cancelling closes its connection.

        Raises:
            ConfigError: as :meth:`generate`.
            RunError: as :meth:`generate`.
        """
        future = self._submit(request, self._prepared(request))
        return await self._calls.awaited("answer a request", future)

    def close(self) -> None:
        """End open requests and the thread; a later request starts another."""
        self._transport.close()
        self._reset()

    def _prepared(self, request: GenerationRequest) -> dict[str, Any]:
        length, asked = len(request.prompt_tokens), request.sampling.max_new_tokens
        room = min(asked, self._context - length)
        if room < min(asked, 1):
            raise ConfigError(
                f"a prompt of {length} tokens fills the model's context of {self._context}; lower "
                "rollout_worker.max_prompt_length"
            )
        largest = max(request.prompt_tokens)
        if not 0 <= min(request.prompt_tokens) <= largest < self._vocabulary_size:
            raise ConfigError(
                f"a prompt has token {largest}, outside the vocabulary of {self._vocabulary_size} "
                "tokens"
            )
        return self._dialect.body(request, room)

    def _submit(self, request: GenerationRequest, body: dict[str, Any]) -> Future[Completion]:
        return self._transport.submit(lambda: self._answer(request, body))

    def _wait(self, what: str, work: Callable[[], Any]) -> Any:
        return self._calls.result(what, self._transport.submit(work))

    async def _answer(self, request: GenerationRequest, body: dict[str, Any]) -> Completion:
        await self._gate.wait()
        self._open += 1
        self._idle.clear()
        try:
            version = self.version
            answer = await self._transport.ask(
                "answer a request",
                self._dialect.url(self._address.base, self._address.root),
                body,
                read=lambda said: self._read(said, request, version),
                before=self._restored,
                lost=self._note_loss,
            )
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()
        return Completion(
            answer.tokens,
            answer.logprobs,
            answer.finish,
            version,
            prompt_logprobs=answer.prompt_logprobs if request.prompt_logprobs else None,
        )

    def _read(self, said: Any, request: GenerationRequest, version: int) -> wire.Answer:
        try:
            answer = self._dialect.read(said, request)
        except wire.Missing as error:
            raise wire.Missing(
                f"the server at {self._address.base} did not give {error}; {handshake.NEEDS}, or "
                "write engine: generic if nothing is trained on its answers"
            ) from None
        if answer.finish == "abort":
            raise Again("gave the request up, as it does when it is paused or stopped")
        loaded = self._folder is not None and self._folder.newest is not None
        current = {label(version), label(self.version)}
        if loaded and answer.weights is not None and answer.weights not in current:
            raise Again(f"samples from other weights ({answer.weights})", lost=True)
        self._compare(said, request)
        return answer

    def _compare(self, said: Any, request: GenerationRequest) -> None:
        """Say once that a server reads prompts in another way."""
        usage = said.get("usage") if isinstance(said, Mapping) else None
        count = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
        own = len(request.prompt_tokens)
        if self._dialect.exact or self._told or count is None or count == own:
            return
        self._told = True
        logger.warning(
            "the server at %s reads a prompt of %d tokens as %s: its tokenizer is another, or it "
            "adds special tokens",
            self._address.base, own, count,
        )  # fmt: skip

    # -- weights ------------------------------------------------------------------------------

    def score(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Log-probability of each token given the ones before it; 0.0 for the first.

        Raises:
            ConfigError: the server gives none of prompts, or of temperature 1 alone.
        """
        if not self.scores_prompts:
            raise ConfigError(
                f"the server at {self._address.base} gives no log-probabilities of prompts, which "
                "are needed here; use vLLM, SGLang or plugrl serve"
            )
        if temperature != 1 and self._engine != "plugrl":
            raise ConfigError(
                f"{self._engine} gives log-probabilities of prompts of temperature 1, and those of "
                f"{temperature:g} are needed; set rollout_worker.temperature=1"
            )
        return super().score(sequences, temperature)

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Write the weights to a folder, and let the server load it between two requests.

        Raises:
            ConfigError: this sort of server takes no weights.
            RunError: they cannot be written, or the server fails to load them.
        """
        if not self._dialect.takes_weights:
            raise ConfigError(
                f"the server at {self._address.base} (engine {self._engine}) takes no weights; use "
                "vLLM or SGLang for a model that is trained here"
            )
        if self._folder is None:
            self._folder = WeightFolder(self.config.weights_folder)
        folder = self._folder.write(weights, version)
        self._wait("load new weights", lambda: self._move(folder, version))
        self._folder.keep(folder)

    async def _move(self, folder: Path, version: int) -> None:
        frozen = self.config.freeze_for_weight_sync
        if frozen:
            self._gate.clear()
        try:
            if frozen:
                await self._drained()
            await self._load(folder, version)
            self.version, self._lost = version, False
        finally:
            self._gate.set()

    async def _drained(self) -> None:
        try:
            async with asyncio.timeout(self.config.timeout):
                await self._idle.wait()
        except TimeoutError:
            raise RunError(
                f"{self._open} requests to the server at {self._address.base} were open for "
                f"timeout={self.config.timeout:g} seconds when new weights were to be loaded; see "
                "its log"
            ) from None

    async def _load(self, folder: Path, version: int) -> None:
        control = _CONTROLS[self._engine](folder, version)
        frozen = self.config.freeze_for_weight_sync
        try:
            if frozen:
                await self._control(control, control.pause)
            for call in control.load:
                await self._control(control, call)
        except BaseException:
            if frozen:
                await self._resume_anyway(control)
            raise
        if frozen:
            await self._control(control, control.resume)

    async def _control(self, control: Control, call: Call, patience: float | None = None) -> None:
        url = f"{self._address.root}{call.path}"
        try:
            await self._transport.ask(
                "load new weights", url, call.body, read=check_loaded, patience=patience
            )
        except Refused as error:
            remedy = f"; {control.remedy}" if error.status in (404, 405, 501) else ""
            raise RunError(f"{error}{remedy}") from error

    async def _resume_anyway(self, control: Control) -> None:
        """Do not leave the server paused for others."""
        try:
            async with asyncio.timeout(_AT_START):
                await self._control(control, control.resume, patience=0.0)
        except (PlugrlError, TimeoutError) as error:
            logger.debug("the server could not be resumed: %s", error)

    def _note_loss(self) -> None:
        """The server may have been started anew, with the weights of its own folder."""
        self._lost = self._folder is not None and self._folder.newest is not None

    async def _restored(self) -> None:
        """Load the weights again into a server that was lost."""
        if not self._lost:
            return
        async with self._restoring:
            folder = None if self._folder is None else self._folder.newest
            if not self._lost or folder is None:
                return
            logger.warning(
                "the server at %s was lost; the weights of version %d are loaded into it again",
                self._address.base, self.version,
            )  # fmt: skip
            await self._load(folder, self.version)
            self._lost = False
