"""The inference service ``openai``: samples from a model behind a server of OpenAI's interface."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import InferenceService, ModelSpec
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.plugins.openai import handshake, settings, wire
from plugrl.plugins.openai.conversation import ANSWER, Conversation
from plugrl.plugins.openai.transport import Address, Again, Refused
from plugrl.plugins.openai.weights import WeightFolder, sglang, vllm
from plugrl.plugins.transformers.loading import load_tokenizer, tokenizer_findings
from plugrl.plugins.transformers.outline import context_length, known_vocabulary, vocabulary_size

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.config.view import ConfigView

logger = logging.getLogger(__name__)
#: What jobs of the fine-tuning service hand over, by this name.
MODEL = "model"
_CONTROLS = {"vllm": vllm, "sglang": sglang}


class OpenAiInferenceService(InferenceService):
    """Sends token ids and gets token ids with log-probabilities, many requests at a time.

    The weights stay at the server; the source of the model gives the tokenizer alone. A server
    that gives text alone (engines ``generic`` and ``chat``) serves models that are not trained.
    """

    Config: ClassVar[type] = settings.OpenAiConfig
    together = False
    keeps_weights: ClassVar[bool] = False
    _server: Conversation

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Settings that are missing or do not fit, and a source without a tokenizer."""
        yield from settings.findings(check)
        yield from tokenizer_findings(check)

    @classmethod
    def context_length(cls, source: ConfigView) -> int | None:
        """The longest sequence of the model, as its configuration says."""
        return context_length(source)

    @classmethod
    def known_vocabulary(cls, source: ConfigView) -> int | None:
        """Token ids are below this number, as the model's configuration says."""
        return known_vocabulary(source)

    def load(self, spec: ModelSpec) -> None:
        """Load the tokenizer and ask the server what it is, what it has and what it gives.

        Raises:
            ConfigError: tokenizer, key or model are wrong, or the server cannot do what is needed.
            RunError: the server cannot be reached.
        """
        self._tokenizer = load_tokenizer(spec)
        self._address = self._find_address()
        self._server = Conversation(
            self._address, frozen=self.config.freeze_for_weight_sync, check=self._check_server
        )
        self._folder: WeightFolder | None = None
        self._told = False
        url = self._address.base
        found = handshake.look(handshake.cards(self._server), self.config, url)
        self._engine = found.engine
        self._dialect = handshake.dialect_of(found, self.config, self._tokenizer)
        self.takes_weights = self._dialect.takes_weights
        self.stops_at_tokens = self._dialect.stops_at_tokens
        if spec.trained:
            handshake.check_trained(spec.name, found, self._dialect, url)
        self._vocabulary_size = vocabulary_size(spec.source, self._tokenizer)
        self._context = self._known_context(spec, found)
        self._try_out(spec, found)

    def _find_address(self) -> Address:
        """Where the server is."""
        return settings.address_of(self.config)

    def _check_server(self) -> None:
        """Raise where the server is known to be gone, so that it is asked no more."""

    def _known_context(self, spec: ModelSpec, found: handshake.ServerModel) -> int:
        limits = [self.config.max_context, found.context, context_length(spec.source)]
        known = [int(limit) for limit in limits if limit]
        if not known:
            raise ConfigError(
                f"models.{spec.name}.inference.max_context: neither the server nor the source says "
                "how long a sequence may be; set it"
            )
        return min(known) - self._dialect.reserve

    def _try_out(self, spec: ModelSpec, found: handshake.ServerModel) -> None:
        """Ask for one token, so that a wrong setting shows before anything else is done."""
        prompt = [self._tokenizer.eos_token_id] * 2
        one = SamplingParams(temperature=0.0, max_new_tokens=1)
        stream = (0, 0, 0, 0, 0)
        try:
            self.generate([GenerationRequest(prompt, one, stream)])
        except Refused as error:
            remedy = "" if found.listed else handshake.address_hint(self._address.base)
            ask = f"is {found.model!r} a model of it, and the engine {found.engine}?"
            raise ConfigError(f"models.{spec.name}.inference: {error}; {remedy or ask}") from error
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
        prepared = [(request, self._request_body(request)) for request in requests]
        futures = [self._submit(request, body) for request, body in prepared]
        try:
            return [self._server.calls.result(ANSWER, future) for future in futures]
        finally:
            for future in futures:
                future.cancel()

    async def complete(self, request: GenerationRequest) -> Completion:
        """Answer one request while others are served too; cancelling closes its connection.

        Raises:
            ConfigError: as :meth:`generate`.
            RunError: as :meth:`generate`.
        """
        future = self._submit(request, self._request_body(request))
        return await self._server.calls.result_async(ANSWER, future)

    def close(self) -> None:
        """End open requests and the thread; a later request starts another."""
        if hasattr(self, "_server"):
            self._server.close()

    def _request_body(self, request: GenerationRequest) -> dict[str, Any]:
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
        url = self._dialect.url(self._address.base, self._address.root)

        def read(said: Any, version: int) -> Completion:
            answer = self._read(said, request, version)
            return Completion(
                answer.tokens,
                answer.logprobs,
                answer.finish,
                version,
                prompt_logprobs=answer.prompt_logprobs,
            )

        return self._server.ask(url, body, read)

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
        self._server.check_weights(answer.weights, version)
        self._compare(said, request)
        return answer

    def _compare(self, said: Any, request: GenerationRequest) -> None:
        """Say once that a server reads prompts in another way."""
        usage = said.get("usage") if isinstance(said, Mapping) else None
        count = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
        own = len(request.prompt_tokens)
        unlike = not self._dialect.exact and self._dialect.counts_alike
        if not unlike or self._told or count is None or count == own:
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

    def use_saved_weights(self, path: str, version: int) -> None:
        """Sample from another model of the server, by its name, such as a fine-tuned one.

        Raises:
            ConfigError: this sort of server is not told which model to sample from.
        """
        if not self._dialect.names_model:
            raise ConfigError(
                f"the server at {self._address.base} (engine {self._engine}) samples from one "
                f"model and cannot be asked for {path}; use a server that has several"
            )
        self._dialect.model = path
        self._server.switch_model(version)
        self.version = version

    def import_weights(self, handed: Mapping[str, Any]) -> None:
        """Sample from the model that jobs of an earlier phase made, or take its weights."""
        if MODEL in handed:
            self.use_saved_weights(handed[MODEL], 0)
        else:
            super().import_weights(handed)

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
        self._move(folder, version)
        self._folder.keep(folder)

    def _move(self, folder: Path, version: int) -> None:
        self._server.move(_CONTROLS[self._engine](folder, version), version)
        self.version = version

    def _restore(self, written: WeightFolder | None, version: int) -> None:
        """Have a server that was started anew load the newest of what was written for another."""
        if written is not None and written.newest is not None:
            self._folder = written
            self._move(written.newest, version)
