"""The two services that a text trainer talks to: one samples from a model, one trains it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from plugrl.core.component import Component
from plugrl.core.text.sampling import SamplingParams
from plugrl.core.text.trajectory import FinishReason

if TYPE_CHECKING:
    import torch

    from plugrl.core.config.view import ConfigView
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.losses import WeightedLoss


class Tokenizer(Protocol):
    """What plugrl asks of a tokenizer."""

    pad_token_id: int
    eos_token_id: int

    def encode(self, text: str, /) -> list[int]:
        """Token ids of ``text``, without special tokens."""

    def decode(self, tokens: Sequence[int], /) -> str:
        """Text of ``tokens``, special tokens left out."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a service needs to load a model."""

    name: str
    source: ConfigView
    seed: int
    device: str


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request for a continuation of ``prompt_tokens``.

    ``stream`` is (seed, step, item, run, turn): it orders the requests of a lockstep round and
    seeds the request's own random numbers.
    """

    prompt_tokens: Sequence[int]
    sampling: SamplingParams
    stream: tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer: the sampled token ids with their log-probabilities under the sampler.

    The log-probabilities are those of the distribution that was sampled from, temperature
    included; ``version`` is the policy version that sampled all of them.
    """

    tokens: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    version: int


class InferenceService(Component, ABC):
    """Samples from one model."""

    version: int = 0

    @abstractmethod
    def load(self, spec: ModelSpec) -> None:
        """Load the model and its tokenizer.

        Raises:
            ConfigError: the source is missing or unreadable.
        """

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """Token ids are below this number."""

    @property
    @abstractmethod
    def max_sequence_length(self) -> int:
        """Prompt and answer together have at most this many tokens."""

    @abstractmethod
    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Answer all requests, in their order."""

    @abstractmethod
    def score(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Log-probability of each token given the ones before it; 0.0 for the first."""

    @abstractmethod
    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Take the weights of ``version``; a missing or extra name is a ``ValueError``."""


class TrainService(Component, ABC):
    """Trains one model: gradients are accumulated, then applied."""

    version: int = 0

    @abstractmethod
    def load(self, spec: ModelSpec) -> None:
        """Load the model and make its optimizer.

        Raises:
            ConfigError: the source is missing or unreadable.
        """

    @abstractmethod
    def compute_log_prob(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the batch's tokens, [B, T], 0.0 where ``loss_mask`` is 0."""

    @abstractmethod
    def forward_backward(self, batch: Batch, loss: WeightedLoss) -> dict[str, tuple[float, float]]:
        """Add the gradient of ``loss`` over ``batch``; returns metrics as (sum, count)."""

    @abstractmethod
    def optimizer_step(self) -> dict[str, float]:
        """Apply the accumulated gradient once; returns ``grad_norm`` and ``learning_rate``.

        A gradient that is not finite is dropped: nothing is applied, and the returned
        ``grad_norm`` says so.
        """

    @abstractmethod
    def weights(self) -> Mapping[str, torch.Tensor]:
        """The current weights by name."""

    @abstractmethod
    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights, for example by those of an earlier phase."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer and schedule."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
