"""Constrained decoding: which tokens may come next, so that an answer matches a grammar.

The grammars are those of ``llguidance`` (github.com/guidance-ai/llguidance, MIT), which reads them
and computes the masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from plugrl.core.text.inference import grammars
from plugrl.core.text.inference.chat import end_tokens
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.plugins.transformers.tokenizer import CharacterTokenizer, HubTokenizer

#: Grammars whose compiled form is kept; the attempts of a step ask with few different ones.
_KEPT = 64


class Matcher:
    """The state of one answer in its grammar.

    Attributes:
        bits: a bit for each token of the vocabulary that may come next, the lowest bit first.
        stuck: whether no token may, though the answer is not at its end.
        ended: whether the answer is at its end.
    """

    def __init__(self, matcher: Any, ends: frozenset[int]) -> None:
        self._matcher, self._ends = matcher, ends
        self.ended = False
        self._look()

    def take(self, token: int) -> None:
        """Go on with a token that the mask allowed."""
        self.ended = token in self._ends
        self._matcher.consume_token(token)
        self._look()

    def _look(self) -> None:
        bits = b"" if self.ended else self._matcher.compute_bitmask()
        self.bits: npt.NDArray[np.uint8] = np.frombuffer(bits, dtype=np.uint8)
        # A vocabulary may lack the characters that must come next.
        self.stuck = not self.ended and (self._matcher.is_error() or not self.bits.any())


class GrammarCompiler:
    """Compiles grammars for one tokenizer.

    Args:
        tokenizer: of the model.
        vocabulary: token ids are below it.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._native: Any = None
        self._compiled = lru_cache(maxsize=_KEPT)(self._compile)

    @property
    def usable(self) -> bool:
        """Whether the library is installed and the bytes of the tokenizer's tokens are known."""
        known = isinstance(self._tokenizer, CharacterTokenizer) or (
            isinstance(self._tokenizer, HubTokenizer)
            and getattr(self._tokenizer.wrapped, "is_fast", False)
        )
        return known and grammars.is_installed()

    def matcher(self, grammar: str) -> Matcher:
        """A matcher at the beginning of an answer."""
        return Matcher(self._compiled(grammar).deep_copy(), frozenset(end_tokens(self._tokenizer)))

    def _compile(self, grammar: str) -> Any:
        from llguidance import LLMatcher

        if self._native is None:
            self._native = _native_tokenizer(self._tokenizer, self._vocabulary)
        return LLMatcher(self._native, grammar, log_level=0)


def _native_tokenizer(tokenizer: Tokenizer, vocabulary: int) -> Any:
    """The tokenizer as the library takes it."""
    from llguidance import LLTokenizer, TokenizerWrapper

    ends = [token for token in end_tokens(tokenizer) if token < vocabulary]
    if isinstance(tokenizer, CharacterTokenizer):
        size = max(vocabulary, tokenizer.vocabulary_size)
        return LLTokenizer(TokenizerWrapper(_Bytes(tokenizer)), n_vocab=size, eos_token=ends)
    from llguidance.hf import from_tokenizer

    wrapped: Any = tokenizer.wrapped  # type: ignore[attr-defined]
    size = max(vocabulary, len(wrapped))
    native = from_tokenizer(wrapped, n_vocab=size, eos_token=ends)
    special = {*wrapped.all_special_ids, *ends}
    if not any(
        native.is_special_token(t) for t in wrapped.added_tokens_decoder if t not in special
    ):
        return native
    # The library takes every added token in angle brackets for a special one, which no text is
    # made of; the tags of calls and of reasoning are such tokens, and text.
    return LLTokenizer(
        TokenizerWrapper(_AddedText(wrapped, native, sorted(special))), n_vocab=size, eos_token=ends
    )


class _AddedText:
    """A tokenizer of the hub with the bytes of its tokens, and which of them are no text."""

    bos_token_id = None

    def __init__(self, wrapped: Any, native: Any, special: list[int]) -> None:
        self._wrapped = wrapped
        self.eos_token_id = native.eos_token
        self.special_token_ids = special
        self.tokens = [native.decode_bytes([token]) for token in range(len(wrapped))]

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("text is expected")
        found: list[int] = self._wrapped(text, add_special_tokens=False)["input_ids"]
        return found


class _Bytes:
    """A character tokenizer with the bytes of its tokens; padding and end have none."""

    bos_token_id = None

    def __init__(self, tokenizer: CharacterTokenizer) -> None:
        self.eos_token_id = tokenizer.eos_token_id
        self.special_token_ids = [tokenizer.pad_token_id, tokenizer.eos_token_id]
        self.tokens = [b"<pad>", b"<eos>"] + [
            tokenizer.decode([token]).encode("utf-8")
            for token in range(2, tokenizer.vocabulary_size)
        ]
        self._ids = {text: token for token, text in enumerate(self.tokens)}

    def __call__(self, text: str | bytes) -> Sequence[int]:
        said = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        # Up to the first character that has no token: nothing can be written from there on.
        found = [self._ids.get(character.encode("utf-8"), -1) for character in said]
        return found[: found.index(-1)] if -1 in found else found
