"""The optimizer step of text training, on one page.

A training step learns from its batch in optimizer steps (:func:`optimizer_steps`). Each of them has

1. its rows: a minibatch of whole units (:func:`minibatches`);
2. its denominator: weights per token over the whole optimizer step, however its rows are split into
   micro-batches (:func:`attach_loss_weights`);
3. its gradient: the loss of each micro-batch, masked and weighed by ``WeightedLoss``, adds its own
   (:func:`accumulate_gradient`, which a train service calls);
4. its guards: dumps, and a gradient that is not finite changes nothing;
5. its update: the gradient is clipped and AdamW steps (:func:`clip_and_step`, which a train service
   calls).

What is learned is not said here: a trainer prepares the batch, and its loss is a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from plugrl.core.errors import ConfigError
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.minibatches import (
    rows_of_units,
    splits,
    unit_count,
    with_their_units,
)
from plugrl.core.text.rollout.metrics import Means

if TYPE_CHECKING:
    from plugrl.core.run.guards import Guards
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.inference.services import TrainService
    from plugrl.core.text.learn.optimizer import AdamParams

Aggregation = Literal[
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
]
#: Sums of a loss and of its metrics, with their counts.
Totals = dict[str, tuple[float, float]]


def optimizer_steps(
    service: TrainService,
    parts: Iterable[Batch],
    loss: WeightedLoss,
    *,
    step: int,
    guards: Guards,
    dump_contents: Callable[[Batch, Mapping[str, tuple[float, float]]], Any],
) -> dict[str, float]:
    """Train on the minibatches ``parts``, one optimizer step each, and give their mean metrics.

    Args:
        service: has the model and its optimizer.
        parts: as :func:`minibatches` gives them; each is asked for when its turn has come, so that
            it may hold what depends on the weights.
        loss: with its coefficients and terms.
        step: the training step, for messages.
        guards: what to do where numbers are not finite, and which steps are dumped.
        dump_contents: gives what a dump needs to repeat one optimizer step.
    """
    means, steps = Means(), Means()
    for number, part in enumerate(parts):
        totals = service.forward_backward(part, loss)
        contents = partial(dump_contents, part, totals)
        # Before the optimizer step: these weights gave this loss.
        guards.keep(step, f"minibatch {number}", contents)
        report = service.optimizer_step()
        finite = guards.check_finite(
            "gradient norm", report["grad_norm"], step=step, batch=contents
        )
        means.add({name: pair for name, pair in totals.items() if name != "loss"})
        steps.add({name: (value, 1) for name, value in report.items()} if finite else {})
        steps.add({"loss": totals["loss"]} if finite else {"skipped": (1, 1)})
    return means.means() | steps.means()


# ------------------------------------------------------------------------- rows and denominator


def minibatches(
    batch: Batch,
    loss: WeightedLoss,
    *,
    passes: Any,
    seed: Sequence[int],
    weights: Callable[[torch.Tensor], torch.Tensor],
) -> Iterator[Batch]:
    """The rows of each optimizer step, with their loss weights.

    Args:
        batch: the rows of a training step.
        loss: decides which rows have no effect.
        passes: a ``PassesConfig``: how many passes, and optimizer steps in each.
        seed: what the order of rows depends on.
        weights: of each token in an optimizer step with this loss mask, [B, T].
    """
    for some in splits(passes, seed, unit_count(batch)):
        rows = rows_of_units(batch, torch.from_numpy(some))
        part = attach_loss_weights(batch.select(rows), loss, weights)
        if len(part):
            yield part


def attach_loss_weights(
    part: Batch, loss: WeightedLoss, weights: Callable[[torch.Tensor], torch.Tensor]
) -> Batch:
    """Give the tokens of an optimizer step their weights, then drop the rows without effect.

    The weights come first, so that what is dropped still counts in the denominator.
    """
    part.values[LOSS_WEIGHTS] = effect = weights(part.values["loss_mask"])
    if loss.skips_zero_advantage and "advantages" in part.values:
        effect = effect * part.values["advantages"]
    rows = with_their_units(part, effect.ne(0).any(1)).nonzero().flatten()
    return part if len(rows) == len(part) else part.select(rows)


def aggregation_weights(
    loss_mask: torch.Tensor, aggregation: Aggregation, norm_length: int | None = None
) -> torch.Tensor:
    """Weights w, [B, T], such that the aggregated loss is the sum of w times the per-token loss.

    With M the mask, N the number of rows that have a trained token, and L ``norm_length``:
    ``token-mean`` M / sum(M); ``seq-mean-token-mean`` M / (N * row sum);
    ``seq-mean-token-sum`` M / N; ``seq-mean-token-sum-norm`` M / (N * L) (Dr. GRPO,
    arXiv 2503.20783). Rows without a trained token do not count.

    Raises:
        ConfigError: the aggregation is unknown, or L is missing where it is needed.
    """
    check_aggregation(aggregation, norm_length)
    mask = loss_mask.to(torch.float32)
    per_row = mask.sum(1, keepdim=True)
    rows = (per_row > 0).sum().clamp_min(1)
    if aggregation == "token-mean":
        return mask / mask.sum().clamp_min(1)
    if aggregation == "seq-mean-token-mean":
        return mask / (per_row.clamp_min(1) * rows)
    if aggregation == "seq-mean-token-sum":
        return mask / rows
    if norm_length and aggregation == "seq-mean-token-sum-norm":
        return mask / (rows * norm_length)
    raise ConfigError(f"unknown aggregation {aggregation!r}")


def check_aggregation(aggregation: str, norm_length: int | None) -> None:
    """Refuse an aggregation without its length.

    Raises:
        ConfigError: ``norm_length`` is not set where the loss is divided by it.
    """
    if aggregation == "seq-mean-token-sum-norm" and not norm_length:
        raise ConfigError("aggregation seq-mean-token-sum-norm needs norm_length")


# ------------------------------------------------------------------------- gradient and update


def accumulate_gradient(
    forward_passes: Iterable[tuple[torch.Tensor, Batch]], loss: WeightedLoss
) -> Totals:
    """Add up the gradient of an optimizer step, micro-batch by micro-batch.

    Args:
        forward_passes: the log-probabilities of each micro-batch, [B, T] with their gradient, and
            the micro-batch; the next pass begins when the gradient of the last was taken.
        loss: its weights already hold the denominator, so that its values are added.

    Returns:
        The loss and its metrics as (sum, count).
    """
    totals, total_loss = Means(), 0.0
    for logp, part in forward_passes:
        value, metrics = loss(logp, part)
        # Rows without a trained token give no gradient.
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        total_loss += float(value.detach())
        totals.add(metrics)
    return totals.sums() | {"loss": (total_loss, 1.0)}


def clip_and_step(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.Tensor],
    adam: AdamParams,
    *,
    whole_norm: Callable[[torch.Tensor], torch.Tensor] = lambda norm: norm,
) -> tuple[dict[str, float], bool]:
    """Clip the gradient by its norm and step; one that is not finite is dropped.

    Args:
        optimizer: of these parameters.
        parameters: with their gradients.
        adam: the numbers of this step.
        whole_norm: gives the norm of the whole gradient, of that of ``parameters``, where other
            processes hold others.

    Returns:
        ``grad_norm`` before clipping and ``learning_rate``, and whether anything changed.
    """
    gradients = [each.grad for each in parameters if each.grad is not None]
    norm = whole_norm(torch.nn.utils.get_total_norm(gradients))
    torch.nn.utils.clip_grads_with_norm_(parameters, adam.grad_clip_norm, norm)
    finite = bool(torch.isfinite(norm))
    if finite:
        for group in optimizer.param_groups:
            group.update(betas=adam.betas, eps=adam.eps, weight_decay=adam.weight_decay)
            # Some optimizers keep it as a tensor, which their compiled code reads.
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(adam.learning_rate)
            else:
                group["lr"] = adam.learning_rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {"grad_norm": float(norm), "learning_rate": adam.learning_rate}, finite
