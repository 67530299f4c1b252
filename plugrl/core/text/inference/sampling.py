"""Sampling: its parameters, what ends an answer, and random numbers of the request alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plugrl.core.config.schemas.temperature import check_temperature
from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.chat import end_tokens

if TYPE_CHECKING:
    from plugrl.core.text.inference.tokenizer import Tokenizer

#: Bounds of OpenAI's interface, and of what is of use.
MOST_PENALTY = 2.0
LEAST_REPETITION, MOST_REPETITION = 0.01, 100.0
MOST_TOP_LOGPROBS = 20
#: What an engine may know besides the rest: see ``InferenceService.sampling_options``.
OPTIONS = frozenset(("min_p", "penalties", "grammar", "top_logprobs"))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one answer are drawn, and when it ends.

    Args:
        temperature: logits are divided by it; 0 is greedy.
        top_p: keep the smallest set of tokens that holds this much of the mass; 1 keeps all.
        top_k: keep the most probable tokens, this many; 0 keeps all. It comes before ``top_p``.
        max_new_tokens: the answer has at most this many; 0 asks for no token at all, which is of
            use with ``prompt_logprobs``.
        min_new_tokens: before this many, stop tokens cannot be drawn and stop strings do not end
            the answer.
        stop_token_ids: the answer ends with the first of them, which is kept.
        stop: the answer ends with the token that completes one of these strings in its text. It
            is kept whole, also where the string ends inside it.
        min_p: keep the tokens that have at least this part of the mass of the most probable one; 0
            keeps all. It comes before ``top_k``.
        presence_penalty: taken from the logit of each token that the answer holds.
        frequency_penalty: taken from the logit of a token as often as the answer holds it.
        repetition_penalty: the logits of tokens of prompt and answer are divided by it where they
            are positive, and multiplied otherwise; 1 changes nothing (Keskar et al., 2019).
        grammar: what the answer must be, in the Lark dialect of ``llguidance``; "": anything.
        top_logprobs: log-probabilities of so many most probable tokens are wanted at each place.

    Raises:
        ConfigError: a value is outside its range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    top_k: int = 0
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    grammar: str = ""
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; more than 0 and at most 1 is possible")
        if self.top_k < 0 or self.max_new_tokens < 0 or self.min_new_tokens < 0:
            each = ("top_k", "max_new_tokens", "min_new_tokens")
            name, value = next((n, v) for n in each if (v := getattr(self, n)) < 0)
            raise ConfigError(f"{name} is {value}; it cannot be negative")
        if self.min_new_tokens > self.max_new_tokens:
            raise ConfigError(
                f"min_new_tokens is {self.min_new_tokens}, more than max_new_tokens, which is "
                f"{self.max_new_tokens}"
            )
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"min_p is {self.min_p}; 0 to 1 is possible")
        for name in ("presence_penalty", "frequency_penalty"):
            if not abs(getattr(self, name)) <= MOST_PENALTY:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; -{MOST_PENALTY:g} to {MOST_PENALTY:g} is "
                    "possible"
                )
        if not LEAST_REPETITION <= self.repetition_penalty <= MOST_REPETITION:
            raise ConfigError(
                f"repetition_penalty is {self.repetition_penalty}; {LEAST_REPETITION:g} to "
                f"{MOST_REPETITION:g} is possible"
            )
        if not 0 <= self.top_logprobs <= MOST_TOP_LOGPROBS:
            raise ConfigError(
                f"top_logprobs is {self.top_logprobs}; 0 to {MOST_TOP_LOGPROBS} is possible"
            )
        if self.grammar and self.min_new_tokens:
            raise ConfigError(
                f"min_new_tokens is {self.min_new_tokens}, and a grammar says when an answer ends; "
                "set it to 0"
            )
        # Lists would make the parameters unhashable, and a string is a sequence of strings.
        if not isinstance(self.stop, tuple) or not all(
            isinstance(text, str) and text for text in self.stop
        ):
            raise ConfigError(f"stop is {self.stop!r}; a tuple of strings is expected, none empty")
        if not isinstance(self.stop_token_ids, tuple) or not all(
            isinstance(token, Integral) and not isinstance(token, bool) and token >= 0
            for token in self.stop_token_ids
        ):
            raise ConfigError(
                f"stop_token_ids is {self.stop_token_ids!r}; a tuple of token ids is expected"
            )

    @property
    def penalized(self) -> bool:
        """Whether tokens that were there before get other logits."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    @property
    def options(self) -> frozenset[str]:
        """Which of :data:`OPTIONS` are set, which not every engine knows."""
        used = {
            "min_p": self.min_p,
            "penalties": self.penalized,
            "grammar": self.grammar,
            "top_logprobs": self.top_logprobs,
        }
        return frozenset(name for name, value in used.items() if value)

    def ending_at(self, *tokens: int, texts: Sequence[str] = ()) -> SamplingParams:
        """The same parameters, with ``tokens`` and ``texts`` among those that end the answer."""
        if all(token in self.stop_token_ids for token in tokens) and not texts:
            return self
        return _ending_at(self, tokens, tuple(texts))


