"""The inference service ``tinker``: samples from a model that a Tinker API service keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.services import InferenceService, ModelSpec, TrainService
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.core.text.remote.connection import RemoteConnection
from plugrl.core.text.remote.settings import RemoteSettings
from plugrl.plugins.tinker import wire
from plugrl.plugins.tinker.connection import Connection, plain
from plugrl.plugins.transformers.loading import load_tokenizer, tokenizer_findings
from plugrl.plugins.transformers.outline import context_length, known_vocabulary, vocabulary_size

if TYPE_CHECKING:
    import torch

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.config.view import ConfigView

#: What a train service hands over to a sampler of the same service, by this name.
SAMPLER = "sampler"


@dataclass
class TinkerInferenceConfig(RemoteSettings):
    """Options of the inference service ``tinker``."""

    key_example: ClassVar[str] = Connection.default_key
    scheme: ClassVar[str] = "tinker://"

    model_path: str | None = described(
        None, "saved weights to begin with, a path of the service; null: the base model"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_path("model_path")


class TinkerInferenceService(InferenceService):
    """Sends token ids and gets token ids with log-probabilities.

    The weights stay at the service; the source of the model gives the tokenizer alone. Prompts
    that several requests of :meth:`generate` share are sent once.
    """

    Config: ClassVar[type] = TinkerInferenceConfig
    together = False
    keeps_weights: ClassVar[bool] = False
    connection: ClassVar[type[RemoteConnection]] = Connection
    #: The name of the services of this sort.
    vendor: ClassVar[str] = Connection.vendor

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Settings that are missing, and a source without a tokenizer."""
        yield from cls.connection.findings(check)
        yield from tokenizer_findings(check)
        yield from cls._trainer_findings(check)

    @classmethod
    def _trainer_findings(cls, check: Preflight) -> Iterator[Finding]:
        """A train service that keeps its weights elsewhere, or gives tensors."""
        name = check.path.split(".")[1]
        train = check.component(f"models.{name}.train")
        if train is None:
            return
        # Somebody's own remote service, which says nothing, may keep its weights at this one.
        unsaid = None if issubclass(train, TrainService) else cls.vendor
        if getattr(train, "vendor", unsaid) != cls.vendor:
            yield (
                f"models.{name}.train",
                f"{train.__name__} does not keep its weights at the service {cls.vendor}, from "
                f"which model {name!r} is sampled; write type: {cls.vendor} here, or the inference "
                f"service that belongs to it in {check.path}",
            )

    @classmethod
    def context_length(cls, source: ConfigView) -> int | None:
        """The longest sequence of the model, as its configuration says."""
        return context_length(source)

    @classmethod
    def known_vocabulary(cls, source: ConfigView) -> int | None:
        """Token ids are below this number, as the model's configuration says."""
        return known_vocabulary(source)

    def load(self, spec: ModelSpec) -> None:
        """Load the tokenizer, connect and ask for the model.

        Raises:
            ConfigError: the tokenizer, the key or the model's name is wrong.
            RunError: the service cannot be reached.
        """
        self._tokenizer = load_tokenizer(spec)
        self._connection = self.connection.shared(self.config)
        self._calls = self._connection.calls(self.config)
        context = self._connection.shortest_context(
            self.config, context_length(spec.source), self._calls
        )
        if context is None:
            raise ConfigError(
                f"models.{spec.name}.inference.max_context: neither the service nor the source "
                "says how long a sequence may be; set it"
            )
        self._context = context
        self._vocabulary_size = vocabulary_size(spec.source, self._tokenizer)
        path = self.config.model_path
        self._sampler = self._sampler_of(path)

    def _sampler_of(self, model_path: str | None = None) -> Any:
        client = self._connection.client
        chosen = (
            {"model_path": model_path} if model_path else {"base_model": self.config.base_model}
        )
        return self._calls.call(
            f"sample from {model_path or self.config.base_model}",
            lambda: client.create_sampling_client(**chosen),
        )

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
        """Answer all requests, in their order.

        Requests of one prompt are one call with the seed of the first of them.

        Raises:
            ConfigError: a prompt leaves no room in the context, or a parameter is unknown to the
                API.
            RunError: the service fails or is silent.
        """
        version = self.version
        groups = wire.group_by_prompt(requests)
        sent = [self._send(requests[group[0]], len(group)) for group in groups]
        answers: list[Completion | None] = [None] * len(requests)
        for group, future in zip(groups, sent, strict=True):
            response = self._calls.result("sample", future)
            found = self._completions(requests[group[0]], len(group), response, version)
            for number, completion in zip(group, found, strict=True):
                answers[number] = completion
        return [answer for answer in answers if answer is not None]

    async def complete(self, request: GenerationRequest) -> Completion:
        """Answer one request while others are served too; cancelling the task cancels it.

        Raises:
            ConfigError: as :meth:`generate`.
            RunError: as :meth:`generate`.
        """
        version = self.version
        response = await self._calls.result_async("sample", self._send(request, 1))
        return self._completions(request, 1, response, version)[0]

    def _send(self, request: GenerationRequest, count: int) -> Any:
        from tinker import types

        prompt = types.ModelInput.from_ints(list(request.prompt_tokens))
        room = self._room(request)
        if not request.sampling.max_new_tokens:
            return plain(self._sampler.compute_logprobs(prompt))
        sampling = wire.as_sampling(request.sampling, wire.seed_of(request), room)
        return plain(
            self._sampler.sample(
                prompt=prompt,
                num_samples=count,
                sampling_params=sampling,
                include_prompt_logprobs=request.prompt_logprobs,
            )
        )

    def _room(self, request: GenerationRequest) -> int:
        length = len(request.prompt_tokens)
        room = self._context - length
        if room < min(request.sampling.max_new_tokens, 1):
            raise ConfigError(
                f"a prompt of {length} tokens fills the model's context of {self._context}; lower "
                "rollout_worker.max_prompt_length"
            )
        largest = max(request.prompt_tokens)
        if largest >= self._vocabulary_size:
            raise ConfigError(
                f"a prompt has token {largest}, outside the vocabulary of {self._vocabulary_size} "
                "tokens"
            )
        return room

    def _completions(
        self, request: GenerationRequest, count: int, response: Any, version: int
    ) -> list[Completion]:
        length = len(request.prompt_tokens)
        if not request.sampling.max_new_tokens:
            scores = wire.prompt_logprobs_of(response, length)
            asked = scores if request.prompt_logprobs else None
            return [Completion([], [], "length", version, prompt_logprobs=asked)] * count
        scores = wire.prompt_logprobs_of(response.prompt_logprobs, length)
        return [
            wire.completion_of(sequence, request, version, self._tokenizer.decode, scores)
            for sequence in response.sequences[:count]
        ]

    def score(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Log-probability of each token given the ones before it; 0.0 for the first.

        Raises:
            ConfigError: the temperature is not 1, which is that of the service's numbers.
        """
        if temperature != 1:
            raise ConfigError(
                f"the {self.vendor} service gives log-probabilities of temperature 1, and those of "
                f"{temperature:g} are needed; set rollout_worker.temperature=1"
            )
        return super().score(sequences, temperature)

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> NoReturn:
        """Refuse tensors: the service keeps its weights.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"the inference service {self.vendor} takes no tensors; train its model with the train "
            f"service {self.vendor}, which has the same base_url"
        )

    def use_saved_weights(self, path: str, version: int) -> None:
        """Sample from the weights that the service keeps under ``path``."""
        self._sampler = self._sampler_of(model_path=path)
        self.version = version

    def import_weights(self, handed: Mapping[str, Any]) -> None:
        """Sample from what the train service ``tinker`` of an earlier phase handed over."""
        if SAMPLER not in handed:
            self.update_weights(handed, 0)
        self.use_saved_weights(handed[SAMPLER], 0)
