"""Log-probabilities of a batch's tokens under a model that is asked, such as a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from plugrl.core.errors import ConfigError
from plugrl.core.text.batch import Batch
from plugrl.core.text.inference.services import InferenceService
from plugrl.core.text.learn.reference import ReferenceScores

if TYPE_CHECKING:
    from plugrl.core.text.models import Models


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


class FrozenModels:
    """The models of a run that score tokens which others sampled, such as references and teachers.

    Args:
        models: those of the run.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._compared: set[tuple[str, str]] = set()

    def checked(self, name: str, batch: Batch) -> InferenceService:
        """The service of a model, whose tokens mean what those of the batch's model do.

        That is looked up on the first batch of each model.

        Raises:
            ConfigError: there is no such model, or the two have different tokens.
        """
        service, own = self._models[name].inference, batch.metadata["model"]
        if (name, own) not in self._compared:
            check_same_tokens(name, service, own, self._models[own].inference, batch)
            self._compared.add((name, own))
        return service

    def score(self, name: str, batch: Batch, rows: torch.Tensor | None = None) -> torch.Tensor:
        """:func:`score_batch` by the model of that name.

        Raises:
            ConfigError: as :meth:`checked`, or a token is outside the model's vocabulary.
        """
        return score_batch(self.checked(name, batch), batch, rows)


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
