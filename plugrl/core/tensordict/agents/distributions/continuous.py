"""Distributions over actions that are real numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from plugrl.core.tensordict.agents.distributions.distribution import ActionDistribution, Array

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2)
_CPU = torch.device("cpu")


class Normal(ActionDistribution):
    """Independent normal distributions; params are means and logarithms of deviations.

    The deviations do not depend on the observation. Actions are not bounded: log-probabilities
    are those of what was drawn, and :meth:`clip` gives what an environment may take.

    Args:
        low: lowest actions, infinite where there is no bound.
        high: highest actions.
    """

    action_dtype: np.dtype[Any] = np.dtype(np.float32)

    def __init__(self, low: Array, high: Array) -> None:
        self.low, self.high = low, high
        self.action_shape = low.shape
        self.size = int(np.prod(low.shape))
        self.parameters = 2 * self.size
        self.free_parameters = self.size
        self._bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())

    def _moments(self, params: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = torch.split(params, self.size, -1)
        return mean, log_std

    def _moments_numpy(self, params: Array) -> tuple[Array, Array]:
        return params[..., : self.size], params[..., self.size :]

    def log_prob(self, params: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        mean, log_std = self._moments(params)
        return _log_density((action.reshape(mean.shape) - mean) * (-log_std).exp(), log_std)

    def entropy(self, params: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        return (self._moments(params)[1] + (0.5 + _HALF_LOG_TAU)).sum(-1)

    def divergence(self, params: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """See the base class; what bends all actions alike leaves it as it is."""
        (mean, log_std), (to, to_log_std) = self._moments(params), self._moments(other)
        squares = (2 * log_std).exp() + (mean - to).square()
        return (to_log_std - log_std + squares * (-2 * to_log_std).exp() / 2 - 0.5).sum(-1)

    def rsample(
        self, params: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See the base class."""
        shape = (*params.shape[:-1], self.size)
        noise = torch.randn(shape, generator=generator, device=params.device, dtype=params.dtype)
        return self.moved(params, noise)

    def moved(self, params: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The actions that standard normal noise ``[..., size]`` makes, with log-densities.

        As :meth:`rsample`, for what has drawn the noise already.
        """
        mean, log_std = self._moments(params)
        return self._unflatten(mean + log_std.exp() * noise), _log_density(noise, log_std)

    def mode(self, params: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        return self._unflatten(self._moments(params)[0])

    def sample_numpy(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """See the base class."""
        mean, log_std = self._moments_numpy(params)
        noise = rng.standard_normal(mean.shape, np.float32)
        log_prob = -((0.5 * noise * noise + log_std).sum(-1)) - np.float32(
            self.size * _HALF_LOG_TAU
        )
        return (mean + np.exp(log_std) * noise).reshape(-1, *self.action_shape), log_prob

    def mode_numpy(self, params: Array) -> Array:
        """See the base class."""
        return self._moments_numpy(params)[0].reshape(-1, *self.action_shape).copy()

    def uniform_numpy(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Uniform within finite bounds; a number with an infinite one is standard normal."""
        shape = (count, *self.action_shape)
        finite = np.isfinite(self.low) & np.isfinite(self.high)
        # In float64, where the width of the widest bounds of float32 is finite.
        low = np.where(finite, self.low, 0).astype(np.float64)
        high = np.where(finite, self.high, 1).astype(np.float64)
        uniform = rng.uniform(low, high, shape)
        normal = rng.standard_normal(shape)
        logs = np.where(finite, -np.log(high - low), -0.5 * normal**2 - _HALF_LOG_TAU)
        action = np.where(finite, uniform, normal).astype(np.float32)
        return action, logs.reshape(count, -1).sum(-1).astype(np.float32)

    def clip(self, action: Array) -> Array:
        """See the base class."""
        return np.clip(action, self.low, self.high) if self._bounded else action


def _log_density(noise: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    """Of ``mean + exp(log_std) * noise`` under a normal distribution, over all numbers."""
    return -(0.5 * noise.square() + log_std + _HALF_LOG_TAU).sum(-1)


class SquashedNormal(Normal):
    """A normal distribution that a tanh bends into the bounds; params are as those of `Normal`.

    Deviations depend on the observation; their logarithms are kept within -20 and 2. Densities
    are those of the action itself, not of the tanh, so that they add up to 1 within the bounds.

    Attributes:
        log_scale: what the width of the bounds takes from log-densities: the density of the tanh
            is that of the action times ``exp(log_scale)``.
    """

    def __init__(self, low: Array, high: Array) -> None:
        super().__init__(low, high)
        self.free_parameters = 0
        flat_low, flat_high = low.reshape(-1), high.reshape(-1)
        self._middle, self._scale = (flat_low + flat_high) / 2, (flat_high - flat_low) / 2
        self.log_scale = float(np.log(self._scale.astype(np.float64)).sum())
        self._tensors = {_CPU: (torch.from_numpy(self._middle), torch.from_numpy(self._scale))}

    def _moments(self, params: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = torch.split(params, self.size, -1)
        return mean, log_std.clamp(-20, 2)

    def _moments_numpy(self, params: Array) -> tuple[Array, Array]:
        mean, log_std = super()._moments_numpy(params)
        return mean, np.clip(log_std, np.float32(-20), np.float32(2))

    def _on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        known = self._tensors.get(device)
        if known is None:
            middle, scale = self._tensors[_CPU]
            known = middle.to(device), scale.to(device)
            if not torch.compiler.is_compiling():  # there, they would be tensors of a tracer
                self._tensors[device] = known
        return known

    def log_prob(self, params: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Log-density of actions; at the very bounds that of a number just within them."""
        mean, log_std = self._moments(params)
        middle, scale = self._on(params.device)
        bent = ((action.reshape(mean.shape) - middle) / scale).clamp(-1 + 1e-6, 1 - 1e-6)
        straight = bent.atanh()
        inner = _log_density((straight - mean) * (-log_std).exp(), log_std)
        return inner - _log_slope(straight).sum(-1) - self.log_scale

    def entropy(self, params: torch.Tensor) -> torch.Tensor:
        """An estimate from one sample, which can be differentiated: there is no closed form."""
        return -self.rsample(params)[1]

    def moved(self, params: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See the base class."""
        mean, log_std = self._moments(params)
        straight = mean + log_std.exp() * noise
        middle, scale = self._on(params.device)
        log_prob = _log_density(noise, log_std) - _log_slope(straight).sum(-1) - self.log_scale
        return self._unflatten(middle + scale * straight.tanh()), log_prob

    def mode(self, params: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        middle, scale = self._on(params.device)
        return self._unflatten(middle + scale * self._moments(params)[0].tanh())

    def sample_numpy(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """See the base class."""
        mean, log_std = self._moments_numpy(params)
        noise = rng.standard_normal(mean.shape, np.float32)
        straight = mean + np.exp(log_std) * noise
        slope = 2 * (_LOG_2 - straight - np.logaddexp(np.float32(0), -2 * straight))
        terms = 0.5 * noise * noise + log_std + slope
        constant = np.float32(self.size * _HALF_LOG_TAU + self.log_scale)
        return self._bent(straight), -terms.sum(-1) - constant

    def mode_numpy(self, params: Array) -> Array:
        """See the base class."""
        return self._bent(self._moments_numpy(params)[0])

    def _bent(self, straight: Array) -> Array:
        action = self._middle + self._scale * np.tanh(straight)
        return self.clip(action.reshape(-1, *self.action_shape))


def _log_slope(straight: torch.Tensor) -> torch.Tensor:
    """``log(1 - tanh(x)^2)``, exact where the tanh has come to 1."""
    return 2 * (_LOG_2 - straight - functional.softplus(-2 * straight))