@lru_cache(maxsize=64)
def _ending_at(
    params: SamplingParams, tokens: tuple[int, ...], texts: tuple[str, ...]
) -> SamplingParams:
    # All attempts of a step ask with equal parameters.
    return replace(
        params,
        stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *tokens))),
        stop=tuple(dict.fromkeys((*params.stop, *texts))),
    )


def stop_texts(value: Sequence[str] | str) -> tuple[str, ...]:
    """The texts that a setting ``stop`` names, which may be one."""
    return (value,) if isinstance(value, str) else tuple(value)


def stops_of(section: Any) -> dict[str, Any]:
    """What a section such as ``rollout_worker`` says, as arguments of ``SamplingParams``."""
    return {
        "stop": stop_texts(section.get("stop") or ()),
        "stop_token_ids": tuple(section.get("stop_token_ids") or ()),
    }


def ending(sampling: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """``sampling`` with what the folder of a model says of the ends of its answers besides.

    It is what ``generate`` of ``transformers`` stops at: the end tokens and ``stop_strings``.
    """
    texts: Sequence[str] = getattr(tokenizer, "stop_strings", ())
    return sampling.ending_at(*end_tokens(tokenizer), texts=texts)


def unfit_stop_token(tokens: Sequence[int], model: str, vocabulary: int | None) -> str:
    """Why a model never says one of ``tokens``; empty: it may say them all.

    Args:
        tokens: that end an answer.
        model: its name.
        vocabulary: its tokens are below this number; None: it is not known.
    """
    beyond = [token for token in tokens if vocabulary is not None and token >= vocabulary]
    if not beyond:
        return ""
    return (
        f"has {beyond[0]}, and model {model!r} has tokens 0 to {int(vocabulary or 0) - 1}; write "
        "one of them, or the text in stop"
    )


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def stream_seeds(streams: Sequence[tuple[int, ...]]) -> npt.NDArray[np.uint64]:
    """One seed per request from its coordinates (seed, step, item, run, turn)."""
    coordinates = np.asarray(streams, dtype=np.int64).astype(np.uint64)
    seeds = np.zeros(len(coordinates), dtype=np.uint64)
    for column in coordinates.T:
        seeds = _mix((seeds ^ column) + _GOLDEN)
    return seeds


def uniforms(
    seeds: npt.NDArray[np.uint64], position: int | npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """The ``position``-th number in [0, 1) of each stream: SplitMix64, read by counter.

    ``position`` is one for all, or an array that broadcasts with ``seeds``. A row's number does
    not depend on which other rows are in the batch.
    """
    # An array, because numpy warns of overflow for scalars, though it is meant.
    offset = (np.atleast_1d(position) + 1).astype(np.uint64) * _GOLDEN
    return (_mix(seeds + offset) >> np.uint64(11)).astype(np.float64) * 2.0**-53
