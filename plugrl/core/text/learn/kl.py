"""Estimates of the divergence from a reference model, and coefficients that hold it at a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch

from plugrl.core.estimators import k1, k2, k3

KlKind = Literal["kl", "abs", "mse", "low_var_kl"]
#: How far a batch may be off the target, as a share of it, in the eyes of the adaptive controller.
LARGEST_ERROR = 0.2


def kl_estimate(logp: torch.Tensor, reference: torch.Tensor, kind: KlKind) -> torch.Tensor:
    """The divergence KL(policy || reference) of each sampled token, in the shape of ``logp``.

    With x = logp - reference (J. Schulman, "Approximating KL divergence", 2020): ``kl`` is x, k1
    there; ``abs`` is |x|; ``mse`` is x^2 / 2, k2; ``low_var_kl`` is exp(-x) - 1 + x, k3.
    """
    logratio = reference - logp
    if kind == "kl":
        return k1(logratio)
    if kind == "abs":
        return logratio.abs()
    if kind == "mse":
        return k2(logratio)
    return k3(logratio)


def kl_loss(logp: torch.Tensor, reference: torch.Tensor, kind: KlKind) -> torch.Tensor:
    """:func:`kl_estimate` to be minimised, with a gradient that depends on the reference.

    The derivative of k1 is that of logp alone: in expectation it is 0 and moves nothing towards
    the reference. So ``kl`` has the value of k1 and the gradient of k2, x grad logp, which on
    samples of the policy is the gradient of the divergence itself.
    """
    if kind != "kl":
        return kl_estimate(logp, reference, kind)
    half_square = kl_estimate(logp, reference, "mse")
    return (logp - reference).detach() + half_square - half_square.detach()


class KlController(ABC):
    """The coefficient of a KL penalty in rewards."""

    value: float

    @abstractmethod
    def update(self, divergence: float, sequences: int) -> None:
        """Take note of a batch: its mean divergence a sequence, and its number of sequences."""

    @staticmethod
    def of(section: Any) -> KlController:
        """The controller that a section with ``controller`` and ``coefficient`` asks for."""
        if section.controller == "adaptive":
            return AdaptiveKl(section.coefficient, section.target, section.horizon)
        return FixedKl(section.coefficient)


class FixedKl(KlController):
    """A coefficient that stays."""

    def __init__(self, value: float) -> None:
        self.value = value

    def update(self, divergence: float, sequences: int) -> None:
        """Change nothing."""


class AdaptiveKl(KlController):
    """A coefficient that follows the divergence to a target (arXiv 1909.08593, section 2.2).

    After each batch it is multiplied by 1 + clip(divergence / target - 1, -0.2, 0.2) *
    sequences / horizon.
    """

    def __init__(self, value: float, target: float, horizon: int) -> None:
        self.value = value
        self._target = target
        self._horizon = horizon

    def update(self, divergence: float, sequences: int) -> None:
        """Raise the coefficient when the divergence is over the target, else lower it."""
        error = min(max(divergence / self._target - 1, -LARGEST_ERROR), LARGEST_ERROR)
        self.value *= 1 + error * sequences / self._horizon
