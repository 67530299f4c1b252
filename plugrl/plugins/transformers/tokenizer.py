"""Tokenizers of the ``transformers`` library in the form that plugrl asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from plugrl.core.chat_template import (
    ChatTemplate,
    Message,
    has_marks,
    template_error,
    template_variables,
)
from plugrl.core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAD, EOS = "<pad>", "<eos>"
#: The chat template of character tokenizers: every message ends with the end token.
DEFAULT_TEMPLATE = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
#: Characters that stand for padding and end in text that a template wrote; no text holds them.
_SPECIAL = ("\U000f0000", "\U000f0001")


class HubTokenizer:
    """Wraps a tokenizer of ``transformers``.

    A text begins with what the tokenizer puts before texts by default, such as BOS. What it puts
    behind them is left out, since an answer follows.

    Args:
        tokenizer: of ``transformers``.
        chat_template: Jinja, over the tokenizer's own; None: its own.
        end_token_ids: end an answer, besides the tokenizer's end token.
        stop_strings: end an answer too. Those in the text of a special token, which answers are
            decoded without, are kept as this token.

    Raises:
        ConfigError: there is no end token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: str | None = None,
        end_token_ids: Sequence[int] = (),
        stop_strings: Sequence[str] = (),
    ) -> None:
        from transformers import PreTrainedTokenizerBase

        if tokenizer.eos_token_id is None and not end_token_ids:
            raise ConfigError(
                "the tokenizer has no end-of-sequence token; set eos_token in its "
                "tokenizer_config.json"
            )
        self.wrapped = tokenizer
        if chat_template is not None:
            tokenizer.chat_template = chat_template
        own = tokenizer.eos_token_id
        self.eos_token_id: int = end_token_ids[0] if own is None else own
        special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        spelt = [token for token, text in special.items() if any(s in text for s in stop_strings)]
        self.end_token_ids = tuple(dict.fromkeys((*end_token_ids, *spelt)))
        self.stop_strings = tuple(stop_strings)
        pad = tokenizer.pad_token_id
        self.pad_token_id: int = self.eos_token_id if pad is None else pad
        self.vocabulary_size = len(tokenizer)
        # The samples of a group share a prompt, and epochs repeat it.
        self._encode = lru_cache(maxsize=65536)(self._encode_once)
        # The public method looks for arrays among the tokens first, which takes longer than all
        # the rest; here they are lists of numbers.
        plain = type(tokenizer).decode is PreTrainedTokenizerBase.decode
        self._decode = tokenizer._decode if plain else tokenizer.decode

    def __reduce__(self) -> tuple[Any, ...]:
        return HubTokenizer, (self.wrapped, None, self.end_token_ids, self.stop_strings)

    def _encode_once(self, text: str) -> tuple[int, ...]:
        return tuple(self.wrapped(text, add_special_tokens=False)["input_ids"])

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """The tokens that every text begins with."""
        for text in ("a", "0", str(self.wrapped.eos_token)):
            bare, whole = self._encode_once(text), tuple(self.wrapped(text)["input_ids"])
            for start in range(len(whole) - len(bare) + 1 if bare else 0):
                if whole[start : start + len(bare)] == bare:
                    return whole[:start]
        return ()

    def encode(self, text: str, /) -> list[int]:
        """Token ids of ``text`` from its beginning."""
        return [*self.opening, *self._encode(text)]

    def encode_continuation(self, text: str, /) -> list[int]:
        """Token ids of ``text`` that follows other tokens."""
        return list(self._encode(text))

    def decode(self, tokens: Sequence[int], /) -> str:
        """Text of ``tokens`` without special tokens."""
        return str(self._decode(list(tokens), skip_special_tokens=True))

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of ``messages`` by the tokenizer's own template.

        Raises:
            ConfigError: it has none, or it fails over the messages.
        """
        if self.wrapped.chat_template is None:
            raise ConfigError(
                "the tokenizer has no chat template; set source.tokenizer.chat_template of the "
                "model, or give prompts as text"
            )
        try:
            text = self.wrapped.apply_chat_template(
                list(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **(options or {}),
            )
        except Exception as error:
            raise template_error(error) from error
        return str(text)

    def template_variables(self) -> frozenset[str]:
        """What the template reads; nothing where there is none."""
        own = self.wrapped.chat_template
        texts = own.values() if isinstance(own, dict) else [own] if own else []
        return frozenset().union(*map(template_variables, texts))

    def encode_chat(self, text: str, /) -> list[int]:
        """Token ids of text that the template wrote."""
        return list(self._encode(text))

    def encode_marked(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[list[int], list[int]] | None:
        """Token ids of ``messages``, and 1 for each that a generation mark encloses.

        None: the template has no marks, or there is none.

        Raises:
            ConfigError: the template fails over the messages.
        """
        tools = list(tools) if tools else None
        if self.wrapped.chat_template is None:
            return None
        try:
            if not has_marks(self.wrapped.get_chat_template(None, tools)):
                return None
            found = self.wrapped.apply_chat_template(
                list(messages), tools=tools, return_dict=True, return_assistant_tokens_mask=True
            )
        except Exception as error:
            raise template_error(error) from error
        return list(found["input_ids"]), list(found["assistant_masks"])

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of ``messages``; the errors are those of :meth:`render_chat`."""
        return self.encode_chat(self.render_chat(messages, tools, add_generation_prompt))

    def writable(self, text: str, /) -> str:
        """``text``, of which lone surrogates alone cannot be written."""
        return text.encode("utf-8", "replace").decode("utf-8")


