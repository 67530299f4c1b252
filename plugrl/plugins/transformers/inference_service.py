"""The embedded engine: samples from a ``transformers`` model in this process."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import DynamicCache

from plugrl.core.config.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.batch import Batch
from plugrl.core.text.sampling import SamplingParams, stream_seeds, uniforms
from plugrl.core.text.services import Completion, GenerationRequest, InferenceService, ModelSpec
from plugrl.core.text.services import Tokenizer as TokenizerContract
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.forward import token_log_probs
from plugrl.plugins.transformers.loading import load_model, load_tokenizer


@dataclass
class TransformersInferenceConfig:
    """Options of the inference service ``transformers``."""

    max_batch_size: int = described(256, "sequences decoded at once")

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise ConfigError("max_batch_size must be at least 1")


class TransformersInferenceService(InferenceService):
    """Decodes batches over the model's key-value cache.

    Log-probabilities are those of the distribution that was sampled from: the model's at
    ``temperature``, before top-p cuts its tail. Greedy decoding reports them at temperature 1.
    """

    Config: ClassVar[type] = TransformersInferenceConfig

    def load(self, spec: ModelSpec) -> None:
        """Load the model and its tokenizer.

        Raises:
            ConfigError: the source cannot be used.
        """
        self._model = load_model(spec)
        # transformers 5.24 renamed the argument.
        accepted = inspect.signature(self._model.base_model.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"
        self._tokenizer = load_tokenizer(spec)
        self._device = spec.device

    @property
    def tokenizer(self) -> TokenizerContract:
        """The tokenizer of the model."""
        return self._tokenizer

    @property
    def vocabulary_size(self) -> int:
        """Token ids are below this number."""
        return int(self._model.config.vocab_size)

    @property
    def max_sequence_length(self) -> int:
        """Prompt and answer together have at most this many tokens."""
        return int(getattr(self._model.config, "max_position_embeddings", 2**31))

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Answer all requests, in their order."""
        answers: list[Completion | None] = [None] * len(requests)
        for numbers in self._batches(requests):
            batch = [requests[i] for i in numbers]
            for i, answer in zip(numbers, self._decode(batch), strict=True):
                answers[i] = answer
        return [answer for answer in answers if answer is not None]

    def _batches(self, requests: Sequence[GenerationRequest]) -> list[list[int]]:
        """Requests that share sampling parameters, in order, at most ``max_batch_size`` each."""
        alike: dict[SamplingParams, list[int]] = {}
        for i, request in enumerate(requests):
            alike.setdefault(request.sampling, []).append(i)
        size = self.config.max_batch_size
        return [
            numbers[start : start + size]
            for numbers in alike.values()
            for start in range(0, len(numbers), size)
        ]

    @torch.inference_mode()
    def _decode(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        sampling = requests[0].sampling
        prompts = list(dict.fromkeys(tuple(r.prompt_tokens) for r in requests))
        input_ids, mask = self._left_padded(prompts)
        limits = self._limits(requests)
        cache: Any = DynamicCache(config=self._model.config)
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        logits = self._forward(input_ids, mask, positions, cache)
        # The samples of a group share a prompt: it is computed once, then its cache is copied.
        number = {prompt: i for i, prompt in enumerate(prompts)}
        rows = torch.tensor([number[tuple(r.prompt_tokens)] for r in requests])
        rows = rows.to(self._device)
        if len(prompts) < len(requests):
            cache.batch_select_indices(rows)
        logits, mask, positions = logits[rows], mask[rows], positions[rows]
        seeds = stream_seeds([r.stream for r in requests])
        stops = torch.tensor(sampling.stop_token_ids, device=self._device)
        open_ = torch.ones(len(requests), dtype=torch.bool, device=self._device)
        stopped = torch.zeros_like(open_)
        tokens, logprobs = [], []
        last = int(limits.max()) - 1
        for position in range(last + 1):
            chosen, logprob = sample(logits, sampling, uniforms(seeds, position))
            tokens.append(torch.where(open_, chosen, -1))
            logprobs.append(logprob)
            stopped |= open_ & torch.isin(chosen, stops)
            open_ = ~stopped & (limits > position + 1)
            if position == last or not bool(open_.any()):
                break
            mask = torch.cat([mask, mask.new_ones(len(requests), 1)], 1)
            # Rows that are done may pass the end of the context; their answers are not read.
            positions = (positions[:, -1:] + 1).clamp_max(self.max_sequence_length - 1)
            logits = self._forward(chosen[:, None], mask, positions, cache)
        return self._completions(torch.stack(tokens, 1), torch.stack(logprobs, 1), ~stopped)

    def _limits(self, requests: Sequence[GenerationRequest]) -> torch.Tensor:
        """New tokens that each request may have, [B]: its own prompt's length counts, no other's.

        Raises:
            ConfigError: a prompt leaves no room in the model's context.
        """
        longest = max(len(request.prompt_tokens) for request in requests)
        context = self.max_sequence_length
        if longest >= context:
            raise ConfigError(
                f"a prompt of {longest} tokens fills the model's context of {context}; lower "
                "rollout_worker.max_prompt_length"
            )
        room = [
            min(request.sampling.max_new_tokens, context - len(request.prompt_tokens))
            for request in requests
        ]
        return torch.tensor(room, device=self._device)

    def _forward(
        self, input_ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """Logits of the last position, [B, V] in float32."""
        hidden = self._model.base_model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache_argument: cache},
        ).last_hidden_state[:, -1]
        logits: torch.Tensor = self._model.get_output_embeddings()(hidden).float()
        return logits

    def _left_padded(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(len(prompt) for prompt in prompts)
        ids = np.full((len(prompts), width), self._tokenizer.pad_token_id, dtype=np.int64)
        mask = np.zeros((len(prompts), width), dtype=np.int64)
        for i, prompt in enumerate(prompts):
            ids[i, width - len(prompt) :] = prompt
            mask[i, width - len(prompt) :] = 1
        return torch.from_numpy(ids).to(self._device), torch.from_numpy(mask).to(self._device)

    def _completions(
        self, tokens: torch.Tensor, logprobs: torch.Tensor, unfinished: torch.Tensor
    ) -> list[Completion]:
        lengths = (tokens >= 0).sum(1).tolist()
        rows = zip(tokens.tolist(), logprobs.tolist(), lengths, unfinished.tolist(), strict=True)
        return [
            Completion(ids[:n], values[:n], "length" if cut else "stop", self.version)
            for ids, values, n, cut in rows
        ]

    @torch.inference_mode()
    def score(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Log-probability of each token given the ones before it; 0.0 for the first."""
        batch = Batch.from_trajectories(
            [Trajectory(list(tokens), [1] * len(tokens)) for tokens in sequences],
            pad_token_id=self._tokenizer.pad_token_id,
        )
        values = {name: value.to(self._device) for name, value in batch.values.items()}
        scores = token_log_probs(
            self._model,
            values["input_ids"],
            values["attention_mask"],
            values["position_ids"],
            values["loss_mask"],
            temperature,
        ).tolist()
        return [row[: len(tokens)] for row, tokens in zip(scores, sequences, strict=True)]

    @torch.no_grad()
    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy ``weights`` into the model.

        Raises:
            ValueError: a name is missing, extra, or of another shape.
        """
        own = self._model.state_dict()
        if own.keys() != weights.keys():
            names = sorted(own.keys() ^ weights.keys())
            raise ValueError(f"weights of another model: {', '.join(names[:3])} and more differ")
        for name, target in own.items():
            target.copy_(weights[name])
        self.version = version


def sample(
    logits: torch.Tensor, sampling: SamplingParams, draws: np.ndarray[Any, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens by inverse transform of one uniform draw a row, and their log-probabilities.

    Args:
        logits: [B, V], float32.
        sampling: temperature and top-p.
        draws: [B], in [0, 1).
    """
    if sampling.temperature == 0:
        chosen = logits.argmax(-1)
        return chosen, _log_prob(logits, chosen)
    scaled = logits / sampling.temperature
    probs = scaled.double().softmax(-1)
    if sampling.top_p < 1:
        probs = _nucleus(probs, sampling.top_p)
    cumulative = probs.cumsum(-1)
    level = torch.from_numpy(draws).to(logits.device)[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, level, right=True)[:, 0]
    chosen = chosen.clamp_max(logits.shape[-1] - 1)
    return chosen, _log_prob(scaled, chosen)


def _log_prob(logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return logits.gather(-1, chosen[:, None])[:, 0] - logits.logsumexp(-1)


def _nucleus(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero the tail after the smallest set of tokens that holds ``top_p`` of the mass."""
    ordered, order = probs.sort(-1, descending=True)
    kept = ordered.cumsum(-1) - ordered < top_p
    return torch.zeros_like(probs).scatter(-1, order, torch.where(kept, ordered, 0.0))
