"""What plugrl asks of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """What plugrl asks of a tokenizer.

    Three more are used where a tokenizer has them (see the modules ``sampling`` and ``chat``):
    ``end_token_ids`` and ``stop_strings``, the tokens besides ``eos_token_id`` and the texts that
    end an answer, and ``encode_continuation``, for tokenizers whose ``encode`` puts something
    before a text.
    """

    pad_token_id: int
    eos_token_id: int

    def encode(self, text: str, /) -> list[int]:
        """Token ids of ``text`` from its beginning, with what it begins with, such as BOS."""

    def decode(self, tokens: Sequence[int], /) -> str:
        """Text of ``tokens``, special tokens left out."""
