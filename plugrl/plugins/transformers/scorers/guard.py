"""The scorer ``guard``: a causal model that was trained to say whether a dialogue is safe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from plugrl.core.config.preflight import device_fault
from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.text.dialogue.dialogue import Dialogue, Part
from plugrl.core.text.dialogue.scorer import Score, Scorer, ScorerConfig
from plugrl.plugins.transformers.scorers.models import (
    Precision,
    context_of,
    folder_fault,
    has_parameter,
    in_batches,
    load_model_and_tokenizer,
    pad_with_mask,
)

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

_ROLES = {"tester": "user", "target": "assistant"}
#: Decimals of a score: those below depend on which dialogues are scored together.
_DECIMALS = 4
_CAUSAL = ("ForCausalLM", "LMHeadModel")
Row = tuple[int, ...]


@dataclass
class GuardScorerConfig(ScorerConfig):
    """Options of the scorer ``guard``."""

    reads: Part = described(
        "exchange", "what is judged: the last exchange, the last probe alone, or the whole dialogue"
    )
    path: str | None = described(
        None, "folder of a causal model with a chat template", file="folder"
    )
    unsafe: str = described("unsafe", "what the model says of a dialogue that went wrong")
    safe: str = described("safe", "what it says of one that did not")
    prefix: str = described(
        "", "what it says first, such as two line breaks, where its chat template does not write it"
    )
    device: str = described("auto", "auto, cpu, or such as cuda:1")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = described(
        "auto", "precision of the weights; auto: as they are saved"
    )
    batch_size: int = described(8, "dialogues that are judged at once", at_least=1, at_most=10**6)
    max_length: int | None = described(
        None,
        "longest dialogue in tokens, with its template; null: what the model reads",
        at_least=1,
        at_most=10**8,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ConfigError("path is missing; name the folder of a causal model")
        if self.reads == "response":
            raise ConfigError(
                "reads is response, and a guard must see what was answered to; write exchange"
            )
        if not self.safe or not self.unsafe or self.safe == self.unsafe:
            raise ConfigError("safe and unsafe must be two words")


class GuardScorer(Scorer):
    """How likely the model is to say ``unsafe`` rather than ``safe`` after its chat template.

    The value is p(unsafe) / (p(unsafe) + p(safe)), each the probability of the whole word. The
    tester speaks as the user, the target as the assistant. Of a dialogue that is too long the
    oldest exchanges are left out; one exchange that is too long has no score.
    """

    Config: ClassVar[type] = GuardScorerConfig

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """A folder without a causal model, and the device."""
        section = check.section
        fault = folder_fault(section.path, _CAUSAL, "causal language model")
        if fault:
            yield f"{check.path}.path", f"{section.path}: {fault}"
        device = None if section.device == "auto" else device_fault(section.device)
        if device:
            yield f"{check.path}.device", device

    def score(self, dialogues: Sequence[Dialogue]) -> list[Score]:
        """Score dialogues batch by batch, those of like lengths together.

        Raises:
            ConfigError: the model cannot be loaded, or has no chat template.
        """
        guard = self._guard
        rows = [guard.row(self._messages(dialogue)) for dialogue in dialogues]
        scores = [Score(failure=row) if isinstance(row, str) else Score() for row in rows]
        good = [i for i, score in enumerate(scores) if not score.failure]
        prompts = [row for row in rows if not isinstance(row, str)]
        for places in in_batches(prompts, self.config.batch_size):
            odds = guard.log_odds([prompts[place] for place in places])
            for place, number in zip(places, odds, strict=True):
                scores[good[place]] = _score(number)
        return scores

    def _messages(self, dialogue: Dialogue) -> list[dict[str, str]]:
        said = [{"role": _ROLES[who], "content": text} for who, text in dialogue.messages]
        if self.config.reads == "probe":
            last = max((i for i, m in enumerate(said) if m["role"] == "user"), default=-1)
            return said[last : last + 1] if last >= 0 else []
        return said[-2:] if self.config.reads == "exchange" else said

    @cached_property
    def _guard(self) -> _Guard:
        return _Guard(self.config)


def _score(log_odds: float) -> Score:
    if math.isnan(log_odds):
        return Score(failure="GuardScorer: the model gave a probability that is not finite")
    # Of the two forms of the logistic function, the one that does not overflow.
    small = math.exp(-abs(log_odds))
    value = (1.0 if log_odds >= 0 else small) / (1.0 + small)
    return Score(round(value, _DECIMALS))


class _Guard:
    """A loaded model, and its two verdicts as tokens."""

    def __init__(self, section: Any) -> None:
        from transformers import AutoModelForCausalLM

        fault = folder_fault(section.path, _CAUSAL, "causal language model")
        if fault:
            raise ConfigError(f"guard {section.path}: {fault}")
        precision: Precision = section.dtype
        self._model, self._tokenizer = load_model_and_tokenizer(
            AutoModelForCausalLM, section.path, section.device, precision
        )
        if not self._tokenizer.chat_template:
            raise ConfigError(f"guard {section.path}: its tokenizer has no chat template")
        self._prefix = section.prefix
        self._verdicts = [self._encode(word) for word in (section.unsafe, section.safe)]
        if not all(self._verdicts) or self._verdicts[0] == self._verdicts[1]:
            raise ConfigError(
                f"guard {section.path}: its tokenizer cannot tell {section.unsafe!r} from "
                f"{section.safe!r}"
            )
        added = self._tokenizer.added_tokens_decoder.values()
        self._special = sorted((str(token) for token in added if token.special), key=len)[::-1]
        context = context_of(self._model, self._tokenizer)
        self._limit = section.max_length or context
        if self._limit > context:
            raise ConfigError(
                f"guard {section.path}: max_length is {self._limit}, and it reads {context} tokens "
                "at most"
            )

    def _encode(self, text: str) -> Row:
        return tuple(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def row(self, messages: list[dict[str, str]]) -> Row | str:
        """The tokens of messages, of which the oldest may be left out; or why there are none."""
        room = self._limit - max(map(len, self._verdicts)) + 1
        tokens: Row = ()
        messages = [{**message, "content": self._plain(message["content"])} for message in messages]
        while messages:
            try:
                text = self._tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True
                )
            except Exception as error:
                return (
                    f"GuardScorer: the chat template cannot write the dialogue: {one_line(error)}"
                )
            tokens = self._encode(text + self._prefix)
            if tokens and len(tokens) <= room:
                return tokens
            # One exchange must be whole, or the verdict would be about something else.
            messages = messages[2:]
        if not tokens:
            return "GuardScorer: there is nothing to judge, since nothing was said"
        return (
            f"GuardScorer: the exchange has {len(tokens)} tokens with the chat template, and "
            f"{room} are read"
        )

    def _plain(self, text: str) -> str:
        """A message without special tokens, so that it cannot end its turn or begin the guard's."""
        for token in self._special:
            text = text.replace(token, " ")
        return text

    @torch.no_grad()
    def log_odds(self, prompts: Sequence[Row]) -> list[float]:
        """log p(unsafe) - log p(safe) after each prompt."""
        # All but the last token of a verdict; where verdicts are one token, their rows are one row.
        rows = list(dict.fromkeys(p + word[:-1] for p in prompts for word in self._verdicts))
        places = {row: number for number, row in enumerate(rows)}
        first = min(map(len, prompts)) - 1
        ids, mask = pad_with_mask(rows, 0, self._model.device)
        # The distributions before the verdicts would take most of the memory.
        few = has_parameter(self._model.forward, "logits_to_keep")
        options = {"logits_to_keep": ids.shape[1] - first} if few else {}
        logits = self._model(input_ids=ids, attention_mask=mask, use_cache=False, **options).logits
        start = first if few else 0
        logp = logits.float().log_softmax(-1)

        def says(prompt: Row, word: Row) -> float:
            row, at = places[prompt + word[:-1]], len(prompt) - 1 - start
            return float(sum(logp[row, at + i, token] for i, token in enumerate(word)))

        unsafe, safe = self._verdicts
        return [says(prompt, unsafe) - says(prompt, safe) for prompt in prompts]
