"""Distributions over actions that are one of several choices."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from plugrl.core.tensordict.agents.distributions.distribution import ActionDistribution, Array

#: Stands for the logarithm of 0, which times 0 is no number; a probability like this is 0 too.
_LEAST_LOG = -1e30


class Categorical(ActionDistribution):
    """One of ``count`` actions, numbered from ``start``; params are logits."""

    def __init__(self, count: int, start: int = 0) -> None:
        self.parameters = count
        self.start = start

    def log_prob(self, params: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        return _picked(functional.log_softmax(params, -1), self._index(action))

    def entropy(self, params: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        return _entropy(functional.log_softmax(params, -1))

    def log_prob_and_entropy(
        self, params: torch.Tensor, action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See the base class."""
        logs = functional.log_softmax(params, -1)
        return _picked(logs, self._index(action)), _entropy(logs)

    def rsample(
        self, params: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See the base class."""
        logs = functional.log_softmax(params, -1)
        probabilities = logs.detach().exp()
        # As torch.multinomial draws one, without its look at the probabilities, for which a GPU
        # would have to be waited for.
        noise = torch.empty_like(probabilities).exponential_(generator=generator)
        index = (probabilities / noise).argmax(-1)
        return index + self.start, _picked(logs, index)

    def divergence(self, params: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        logs, others = self.logits(params), self.logits(other)
        return (logs.exp() * (logs.clamp_min(_LEAST_LOG) - others.clamp_min(_LEAST_LOG))).sum(-1)

    def logits(self, params: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        return functional.log_softmax(params, -1)

    def mode(self, params: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        return params.argmax(-1) + self.start

    def sample_numpy(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """See the base class."""
        index, log_prob = _pick(params.T, rng)
        if self.start:
            index += self.start
        return index, log_prob

    def mode_numpy(self, params: Array) -> Array:
        """See the base class."""
        return np.asarray(params.argmax(-1) + self.start)

    def uniform_numpy(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """See the base class."""
        action = rng.integers(self.start, self.start + self.parameters, count)
        return action, np.full(count, -np.log(self.parameters), np.float32)

    def _index(self, action: torch.Tensor) -> torch.Tensor:
        index = action.long()
        return index - self.start if self.start else index


def _picked(logs: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return logs.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def _entropy(logs: torch.Tensor) -> torch.Tensor:
    # A logit of minus infinity has probability 0 and adds nothing.
    return -(logs.exp() * logs.clamp_min(_LEAST_LOG)).sum(-1)


def _pick(logits: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Indices and log-probabilities for ``logits [K, N]``; a row for each choice is quicker."""
    if len(logits) == 2:
        # The second of two choices has the probability that logistic noise is below its odds.
        odds = logits[1] - logits[0]
        second = rng.logistic(0.0, 1.0, len(odds)) < odds
        log_prob = np.logaddexp(_ZERO, np.where(second, -odds, odds))
        return second.astype(np.int64), np.negative(log_prob, log_prob)
    shifted = logits - np.maximum.reduce(logits, 0)
    cumulative = np.add.accumulate(np.exp(shifted), 0)
    total = cumulative[-1]
    # In float64 the product stays below the total; "or equal" skips what has probability 0.
    index = np.add.reduce(cumulative <= rng.random(len(total)) * total, 0)
    return index, shifted[index, np.arange(len(index))] - np.log(total)


_HALF, _ZERO = np.float32(0.5), np.float32(0)


class MultiCategorical(ActionDistribution):
    """Several independent choices; params are the logits of all, one choice after the other.

    Args:
        counts: how many there are to choose from, for each choice.
        starts: the number of each first one.
    """

    def __init__(self, counts: Array, starts: Array | None = None) -> None:
        self.action_shape = counts.shape
        self.counts = [int(count) for count in counts.reshape(-1)]
        self.parameters = sum(self.counts)
        starts = np.zeros_like(counts) if starts is None else np.broadcast_to(starts, counts.shape)
        self.starts = starts.reshape(-1)
        self._parts = [
            Categorical(count, int(start))
            for count, start in zip(self.counts, self.starts, strict=True)
        ]

    def _split(self, params: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(params, self.counts, -1)

    def divergence(self, params: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        parts = zip(self._parts, self._split(params), self._split(other), strict=True)
        return torch.stack([part.divergence(p, q) for part, p, q in parts]).sum(0)

    def log_prob(self, params: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        actions = action.reshape(*params.shape[:-1], len(self.counts)).unbind(-1)
        parts = zip(self._parts, self._split(params), actions, strict=True)
        return torch.stack([part.log_prob(p, a) for part, p, a in parts]).sum(0)

    def entropy(self, params: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        parts = zip(self._parts, self._split(params), strict=True)
        return torch.stack([part.entropy(p) for part, p in parts]).sum(0)

    def log_prob_and_entropy(
        self, params: torch.Tensor, action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See the base class."""
        actions = action.reshape(*params.shape[:-1], len(self.counts)).unbind(-1)
        parts = zip(self._parts, self._split(params), actions, strict=True)
        log_probs, entropies = zip(
            *(part.log_prob_and_entropy(p, a) for part, p, a in parts), strict=True
        )
        return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)

    def rsample(
        self, params: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See the base class."""
        parts = zip(self._parts, self._split(params), strict=True)
        drawn = [part.rsample(p, generator) for part, p in parts]
        action = torch.stack([each for each, _ in drawn], -1)
        return self._unflatten(action), torch.stack([each for _, each in drawn]).sum(0)

    def mode(self, params: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        parts = zip(self._parts, self._split(params), strict=True)
        return self._unflatten(torch.stack([part.mode(p) for part, p in parts], -1))

    def sample_numpy(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """See the base class."""
        drawn = [
            part.sample_numpy(p, rng)
            for part, p in zip(self._parts, self._split_numpy(params), strict=True)
        ]
        action = np.stack([each for each, _ in drawn], -1)
        log_prob: Array = sum(each for _, each in drawn)  # type: ignore[assignment]
        return action.reshape(-1, *self.action_shape), log_prob

    def mode_numpy(self, params: Array) -> Array:
        """See the base class."""
        parts = zip(self._parts, self._split_numpy(params), strict=True)
        action = np.stack([part.mode_numpy(p) for part, p in parts], -1)
        return action.reshape(-1, *self.action_shape)

    def uniform_numpy(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """See the base class."""
        drawn = [part.uniform_numpy(count, rng) for part in self._parts]
        action = np.stack([each for each, _ in drawn], -1).reshape(count, *self.action_shape)
        return action, np.sum([each for _, each in drawn], 0)

    def _split_numpy(self, params: Array) -> list[Array]:
        return np.split(params, np.cumsum(self.counts)[:-1], -1)


class Bernoulli(ActionDistribution):
    """Independent choices between 0 and 1; params are the log-odds of 1."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.action_shape = shape
        self.parameters = int(np.prod(shape))

    def log_prob(self, params: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        sign = 2 * action.reshape(params.shape).to(params.dtype) - 1
        return functional.logsigmoid(sign * params).sum(-1)

    def entropy(self, params: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        return (functional.softplus(params) - params * params.sigmoid()).sum(-1)

    def divergence(self, params: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        normalisers = functional.softplus(other) - functional.softplus(params)
        return (params.sigmoid() * (params - other) + normalisers).sum(-1)

    def rsample(
        self, params: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See the base class."""
        uniform = torch.rand(params.shape, generator=generator, device=params.device)
        action = self._unflatten((uniform < params.detach().sigmoid()).long())
        return action, self.log_prob(params, action)

    def mode(self, params: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        return self._unflatten((params > 0).long())

    def sample_numpy(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """See the base class."""
        ones = 2 * rng.random(params.shape) - 1 < np.tanh(params * _HALF)
        log_prob = -np.logaddexp(_ZERO, np.where(ones, -params, params)).sum(-1)
        return ones.astype(np.int64).reshape(-1, *self.action_shape), log_prob

    def mode_numpy(self, params: Array) -> Array:
        """See the base class."""
        return (params > 0).astype(np.int64).reshape(-1, *self.action_shape)

    def uniform_numpy(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """See the base class."""
        action = rng.integers(0, 2, (count, *self.action_shape))
        return action, np.full(count, -self.parameters * np.log(2), np.float32)
