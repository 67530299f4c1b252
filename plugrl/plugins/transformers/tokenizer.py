"""Tokenizers of the ``transformers`` library in the form that plugrl asks for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAD, EOS = "<pad>", "<eos>"


class HubTokenizer:
    """Wraps a tokenizer of ``transformers``; text is encoded without special tokens.

    Raises:
        ConfigError: the tokenizer has no end-of-sequence token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.eos_token_id is None:
            raise ConfigError("the tokenizer has no end-of-sequence token; set eos_token")
        self.wrapped = tokenizer
        self.eos_token_id: int = tokenizer.eos_token_id
        pad = tokenizer.pad_token_id
        self.pad_token_id: int = self.eos_token_id if pad is None else pad
        self.vocabulary_size = len(tokenizer)
        # The samples of a group share a prompt, and epochs repeat it.
        self._encode = lru_cache(maxsize=65536)(self._encode_once)

    def __reduce__(self) -> tuple[Any, ...]:
        return HubTokenizer, (self.wrapped,)

    def _encode_once(self, text: str) -> tuple[int, ...]:
        return tuple(self.wrapped(text, add_special_tokens=False)["input_ids"])

    def encode(self, text: str, /) -> list[int]:
        """Token ids of ``text``."""
        return list(self._encode(text))

    def decode(self, tokens: Sequence[int], /) -> str:
        """Text of ``tokens`` without special tokens."""
        return str(self.wrapped.decode(list(tokens), skip_special_tokens=True))


class CharacterTokenizer:
    """One token for each distinct character, besides padding and end.

    Both directions are table look-ups: small models need them fast, and worker processes need
    them without ``transformers``.

    Raises:
        ConfigError: on encoding, a character is not in the table.
    """

    pad_token_id, eos_token_id = 0, 1

    def __init__(self, characters: str) -> None:
        self._characters = dict(enumerate(dict.fromkeys(characters), 2))
        self._ids = {character: i for i, character in self._characters.items()}
        self.vocabulary_size = len(self._ids) + 2

    def __reduce__(self) -> tuple[Any, ...]:
        return CharacterTokenizer, ("".join(self._ids),)

    @cached_property
    def wrapped(self) -> PreTrainedTokenizerBase:
        """The same tokenizer in ``transformers``, to be saved beside a model."""
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        vocabulary = {PAD: self.pad_token_id, EOS: self.eos_token_id, **self._ids}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        tokenizer.decoder = decoders.Fuse()
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS)

    def encode(self, text: str, /) -> list[int]:
        """Token ids of ``text``."""
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            raise ConfigError(
                f"the tokenizer has no character {error.args[0]!r}; add it to "
                "source.tokenizer.characters"
            ) from None

    def decode(self, tokens: Sequence[int], /) -> str:
        """Text of ``tokens`` without special tokens."""
        return "".join(self._characters.get(token, "") for token in tokens)


def character_tokenizer(characters: str) -> CharacterTokenizer:
    """A tokenizer with one token for each distinct character, besides padding and end."""
    return CharacterTokenizer(characters)