class CharacterTokenizer:
    """One token for each distinct character, besides padding and end.

    Both directions are table look-ups: small models need them fast, and worker processes need
    them without ``transformers``.

    Args:
        characters: one token each.
        chat_template: Jinja; None: every message is its content and the end token.
        end_token_ids: end an answer, besides the end token.

    Raises:
        ConfigError: the template is none; on encoding, a character is not in the table.
    """

    pad_token_id, eos_token_id = 0, 1

    def __init__(
        self,
        characters: str,
        chat_template: str | None = None,
        end_token_ids: Sequence[int] = (),
    ) -> None:
        self.end_token_ids = tuple(end_token_ids)
        self._characters = dict(enumerate(dict.fromkeys(characters), 2))
        self._ids = {character: i for i, character in self._characters.items()}
        self.vocabulary_size = len(self._ids) + 2
        self._chat_ids = {**self._ids, **dict(zip(_SPECIAL, (0, 1), strict=True))}
        self._template_text = DEFAULT_TEMPLATE if chat_template is None else chat_template

    def __reduce__(self) -> tuple[Any, ...]:
        return CharacterTokenizer, ("".join(self._ids), self._template_text, self.end_token_ids)

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self._template_text)

    @cached_property
    def wrapped(self) -> PreTrainedTokenizerBase:
        """The same tokenizer in ``transformers``, to be saved beside a model."""
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        vocabulary = {PAD: self.pad_token_id, EOS: self.eos_token_id, **self._ids}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
        wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS)
        wrapped.chat_template = self._template_text
        return wrapped

    def encode(self, text: str, /) -> list[int]:
        """Token ids of ``text``."""
        return self._look_up(text, self._ids)

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of ``messages`` by the template.

        Raises:
            ConfigError: the template fails over them.
        """
        pad, eos = _SPECIAL
        special = {"pad_token": pad, "eos_token": eos, "bos_token": ""}
        return self._template(
            messages, tools, add_generation_prompt, **{**(options or {}), **special}
        )

    def template_variables(self) -> frozenset[str]:
        """What the template reads."""
        return template_variables(self._template_text)

    def encode_chat(self, text: str, /) -> list[int]:
        """Token ids of text that the template wrote."""
        return self._look_up(text, self._chat_ids)

    def encode_marked(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[list[int], list[int]] | None:
        """Token ids of ``messages``, and 1 for each that a generation mark encloses.

        None: the template has no marks.

        Raises:
            ConfigError: the template fails over the messages.
        """
        if not has_marks(self._template_text):
            return None
        pad, eos = _SPECIAL
        text, spans = self._template.marked(
            messages, tools, pad_token=pad, eos_token=eos, bos_token=""
        )
        mask = [0] * len(text)
        for start, end in spans:
            mask[start:end] = [1] * (end - start)
        return self.encode_chat(text), mask

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of ``messages``."""
        return self.encode_chat(self.render_chat(messages, tools, add_generation_prompt))

    def writable(self, text: str, /) -> str:
        """``text`` without the characters that have no token."""
        return "".join(character for character in text if character in self._ids)

    def _look_up(self, text: str, ids: Mapping[str, int]) -> list[int]:
        try:
            return [ids[character] for character in text]
        except KeyError as error:
            raise ConfigError(
                f"the tokenizer has no character {error.args[0]!r}; add it to "
                "source.tokenizer.characters"
            ) from None

    def decode(self, tokens: Sequence[int], /) -> str:
        """Text of ``tokens`` without special tokens."""
        return "".join(self._characters.get(token, "") for token in tokens)


def character_tokenizer(
    characters: str, chat_template: str | None = None, end_token_ids: Sequence[int] = ()
) -> CharacterTokenizer:
    """A tokenizer with one token for each distinct character, besides padding and end."""
    return CharacterTokenizer(characters, chat_template, end_token_ids)
