"""The embedded engine: samples from a ``transformers`` model in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.run.process.memory import within_memory
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.sampling import OPTIONS
from plugrl.core.text.inference.services import (
    AdapterWeights,
    InferenceService,
    LoadedModel,
    ModelSpec,
)
from plugrl.core.text.inference.tokenizer import Tokenizer as TokenizerContract
from plugrl.core.text.memory_advice import sampling_shortage
from plugrl.plugins.transformers.engine.compiling import StepCompiler
from plugrl.plugins.transformers.engine.decoding import Decoder
from plugrl.plugins.transformers.engine.grammars import GrammarCompiler
from plugrl.plugins.transformers.engine.request_rows import Row
from plugrl.plugins.transformers.engine.runner import Runner
from plugrl.plugins.transformers.engine.serving import ContinuousBatching, Serving, Turns
from plugrl.plugins.transformers.engine.streams import DecodeStream
from plugrl.plugins.transformers.loading import load_model, load_tokenizer, source_findings
from plugrl.plugins.transformers.outline import context_length, known_vocabulary
from plugrl.plugins.transformers.quantization import quantized_layers

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.config.view import ConfigView


@dataclass
class TransformersInferenceConfig:
    """Options of the inference service ``transformers``."""

    max_batch_size: int = described(256, "sequences decoded at once", at_least=1, at_most=10**6)
    compile: bool | Literal["auto"] = described(
        "auto",
        "layers of decode steps through torch.compile on a GPU; auto: in runs long enough to earn "
        "it back",
    )
    overlap: Literal["streams", "turns"] = described(
        "streams",
        "of decoding and training on one GPU in the async modes; streams: at the same time; turns: "
        "one kernel after the other",
    )


class TransformersInferenceService(InferenceService):
    """Decodes batches over the model's key-value cache.

    :meth:`generate` decodes its requests in lockstep. :meth:`complete` batches continuously: a
    request joins those that are being decoded. Both may be used at once, and weights may be
    updated meanwhile; that happens between two steps.
    """

    Config: ClassVar[type] = TransformersInferenceConfig
    loads_weights: ClassVar[bool] = True
    reads_weights_once: ClassVar[bool] = True
    sampling_options = OPTIONS
    #: Where the weights are that belong to a train service too, by name; empty: there are none.
    _shared: Mapping[str, int] = MappingProxyType({})
    _loaded: LoadedModel | None = None

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """A folder or configuration that makes no model."""
        yield from source_findings(check)

    @classmethod
    def context_length(cls, source: ConfigView) -> int | None:
        """The longest sequence of the model, as its configuration says."""
        return context_length(source)

    @classmethod
    def known_vocabulary(cls, source: ConfigView) -> int | None:
        """Token ids are below this number, as the model's configuration says."""
        return known_vocabulary(source)

    def load(self, spec: ModelSpec) -> None:
        """Load the model and its tokenizer.

        Raises:
            ConfigError: the source cannot be used.
            RunError: there is not the memory.
        """
        self._name = spec.name
        self._model, self._loaded = load_model(spec), spec.loaded
        self._quantized = quantized_layers(self._model)
        if self._quantized:
            # An adapter stays beside weights that would be rounded again.
            self.merges_adapters = True
        self._memory = None if spec.loaded is None else spec.loaded.memory
        self._tokenizer = load_tokenizer(spec)
        self._compiler = StepCompiler(
            self._model, spec.name, self.config.compile, spec.decode_steps
        )
        # Memory that training has in turns belongs to one stream, and nothing overlaps then.
        apart = self.config.overlap == "streams" and self._memory is None
        self._stream = DecodeStream(self._model.device, apart=apart)
        self._prepare()
        # Each look into a configuration of transformers costs microseconds.
        config = self._model.config
        self._vocabulary_size = int(config.vocab_size)
        self._context = int(getattr(config, "max_position_embeddings", 2**31))
        self._grammars = GrammarCompiler(self._tokenizer, self._vocabulary_size)
        if not self._grammars.usable:
            self.sampling_options = OPTIONS - {"grammar"}
        self._turns = Turns()
        self._starting = threading.Lock()
        self._continuous: ContinuousBatching | None = None

    def _prepare(self) -> None:
        """Make what knows where the weights are."""
        self._runner = Runner(self._model, self._tokenizer.pad_token_id, self._compiler)
        self._weights = self._model.state_dict()
        #: Decoders whose slots and captured steps are kept for the next requests.
        self._idle: list[Decoder] = []

    @property
    def tokenizer(self) -> TokenizerContract:
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
        """Answer all requests, in their order: equal requests give equal numbers.

        Raises:
            ConfigError: a prompt leaves no room in the context, or is outside the vocabulary.
            RunError: memory ran out.
        """
        rows = [self._row(request) for request in requests]
        with self._starting:
            decoder = self._idle.pop() if self._idle else self._decoder()
        serving = Serving(decoder, self.config.max_batch_size)
        serving.waiting.extend(rows)
        while serving.busy:
            with self._decoding():
                serving.advance(self.version)
        # After an error, nothing is known of a decoder.
        self._idle.append(decoder)
        return [row.completion(self.version) for row in rows]

    async def complete(self, request: GenerationRequest) -> Completion:
        """Answer one request among others; cancelling the task cancels it at the next step.

        Raises:
            ConfigError: the prompt leaves no room in the context, or is outside the vocabulary.
            RunError: the service was closed meanwhile, or memory ran out.
        """
        self._row(request)
        with self._starting:
            if self._continuous is None:
                self._continuous = ContinuousBatching(
                    self._row, self._serving, self._decoding_beside, lambda: self.version
                )
            continuous = self._continuous
        return await asyncio.wrap_future(continuous.submit(request))

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        """Have the model to oneself; memory that runs out is an error that says what to lower."""
        device = str(self._model.device)
        with self._turns.take(), within_memory(lambda: sampling_shortage(self._name, device)):
            yield

    @contextmanager
    def _decoding_beside(self) -> Iterator[None]:
        """:meth:`_decoding` on the stream for decoding, while another thread may train."""
        with self._decoding(), self._stream.decoding():
            yield

    def close(self) -> None:
        """End the thread that serves :meth:`complete`; a later request starts another."""
        with self._starting:
            continuous, self._continuous = self._continuous, None
        if continuous is not None:
            continuous.close()

    def share_weights(self, weights: Mapping[str, torch.Tensor]) -> bool:
        """Use these tensors as the model's own, where they are of its kind and device."""
        own = self._weights
        if not weights.keys() <= own.keys() or self._continuous is not None:
            return False
        for name, given in weights.items():
            mine = own[name]
            alike = (mine.dtype, mine.device, mine.shape) == (
                given.dtype, given.device, given.shape
            )  # fmt: skip
            if not alike:
                return False
        if self._held_pointers() != _pointers(weights):
            self._hold(weights)
        return True

    def _held_pointers(self) -> Mapping[str, int]:
        """Where shared weights are; they may have been loaded as such."""
        if self._loaded is not None and self._loaded.shared:
            self._shared = _pointers(self._weights)
        self._loaded = None
        return self._shared

    def _hold(self, weights: Mapping[str, torch.Tensor]) -> None:
        with self._turns.take(), self._stream.writing():
            for name, mine in self._model.state_dict(keep_vars=True).items():
                if name in weights:
                    mine.data = weights[name].detach()
            self._prepare()
            self._shared = _pointers(weights)

    @torch.no_grad()
    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy ``weights`` into the model, between two steps of what is being decoded.

        Nothing is copied of those that are shared.

        Raises:
            ValueError: a name is missing, extra, or of another shape.
        """
        own = self._weights
        whole = own.keys() | {f"{name}.weight" for name in self._quantized}
        if whole != weights.keys():
            names = sorted(whole ^ weights.keys())
            raise ValueError(f"weights of another model: {', '.join(names[:3])} and more differ")
        shared = self._held_pointers()
        if shared != {name: weights[name].data_ptr() for name in shared}:
            # Of somebody else: the owner of those that were shared must not get them.
            self._hold({name: tensor.clone() for name, tensor in weights.items()})
            own, self._shared = self._weights, {}
        with self._turns.take(), self._stream.writing():
            for name, target in own.items():
                if name not in self._shared:
                    target.copy_(weights[name])
            for name, layer in self._quantized.items():
                layer.load(weights[f"{name}.weight"])
            self._runner.refresh()
            self.version = version

    @torch.no_grad()
    def update_adapter(self, weights: AdapterWeights, version: int) -> None:
        """Take an adapter beside quantised weights, which are those that it is trained with.

        Into weights that are not quantised it is merged.

        Raises:
            ValueError: a name is missing, extra, or of another shape.
        """
        if not self._quantized:
            super().update_adapter(weights, version)
            return
        shared = self._held_pointers()
        merged = weights.merge(weights.frozen(), weights.products)
        with self._turns.take(), self._stream.writing():
            for name, target in self._weights.items():
                if name not in shared:
                    target.copy_(merged[name])
            added = [
                layer.add(weights.products[f"{name}.weight"])
                for name, layer in self._quantized.items()
                if f"{name}.weight" in weights.products
            ]
            if any(added):
                # Captured steps have nothing of it.
                self._idle.clear()
            self._runner.refresh()
            self.version = version

    def _serving(self) -> Serving:
        return Serving(self._decoder(), self.config.max_batch_size)

    def _decoder(self) -> Decoder:
        return Decoder(self._runner, self._memory)

    def _row(self, request: GenerationRequest) -> Row:
        """The request with the number of tokens that its answer has room for."""
        prompt, asked = request.prompt_tokens, request.sampling.max_new_tokens
        room = self._context - len(prompt)
        if room < min(asked, 1):
            raise ConfigError(
                f"a prompt of {len(prompt)} tokens fills the model's context of {self._context}; "
                "lower rollout_worker.max_prompt_length"
            )
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < self._vocabulary_size:
                raise ConfigError(
                    f"a prompt has token {token}, outside the vocabulary of "
                    f"{self._vocabulary_size} tokens"
                )
        grammar = request.sampling.grammar
        matcher = self._grammars.matcher(grammar) if grammar and asked else None
        return Row(request, min(asked, room), self._tokenizer.decode, matcher)


def _pointers(weights: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Where tensors are, by name."""
    return {name: tensor.data_ptr() for name, tensor in weights.items()}
