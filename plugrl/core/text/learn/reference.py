"""Log-probabilities under frozen models: references, teachers, and what they said before."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.errors import ConfigError
from plugrl.core.text.batch import Batch, row_temperatures

if TYPE_CHECKING:
    from plugrl.core.text.inference.services import InferenceService
    from plugrl.core.text.models import Models


class ReferenceScores:
    """The log-probabilities of rows under a model whose weights never change.

    They are kept, and belong into the trainer's checkpoint: scored again beside other rows they
    may differ in the last bit.

    Args:
        service: samples from the model.
    """

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._kept: dict[str, torch.Tensor] = {}

    def log_probs(self, batch: Batch, *, keep: bool = True) -> torch.Tensor:
        """Log-probabilities at the batch's temperature, [B, T], 0.0 where ``loss_mask`` is 0.

        Args:
            batch: rows, padded on the right.
            keep: whether rows are looked up among those that were scored, and kept with them.
        """
        mask = batch.values["loss_mask"] != 0
        out = torch.zeros(mask.shape)
        kept = self._kept if keep else {}
        rows = _rows(batch)
        missing = {key: row for key, row in rows if key not in kept}
        kept.update(self._scored_rows(missing))
        for number, (key, _) in enumerate(rows):
            out[number, mask[number]] = kept[key]
        return out

    def _scored_rows(self, rows: Mapping[str, _Row]) -> dict[str, torch.Tensor]:
        found = {}
        for temperature in sorted({row.temperature for row in rows.values()}):
            some = {k: row for k, row in rows.items() if row.temperature == temperature}
            scores = self._service.score([row.tokens for row in some.values()], temperature)
            for (key, row), values in zip(some.items(), scores, strict=True):
                found[key] = torch.tensor(values, dtype=torch.float32)[row.trained]
        return found

    def state_dict(self) -> dict[str, Any]:
        """The kept numbers."""
        values = list(self._kept.values())
        return {
            "keys": list(self._kept),
            "lengths": torch.tensor([len(value) for value in values], dtype=torch.long),
            "values": torch.cat(values) if values else torch.zeros(0),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        parts = state["values"].split(state["lengths"].tolist())
        self._kept = dict(zip(state["keys"], map(torch.clone, parts), strict=True))


@dataclass(frozen=True)
class _Row:
    tokens: Sequence[int]
    trained: torch.Tensor
    temperature: float

    def key(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for part in (list(self.tokens), self.trained.tolist(), self.temperature):
            digest.update(repr(part).encode())
        return digest.hexdigest()


def _rows(batch: Batch) -> list[tuple[str, _Row]]:
    lengths = batch.values["attention_mask"].sum(1).tolist()
    ids = batch.values["input_ids"].tolist()
    trained = batch.values["loss_mask"] != 0
    each = row_temperatures(batch)
    rows = [_Row(ids[i][:n], trained[i, :n], each[i]) for i, n in enumerate(lengths)]
    return [(row.key(), row) for row in rows]


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

    def checked_service(self, name: str, batch: Batch) -> InferenceService:
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
            ConfigError: as :meth:`checked_service`, or a token is outside the model's vocabulary.
        """
        return score_batch(self.checked_service(name, batch), batch, rows)


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
