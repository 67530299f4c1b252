"""The scorer ``classifier``: a sequence classifier says how likely each of its labels is."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch

from plugrl.core.config.preflight import device_fault
from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.scorer import Score, Scorer, ScorerConfig
from plugrl.core.wording import did_you_mean
from plugrl.plugins.transformers.scorers.models import (
    context_of,
    folder_fault,
    folder_of,
    in_batches,
    load_model_and_tokenizer,
    pad_with_mask,
)

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

logger = logging.getLogger(__name__)
#: Decimals of a score: those below depend on which texts are scored together.
_DECIMALS = 4
Activation = Literal["auto", "softmax", "sigmoid"]
Combining = Literal["auto", "max", "sum", "mean"]
TooLong = Literal["cut_end", "cut_beginning", "fail"]
_CHOICES: dict[str, Any] = {"activation": Activation, "combine": Combining, "too_long": TooLong}


@dataclass
class ClassifierScorerConfig(ScorerConfig):
    """Options of the scorer ``classifier``."""

    path: str | None = described(None, "folder of a sequence classifier", file="folder")
    activation: Activation = described(
        "auto", "softmax: one label is right; sigmoid: each may be; auto: as its config.json says"
    )
    labels: list[str] = described(
        [], "labels that count, by the names in config.json; empty: all of a sigmoid's"
    )
    combine: Combining = described(
        "auto", "how the labels that count become one value; auto: sum of softmax, max of sigmoid"
    )
    device: str = described("auto", "auto, cpu, or such as cuda:1")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = described(
        "float32", "precision of the weights; auto: as they are saved"
    )
    batch_size: int = described(32, "texts that are scored at once", at_least=1, at_most=10**6)
    max_length: int | None = described(
        None, "longest text in tokens; null: what the model reads", at_least=1, at_most=10**8
    )
    too_long: TooLong = described(
        "cut_end", "what becomes of a longer text: a part of it is read, or it has no score"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ConfigError("path is missing; name the folder of a sequence classifier")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(f"{name} must be one of {', '.join(get_args(choices))}")
        if len(set(self.labels)) < len(self.labels):
            raise ConfigError("labels names one twice; name each once")


class ClassifierScorer(Scorer):
    """The probability of the labels that count; ``categories`` has that of every label.

    Checkpoints of Detoxify have one label for each kind of toxicity, of which several may be true.

    Attributes:
        truncated: how many texts were longer than the model reads, and were cut.
    """

    Config: ClassVar[type] = ClassifierScorerConfig

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.truncated = 0

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """A folder without a classifier, labels that it does not have, and the device."""
        section = check.section
        fault = folder_fault(section.path, "ForSequenceClassification", "sequence classifier")
        if fault:
            yield f"{check.path}.path", f"{section.path}: {fault}"
            return
        from transformers import AutoConfig

        try:
            header = AutoConfig.from_pretrained(folder_of(section.path), local_files_only=True)
            _Labels(header, section)
        except ConfigError as error:
            yield f"{check.path}.labels", str(error)
        device = None if section.device == "auto" else device_fault(section.device)
        if device:
            yield f"{check.path}.device", device

    def score(self, dialogues: Sequence[Dialogue]) -> list[Score]:
        """Score texts batch by batch, those of like lengths together.

        Raises:
            ConfigError: the classifier cannot be loaded, or has not the labels that count.
        """
        loaded = self._classifier
        rows, scores = self._rows(self.texts(dialogues))
        good = [i for i, score in enumerate(scores) if not score.failure]
        size = self.config.batch_size if loaded.pads else 1
        for places in in_batches([rows[i] for i in good], size):
            chosen = [good[place] for place in places]
            made = loaded([rows[i] for i in chosen])
            for i, probabilities in zip(chosen, made, strict=True):
                scores[i] = loaded.labels.score(probabilities)
        return scores

    def _rows(self, texts: Sequence[str]) -> tuple[list[list[int]], list[Score]]:
        """Tokens of texts, and why some of them cannot be scored."""
        loaded, limit = self._classifier, self._classifier.limit
        whole = [loaded.tokens(text) for text in texts]
        rows, scores, long = [], [], 0
        for text, row in zip(texts, whole, strict=True):
            failure = "" if row else "ClassifierScorer: the text is empty, without a single token"
            if len(row) > limit:
                long += 1
                if self.config.too_long == "fail":
                    failure = (
                        f"ClassifierScorer: the text has {len(row)} tokens, and {limit} are read"
                    )
                else:
                    row = loaded.tokens(text, limit)
            rows.append(row)
            scores.append(Score(failure=failure))
        if long and self.config.too_long != "fail":
            if not self.truncated:
                part = self.config.too_long.partition("_")[2]
                logger.warning(
                    "classifier %s: %d of %d texts are longer than the %d tokens that are read; "
                    "their %s was cut off, as will be that of later ones",
                    self.config.path, long, len(texts), limit, part,
                )  # fmt: skip
            self.truncated += long
        return rows, scores

    @cached_property
    def _classifier(self) -> _Classifier:
        return _Classifier(self.config)


class _Classifier:
    """A loaded model with its tokenizer and labels."""

    def __init__(self, section: Any) -> None:
        from transformers import AutoModelForSequenceClassification

        fault = folder_fault(section.path, "ForSequenceClassification", "sequence classifier")
        if fault:
            raise ConfigError(f"classifier {section.path}: {fault}")
        self._model, self._tokenizer = load_model_and_tokenizer(
            AutoModelForSequenceClassification, section.path, section.device, section.dtype
        )
        self.labels = _Labels(self._model.config, section)
        self._tokenizer.truncation_side = "left" if section.too_long == "cut_beginning" else "right"
        context = context_of(self._model, self._tokenizer)
        self.limit = section.max_length or context
        if self.limit > context:
            raise ConfigError(
                f"classifier {section.path}: max_length is {self.limit}, and it reads {context} "
                "tokens at most"
            )
        self._fill = self._model.config.get_text_config().pad_token_id
        # A decoder's classifier looks for the last token that is no padding.
        self.pads = self._fill is not None

    def tokens(self, text: str, limit: int | None = None) -> list[int]:
        """The tokens of a text with the special ones, cut to ``limit``."""
        options = {} if limit is None else {"truncation": True, "max_length": limit}
        return list(self._tokenizer(text, verbose=False, **options)["input_ids"])

    @torch.no_grad()
    def __call__(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """The probability of every label, for each row."""
        fill = 0 if self._fill is None else self._fill
        ids, mask = pad_with_mask(rows, fill, self._model.device)
        logits = self._model(input_ids=ids, attention_mask=mask).logits.float()
        made = logits.softmax(-1) if self.labels.softmax else logits.sigmoid()
        found: list[list[float]] = made.tolist()
        return found


class _Labels:
    """What the labels of a classifier are called, and which of them count.

    Raises:
        ConfigError: a label is not there, or several exclude each other and none is chosen.
    """

    def __init__(self, header: Any, section: Any) -> None:
        self.names = [str(header.id2label[i]) for i in range(header.num_labels)]
        kind = getattr(header, "problem_type", None)
        if kind == "regression" and section.activation == "auto":
            raise ConfigError(
                f"classifier {section.path} was trained for regression, so that its numbers are no "
                "probabilities; write activation: sigmoid if they are to be read as such"
            )
        several = kind == "multi_label_classification" or len(self.names) == 1
        self.softmax = section.activation == "softmax" or (
            section.activation == "auto" and not several
        )
        for name in section.labels:
            if name not in self.names:
                close = did_you_mean(name, self.names, 1)
                raise ConfigError(
                    f"classifier {section.path} has no label {name!r}{close}; it has: "
                    f"{', '.join(self.names)}"
                )
        if self.softmax and not section.labels:
            raise ConfigError(
                f"classifier {section.path} gives one of the labels {', '.join(self.names)}; say "
                f"which of them count, such as labels: [{self.names[-1]}], or write activation: "
                "sigmoid if several may be right at once"
            )
        self._counting = list(section.labels) or self.names
        self._combine = section.combine
        if self._combine == "auto":
            self._combine = "sum" if self.softmax else "max"

    def score(self, probabilities: Sequence[float]) -> Score:
        """The score of one text."""
        if not all(map(math.isfinite, probabilities)):
            return Score(failure="ClassifierScorer: the model gave a number that is not finite")
        by_name = dict(zip(self.names, probabilities, strict=True))
        own = [by_name[name] for name in self._counting]
        value = max(own) if self._combine == "max" else sum(own)
        value = value / len(own) if self._combine == "mean" else value
        categories = {name: round(number, _DECIMALS) for name, number in by_name.items()}
        return Score(round(value, _DECIMALS), categories)
