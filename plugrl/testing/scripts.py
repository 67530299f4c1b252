"""A model whose answers a function writes, for components that ask one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from plugrl.core.chat_template import Message
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.services import InferenceService, ModelSpec
from plugrl.core.text.inference.tokenizer import Tokenizer

Value = TypeVar("Value")
#: What a message ends with in the text that :class:`Letters` writes of a chat.
END = "\x01"


class Letters:
    """A tokenizer with one token a letter; a message of a chat is its role's first letter, its
    text and an end."""

    pad_token_id, eos_token_id = 0, 1

    def encode(self, text: str, /) -> list[int]:
        """One token a letter."""
        return [ord(letter) + 2 for letter in text]

    def decode(self, tokens: Sequence[int], /) -> str:
        """The letters, without padding and end."""
        return "".join(chr(token - 2) for token in tokens if token > 1)

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The messages as text."""
        text = "".join(f"{m['role'][0]}:{m.get('content') or ''}{END}" for m in messages)
        return text + "a:" if add_generation_prompt else text

    def encode_chat(self, text: str, /) -> list[int]:
        """Tokens of what :meth:`render_chat` wrote."""
        return [1 if letter == END else ord(letter) + 2 for letter in text]

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Tokens of messages."""
        return self.encode_chat(self.render_chat(messages, tools, add_generation_prompt))

    def writable(self, text: str, /) -> str:
        """``text`` without the letter that ends messages."""
        return text.replace(END, "")


class EveryName(Mapping[str, Value]):
    """One value under whatever name it is asked for, as models of a component that names its own.

    Args:
        value: what every name means.
    """

    def __init__(self, value: Value) -> None:
        self._value = value

    def __getitem__(self, name: str) -> Value:
        return self._value

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __contains__(self, name: object) -> bool:
        return True


class ScriptedService(InferenceService):
    """Answers with what a function makes of the prompt.

    Log-probabilities differ from token to token and from answer to answer, and so may versions, so
    that it shows when those of one are taken for those of another.

    Args:
        reply: from the text of a prompt to that of the answer.
        version: of the weights that sample.

    Attributes:
        given: prompts and completions so far.
    """

    def __init__(self, reply: Callable[[str], str], version: int = 0) -> None:
        super().__init__()
        self._reply = reply
        self.version = version
        self.given: list[tuple[list[int], Completion]] = []

    def load(self, spec: ModelSpec) -> None:
        """Nothing is loaded."""

    @property
    def tokenizer(self) -> Tokenizer:
        """One token a letter."""
        return Letters()

    @property
    def vocabulary_size(self) -> int:
        """All letters."""
        return 0x110000 + 2

    @property
    def max_sequence_length(self) -> int:
        """Longer than any test's."""
        return 10**9

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """What the function writes, and an end where there is room for it."""
        found = []
        for request in requests:
            prompt = list(request.prompt_tokens)
            tokens = [*Letters().encode(self._reply(Letters().decode(prompt))), 1]
            limit = request.sampling.max_new_tokens
            kept = tokens[:limit]
            logprobs = [-0.5 - 0.001 * (sum(prompt) % 97) - 0.01 * i for i in range(len(kept))]
            reason: Any = "stop" if len(kept) == len(tokens) else "length"
            scores = [0.0] + [-1.0] * (len(prompt) - 1) if request.prompt_logprobs else None
            found.append(Completion(kept, logprobs, reason, self.version, prompt_logprobs=scores))
            self.given.append((prompt, found[-1]))
        return found

    def update_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """It has no weights."""
        self.version = version
