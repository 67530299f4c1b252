"""PPO's clipped losses of discrete actions and their gradients in NumPy, on the memory of torch.

For small minibatches on the CPU an operation of torch costs more than its numbers, and one of
NumPy about a third of that. All losses are one node of autograd here, whose gradients are written
by hand: with p the probabilities of the choices, H their entropy and i the action taken, the
gradient of log p_i by the logits is e_i - p, that of H is -p (log p + H).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plugrl.core.tensordict.discrete import Categorical
from plugrl.core.tensordict.fast_tanh import is_plain
from plugrl.trainers.objectives.actor_critic import refuse_second_derivative

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from plugrl.core.tensordict.distributions import ActionDistribution

    Array = np.ndarray[Any, np.dtype[np.floating[Any]]]

#: Added to the deviation of advantages, as in the losses that torch computes.
_LEAST_DEVIATION = 1e-8


@dataclass(frozen=True)
class ClippedOptions:
    """What the losses depend on besides the rows; see ``PpoObjective``."""

    clip_epsilon: float
    critic_coef: float
    entropy_eps: float
    normalize_advantage: bool
    clip_value: float | None


def suits(distribution: ActionDistribution, logits: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether :func:`clipped_losses` can be taken of these ``logits`` and values."""
    return (
        type(distribution) is Categorical
        and logits.ndim == 2
        and all(x.device.type == "cpu" and is_plain(x) for x in (logits, value))
        and torch.is_grad_enabled()
    )


def clipped_losses(
    distribution: ActionDistribution,
    logits: torch.Tensor,
    value: torch.Tensor,
    td: TensorDictBase,
    options: ClippedOptions,
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Losses, and metrics, of rows ``td [B]`` with ``logits [B, K]`` and ``value [B]``.

    Args:
        distribution: over K choices, for which :func:`suits` is true.
        logits: of the choices.
        value: of the observations.
        td: ``action``, ``action_log_prob``, ``advantage``, ``value_target`` and, with
            ``clip_value``, ``state_value``.
        options: of the losses.
    """
    assert isinstance(distribution, Categorical)
    count = len(logits)
    read = ["action_log_prob", "advantage", "value_target"]
    if options.clip_value is not None:
        read.append("state_value")
    columns = {name: td[name].detach().numpy().reshape(count) for name in read}
    columns["index"] = td["action"].numpy().reshape(count).astype(np.intp) - distribution.start
    metrics: dict[str, float] = {}
    losses = _Losses.apply(logits, value, columns, options, metrics)  # type: ignore[no-untyped-call]
    names = ("loss_objective", "loss_critic", "loss_entropy")
    return dict(zip(names, losses, strict=True)), metrics


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        value: torch.Tensor,
        columns: dict[str, Array],
        options: ClippedOptions,
        metrics: dict[str, float],
    ) -> tuple[torch.Tensor, ...]:
        numbers = logits.detach().numpy()
        objective, ctx.of_logits = _policy(numbers, columns, options, metrics)
        critic, ctx.of_value = _critic(value.detach().numpy(), columns, options)
        losses = (objective, critic, -options.entropy_eps * metrics["entropy"])
        ctx.entropy_eps = options.entropy_eps
        return tuple(torch.tensor(loss, dtype=logits.dtype) for loss in losses)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        refuse_second_derivative()
        objective, critic, entropy = (float(gradient) for gradient in gradients)
        of_objective, of_entropy = ctx.of_logits
        of_logits = of_objective * objective
        if ctx.entropy_eps:
            of_logits += of_entropy * (-ctx.entropy_eps * entropy)
        of_value = torch.from_numpy(ctx.of_value * critic)
        return torch.from_numpy(of_logits.T), of_value, None, None, None


def _policy(
    logits: Array, columns: dict[str, Array], options: ClippedOptions, metrics: dict[str, float]
) -> tuple[float, tuple[Array, Array]]:
    """The clipped objective, and the gradients ``[K, B]`` of it and of the mean entropy.

    A row for each choice, since few long rows are quicker than many short ones.
    """
    index, count = columns["index"], len(logits)
    rows = np.arange(count)
    logs = np.ascontiguousarray(logits.T)
    logs -= np.maximum.reduce(logs, 0)
    p = np.exp(logs)
    total = np.add.reduce(p, 0)
    p /= total
    logs -= np.log(total)
    # A logit of minus infinity has probability 0 and adds nothing to the entropy.
    np.maximum(logs, np.finfo(logs.dtype).min, out=logs)
    negative_entropy = np.add.reduce(p * logs, 0)
    advantage = columns["advantage"]
    if options.normalize_advantage and count > 1:
        advantage = advantage - _mean(advantage)
        deviation = math.sqrt(float(np.dot(advantage, advantage)) / (count - 1))
        advantage /= deviation + _LEAST_DEVIATION
    log_ratio = logs[index, rows]
    log_ratio -= columns["action_log_prob"]
    ratio = np.exp(log_ratio)
    # -min(r A, clip(r) A): the clipped term is never below -A - epsilon |A| and, where -r A is
    # not below that either, equal to it. At the bound itself torch's clamp has a gradient too.
    cost = ratio * advantage
    np.negative(cost, out=cost)
    floor = -options.clip_epsilon * np.abs(advantage)
    floor -= advantage
    slope = cost * (cost >= floor)
    slope /= count
    of_objective = p * slope
    np.negative(of_objective, out=of_objective)
    of_objective[index, rows] += slope
    logs -= negative_entropy
    of_entropy = np.multiply(p, logs, out=logs)
    of_entropy /= -count
    ratio -= 1
    metrics["kl"] = _mean(ratio) - _mean(log_ratio)
    outside = np.abs(ratio) > options.clip_epsilon
    metrics["clip_fraction"] = int(np.count_nonzero(outside)) / count
    metrics["entropy"] = -_mean(negative_entropy)
    return _mean(np.maximum(cost, floor)), (of_objective, of_entropy)


def _mean(x: Array) -> float:
    # Not x.mean(), which takes several times as long for few numbers.
    return float(np.add.reduce(x)) / len(x)


def _critic(
    value: Array, columns: dict[str, Array], options: ClippedOptions
) -> tuple[float, Array]:
    """The mean of the (larger) squared errors, weighted, and its gradient ``[B]``."""
    target = columns["value_target"]
    error = value - target
    counts: Any = 1.0
    worse = error
    if options.clip_value is not None:
        collected = columns["state_value"]
        near = np.clip(value, collected - options.clip_value, collected + options.clip_value)
        near -= target
        # Where the clipped value counts, it has moved too far for its gradient to be other than 0.
        counts = np.abs(error) >= np.abs(near)
        worse = np.where(counts, error, near)
    weight = options.critic_coef / len(value)
    loss = float(np.dot(worse, worse)) * weight
    return loss, error * counts * (2 * weight)
