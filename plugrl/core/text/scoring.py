"""Log-probabilities of a batch's tokens under a model that is asked, such as a reference."""

from __future__ import annotations

import torch

from plugrl.core.errors import ConfigError
from plugrl.core.text.batch import Batch
from plugrl.core.text.reference import ReferenceScores
from plugrl.core.text.services import InferenceService


def score_batch(
    service: InferenceService, batch: Batch, rows: torch.Tensor | None = None
) -> torch.Tensor:
    """Log-probability of each trained token, [B, T], at its row's temperature; 0.0 elsewhere.

    Args:
        service: of the model that is asked.
        batch: its tokens, mask and temperature are read.
        rows: which rows to score, [B], true or false; None: all. Rows without a trained token
            never are.

    Raises:
        ConfigError: a token is outside the model's vocabulary.
    """
    some = (batch.values["loss_mask"] != 0).any(1)
    wanted = (some if rows is None else some & rows).nonzero().flatten()
    scores = torch.zeros(batch.values["loss_mask"].shape)
    if len(wanted):
        scores[wanted] = ReferenceScores(service).log_probs(batch.select(wanted), keep=False)
    return scores


def check_same_tokens(
    name: str, service: InferenceService, other_name: str, other: InferenceService, batch: Batch
) -> None:
    """Refuse a model whose tokens do not mean what those of another model do.

    Raises:
        ConfigError: a token of the batch is unknown to the model or stands for another text.
    """
    real = batch.values["attention_mask"] != 0
    ids = torch.unique(batch.values["input_ids"][real]).tolist()
    if ids[-1] >= service.vocabulary_size:
        raise ConfigError(
            f"model {name!r} has no token {ids[-1]}, which model {other_name!r} has; both must "
            "have the same tokenizer"
        )
    for token in ids[:1000]:
        mine, theirs = service.tokenizer.decode([token]), other.tokenizer.decode([token])
        if mine != theirs:
            raise ConfigError(
                f"token {token} is {theirs!r} for model {other_name!r} and {mine!r} for model "
                f"{name!r}; both must have the same tokenizer"
            )
