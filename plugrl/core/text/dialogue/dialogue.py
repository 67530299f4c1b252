"""``Dialogue``: what tester and target have said to one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from plugrl.core.renamed_methods import RenamedMethods

#: Who speaks.
Speaker = Literal["tester", "target"]
#: Which part of a dialogue is read, for example by a scorer.
Part = Literal["response", "probe", "exchange", "dialogue"]


@dataclass(frozen=True, slots=True)
class Dialogue(RenamedMethods):
    """A dialogue about one prompt, whole or up to some turn.

    Attributes:
        prompt: what the tester is told: the goal, or how the dialogue begins.
        category: of the prompt, for reports; empty where there is none.
        item: the row of the data that the prompt is from.
        messages: (speaker, text) pairs, the tester's first, then in turns.
    """

    RENAMED_METHODS: ClassVar[Mapping[str, str]] = {"said": "with_message"}
    prompt: str
    category: str = ""
    item: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[tuple[Speaker, str], ...] = ()

    def with_message(self, speaker: Speaker, text: str) -> Dialogue:
        """This dialogue with one more message."""
        return Dialogue(self.prompt, self.category, self.item, (*self.messages, (speaker, text)))

    @property
    def turns(self) -> int:
        """How many probes were said."""
        return sum(speaker == "tester" for speaker, _ in self.messages)

    @property
    def probe(self) -> str:
        """The tester's last message; empty before its first."""
        return self._last("tester")

    @property
    def response(self) -> str:
        """The target's last message; empty before its first."""
        return self._last("target")

    def text(self, part: Part = "dialogue") -> str:
        """A part as text: the last probe, the last response, both, or everything that was said."""
        if part == "probe":
            return self.probe
        if part == "response":
            return self.response
        messages = self.messages[-2:] if part == "exchange" else self.messages
        return "\n".join(text for _, text in messages)

    def _last(self, speaker: Speaker) -> str:
        return next((text for who, text in reversed(self.messages) if who == speaker), "")


def opening(prompt: Any, *, prompt_key: str = "prompt", category_key: str = "category") -> Dialogue:
    """The dialogue that has not begun, of a prompt as text or as a row of data.

    Raises:
        ConfigError: it is neither, or the row has no such column.
    """
    from plugrl.core.errors import ConfigError

    if isinstance(prompt, Dialogue):
        return prompt
    if isinstance(prompt, str):
        return Dialogue(prompt, item={prompt_key: prompt})
    if not isinstance(prompt, Mapping) or not isinstance(prompt.get(prompt_key), str):
        has = f" with the columns {', '.join(map(str, prompt))}" if isinstance(prompt, dict) else ""
        raise ConfigError(
            f"a prompt to red-team with is a {type(prompt).__name__}{has}; text is expected, or "
            f"a row whose column {prompt_key!r} is text"
        )
    return Dialogue(prompt[prompt_key], str(prompt.get(category_key) or ""), dict(prompt))
