"""A language model as judge: how it is asked, and how a number is found in its reply."""

from __future__ import annotations

from typing import Any

import regex

from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.chat import Message, chat_tokenizer
from plugrl.scenarios.evaluators.patterns import compiled_pattern

#: Finds "Score: 0.5" and "score = 3/4".
SCORE_PATTERN = r"score\s*[:=]\s*([-+]?[\d.]+(?:\s*/\s*\d+)?)"


def question_tokens(
    tokenizer: Any, model: str, question: str, *, chat: bool, system_prompt: str = ""
) -> list[int]:
    """What a judge is asked with.

    Args:
        tokenizer: of the judge.
        model: its name, for messages.
        question: the template, filled in.
        chat: as a message by the model's chat template; else as text.
        system_prompt: what it is told first, by chat; empty: nothing.

    Raises:
        ConfigError: there is no chat template.
    """
    question = tokenizer.writable(question) if hasattr(tokenizer, "writable") else question
    if not chat:
        return list(tokenizer.encode(question))
    messages: list[Message] = [{"role": "user", "content": question}]
    if system_prompt:
        messages.insert(0, {"role": "system", "content": system_prompt})
    return chat_tokenizer(tokenizer, model).apply_chat_template(messages)


def check_number_pattern(setting: str, pattern: str, number: str) -> None:
    """Refuse a pattern that finds no number.

    Raises:
        ConfigError: it is no regular expression, or has no group.
    """
    if compiled_pattern(setting, pattern).groups < 1:
        raise ConfigError(f"{setting} needs a group (...) around the {number}")


def last_number(pattern: str, reply: str) -> tuple[str | None, int]:
    """What the first group of the last match holds, and where it ends; None: nothing matches.

    Raises:
        TimeoutError: matching took too long.
    """
    found, end = None, 0
    for match in regex.finditer(pattern, reply, regex.IGNORECASE, timeout=1.0):
        found, end = match.group(1), match.end(1)
    return found, end
