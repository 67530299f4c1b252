"""Examples of fine-tuning jobs: as lines of JSON, and as the tokens that a model learns from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from plugrl.core.chat_template import Message
from plugrl.core.errors import RunError
from plugrl.core.text.inference.chat import ChatTokenizer, encode_reply
from plugrl.core.text.jobs.fine_tuning import Examples, PreferenceExample, SupervisedExample
from plugrl.core.text.learn.pairs import PREFERRED
from plugrl.core.text.trajectory import WRITTEN, Trajectory


def to_lines(examples: Examples) -> str:
    """The examples as lines of JSON, which :func:`read` takes back."""
    # Escapes, since a text may hold what ends lines elsewhere, or half a character.
    return "".join(json.dumps(_plain(e)) + "\n" for e in examples)


def _plain(example: SupervisedExample | PreferenceExample) -> dict[str, Any]:
    messages = [dict(message) for message in example.messages]
    if isinstance(example, PreferenceExample):
        return {"messages": messages, "preferred": example.preferred, "other": example.other}
    return {"messages": messages, "trained": list(example.replies)}


def read(path: Path) -> list[SupervisedExample | PreferenceExample]:
    """The examples of a file that :func:`to_lines` wrote.

    Raises:
        RunError: it cannot be read.
    """
    try:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if found and "preferred" in found[0]:
            return [PreferenceExample(e["messages"], e["preferred"], e["other"]) for e in found]
        return [SupervisedExample(e["messages"], tuple(e["trained"])) for e in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: the examples of a job cannot be read ({error})") from error


def trajectories(
    examples: Examples, tokenizer: ChatTokenizer, limit: int
) -> tuple[list[list[Trajectory]], int]:
    """What each example is in tokens, and how many were left out, longer than ``limit``.

    A preference is two trajectories, the preferred one first.
    """
    made, dropped = [], 0
    for number, example in enumerate(examples):
        if isinstance(example, PreferenceExample):
            rows = list(_pair(example, tokenizer, str(number)))
        else:
            rows = list(_replies(example, tokenizer, str(number)))
        if any(len(row.tokens) > limit for row in rows):
            dropped += 1
        else:
            made.append(rows)
    return made, dropped


def _pair(example: PreferenceExample, tokenizer: ChatTokenizer, group: str) -> Iterator[Trajectory]:
    prompt = tokenizer.apply_chat_template(list(example.messages))
    for text, liked in ((example.preferred, 1.0), (example.other, 0.0)):
        answer = _answer(tokenizer, text)
        mask = [0] * len(prompt) + [1] * len(answer)
        yield _trajectory_of([*prompt, *answer], mask, group, **{PREFERRED: liked})


def _replies(
    example: SupervisedExample, tokenizer: ChatTokenizer, group: str
) -> Iterator[Trajectory]:
    """The replies after the prompts to which the model gives them.

    Replies whose prompts continue one another share a trajectory.
    """
    tokens: list[int] = []
    mask: list[int] = []
    messages = list(example.messages)
    for place in example.replies:
        prompt = tokenizer.apply_chat_template(messages[:place])
        if mask and prompt[: len(tokens)] != tokens:
            yield _trajectory_of(tokens, mask, group)
            tokens, mask = [], []
        answer = _answer(tokenizer, _text(messages[place]))
        mask = [*mask, *[0] * (len(prompt) - len(tokens)), *[1] * len(answer)]
        tokens = [*prompt, *answer]
    yield _trajectory_of(tokens, mask, group)


def _text(message: Message) -> str:
    return str(message.get("content") or "")


def _answer(tokenizer: ChatTokenizer, text: str) -> list[int]:
    return encode_reply(tokenizer, tokenizer.writable(text), chat=True)


def _trajectory_of(
    tokens: Sequence[int], mask: Iterable[int], group: str, **fields: Any
) -> Trajectory:
    return Trajectory(
        list(tokens), list(mask), group_id=group, finish_reason=WRITTEN, extra_fields=fields
    )
