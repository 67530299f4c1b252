"""How a model is shown a dialogue: as messages by its chat template, or as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugrl.core.chat_template import Message
from plugrl.core.errors import ConfigError
from plugrl.core.text.dialogue.configuration import sampling_of
from plugrl.core.text.inference.chat import ChatTokenizer, chat_tokenizer, encode_continuation
from plugrl.core.text.inference.sampling import ending

if TYPE_CHECKING:
    from plugrl.core.text.dialogue.dialogue import Dialogue
    from plugrl.core.text.models import Model


class DialoguePrompts:
    """Prompts for one of the two models: what it said is its own, what it heard the user's.

    Args:
        model: that is asked.
        config: its section, see :class:`~plugrl.core.text.dialogue.configuration.SpeakingConfig`.
        probes: whether it is the tester, which sees the prompt and speaks first.

    Raises:
        ConfigError: nothing fits beside the longest message, or a template is wanted and missing.
    """

    def __init__(self, model: Model, config: Any, *, probes: bool) -> None:
        self.name = model.name
        self.service = model.inference
        self._config = config
        self._own = "tester" if probes else "target"
        self._sees_prompt = probes or config.sees_prompt
        tokenizer = self.service.tokenizer
        self.sampling = ending(sampling_of(config), tokenizer)
        room = self.service.max_sequence_length - config.max_new_tokens
        if room < 1:
            fault = no_room(config.max_new_tokens, self.name, self.service.max_sequence_length)
            raise ConfigError(f"red_team.{self._own}.max_new_tokens {fault}")
        self._room = (
            room if config.max_prompt_tokens is None else min(room, config.max_prompt_tokens)
        )
        self._chat = config.form == "chat" or (config.form == "auto" and _has_template(tokenizer))
        if config.form == "chat":
            chat_tokenizer(tokenizer, self.name)

    def tokens(self, dialogue: Dialogue) -> list[int]:
        """What the model is asked with: the end is kept where not all of it fits.

        The oldest exchanges are left out first, then what comes before the rest.

        Raises:
            ConfigError: there is nothing to show.
        """
        messages = list(dialogue.messages)
        while True:
            begun, tokens = self._encode_parts(dialogue.prompt, messages)
            if len(begun) + len(tokens) <= self._room or len(messages) < 3:
                break
            del messages[:2]
        if not tokens:
            raise ConfigError(
                f"{self._own} is shown nothing: the prompt is empty and there is no system prompt; "
                f"set red_team.{self._own}.system_prompt, or give prompts some text"
            )
        kept = max(self._room - len(begun), 1)
        return [*begun, *tokens[-kept:]][-self._room :]

    def messages(self, prompt: str, said: Any) -> list[Message]:
        """The dialogue as this model sees it, in the form of chat templates."""
        shown: list[Message] = []
        if self._config.system_prompt:
            shown.append({"role": "system", "content": self._config.system_prompt})
        heard = prompt if self._sees_prompt else ""
        for speaker, text in said:
            if speaker == self._own:
                shown += [{"role": "user", "content": heard}] if heard else []
                shown.append({"role": "assistant", "content": text})
                heard = ""
            else:
                # A template has one message of the user at a time.
                heard = f"{heard}{self._config.separator}{text}" if heard else text
        if heard:
            shown.append({"role": "user", "content": heard})
        return shown

    def _encode_parts(self, prompt: str, said: Any) -> tuple[list[int], list[int]]:
        """What every text begins with, such as BOS, and the rest."""
        messages, tokenizer = self.messages(prompt, said), self.service.tokenizer
        if self._chat:
            return [], chat_tokenizer(tokenizer, self.name).apply_chat_template(messages)
        text = self._config.separator.join(m["content"] for m in messages)
        rest = encode_continuation(tokenizer, text)
        whole = tokenizer.encode(text)
        return whole[: len(whole) - len(rest)], rest


def no_room(longest: int, model: str, context: int) -> str:
    """What is wrong with answers of ``longest`` tokens of a model that reads no more in all."""
    return f"is {longest}, and model {model!r} reads {context} tokens in all; lower it"


def _has_template(tokenizer: Any) -> bool:
    if not isinstance(tokenizer, ChatTokenizer):
        return False
    try:
        tokenizer.render_chat([{"role": "user", "content": ""}])
    except ConfigError:
        return False
    return True
