"""Kahneman-Tversky Optimization (arXiv 2402.01306), equations 7 and 8.

With r = log p(answer) - log ref(answer), the sum over the answer's tokens, and z the reference
point: loss = w_d (1 - sigmoid(beta (r - z))) for a desirable answer and w_u (1 - sigmoid(beta
(z - r))) for an undesirable one. z estimates the divergence of the policy from the reference: the
mean of r over prompts with the answer to another prompt of the optimizer step, at least 0. It has
no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.component import traits
from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.text.batch import Batch, row_temperatures
from plugrl.core.text.learn.pairs import PREFERRED, on_last_token, preferred_rows, row_sums
from plugrl.core.text.trajectory import Trajectory
from plugrl.trainers.losses.preferences import fill_probe

if TYPE_CHECKING:
    from plugrl.core.text.learn.losses import LossOutput

#: Key of the reference point z in a batch's metadata, one number.
KL_REFERENCE = "kl_reference"


@dataclass
class KtoConfig:
    """Options of the loss ``kto``."""

    beta: float = described(
        0.1, "how strongly the policy is held to the reference", above=0, at_most=1000
    )
    desirable_weight: float = described(1.0, "weight of desirable answers", at_least=0, at_most=1e6)
    undesirable_weight: float = described(
        1.0, "weight of undesirable answers", at_least=0, at_most=1e6
    )

    def __post_init__(self) -> None:
        if not self.desirable_weight + self.undesirable_weight:
            raise ConfigError("desirable_weight and undesirable_weight must not both be 0")


def _fill_probe(probe: Batch, logp: torch.Tensor) -> None:
    fill_probe(probe, logp)
    # One step may hold answers of one kind only.
    probe.metadata[PREFERRED] = torch.arange(len(probe)) % 2


@traits(
    Config=KtoConfig,
    reads=("ref_log_probs", "preferred"),
    compares_pairs=False,
    needs_reference_point=True,
    fill_probe=_fill_probe,
)
def kto(logp: torch.Tensor, batch: Batch, config: Any) -> LossOutput:
    """The loss of each answer on its last trained token, [B, T].

    Raises:
        ContractError: the batch lacks preferences, the reference's log-probabilities or the
            reference point.
    """
    mask = batch.values["loss_mask"]
    desirable = preferred_rows(batch, "kto").to(logp.device)
    point = batch.metadata.get(KL_REFERENCE)
    if point is None:
        raise ContractError(
            "loss kto needs batch.metadata['kl_reference'], its reference point; take trainer "
            "self_hosted_dpo, or set the number in _prepare_batch"
        )
    logratio = row_sums(logp - batch.values["ref_log_probs"], mask)
    gap = config.beta * (logratio - point)
    weights = torch.where(desirable, config.desirable_weight, config.undesirable_weight)
    loss = weights * (1 - torch.sigmoid(torch.where(desirable, gap, -gap)))
    metrics = _metrics(gap, gap + config.beta * point, desirable, mask)
    rows = mask.ne(0).any(1).sum()
    metrics[KL_REFERENCE] = (rows * point, rows)
    return on_last_token(loss, mask), metrics


def _metrics(
    gap: torch.Tensor, rewards: torch.Tensor, desirable: torch.Tensor, mask: torch.Tensor
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    trained = mask.ne(0).any(1)
    right = trained & torch.where(desirable, gap > 0, gap < 0)
    metrics = {"accuracy": (right.sum(), trained.sum())}
    for name, rows in (("chosen", trained & desirable), ("rejected", trained & ~desirable)):
        metrics[f"reward_{name}"] = (rewards.detach()[rows].sum(), rows.sum())
    return metrics


def mismatched_batch(batch: Batch, limit: int) -> Batch | None:
    """Each prompt with the answer of the nearest row before it that was not given to this prompt.

    The last row comes before the first. A row's prompt is what stands before its first trained
    token; one that all answers of the batch were given to is left out. Sequences are cut at
    ``limit`` tokens; None: there is no such row, or nothing is left of the answers.
    """
    lengths = batch.values["attention_mask"].sum(1).tolist()
    ids, masks = batch.values["input_ids"].tolist(), batch.values["loss_mask"].tolist()
    rows = [(ids[i][:n], masks[i][:n], masks[i].index(1)) for i, n in enumerate(lengths)]
    matched = {tuple(tokens) for tokens, _, _ in rows}
    made, heat = [], row_temperatures(batch)
    for i, (tokens, _, start) in enumerate(rows):
        for answer, mask, other in (rows[i - back] for back in range(1, len(rows))):
            joined = tokens[:start] + answer[other:]
            if tuple(joined) in matched:
                continue
            made.append(
                Trajectory(
                    joined[:limit],
                    ([0] * start + mask[other:])[:limit],
                    model=batch.metadata["model"],
                    temperature=heat[i],
                )
            )
            break
    kept = [t for t in made if any(t.loss_mask)]
    if not kept:
        return None
    return Batch.from_trajectories(kept, pad_token_id=batch.metadata["pad_token_id"])
