"""Trials of the remedies that messages recommend, and the texts of the package that recommend one.

A row provokes a message and takes the edit from its text: ``key=value``, ``write KEY``,
``write VALUE``, ``leave it out`` and ``did you mean KEY?`` are read. What is said otherwise, such
as "lower it", the row does itself.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import plugrl
from plugrl.core.errors import PlugrlError
from plugrl.core.experiment import prepare

MODEL = {
    "source": {
        "config": {"model_type": "qwen3", "hidden_size": 8, "intermediate_size": 8}
        | {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
        | {"head_dim": 8, "max_position_embeddings": 32},
        "tokenizer": {"characters": "0123456789+="},
    }
}

TEXT = {
    "scenario": {"type": "arithmetic", "digits": 1, "validation": 4, "development": 4}
    | {"demonstrations": 4},
    "models": {"policy": {**MODEL, "train": "local"}},
    "rollout_worker": {"max_prompt_length": 4, "max_response_length": 3}
    | {"evaluator": "exact_match"},
    "data": {"batch_size": 2, "rollout_repeat_n": 4},
    "trainer": {"type": "self_hosted_grpo", "total_train_steps": 1},
    "settings": {"device": "cpu"},
}

REMOTE = TEXT | {
    "models": {"policy": {**MODEL, "train": "in_process"}},
    "trainer": {"type": "remote_api_grpo", "total_train_steps": 1},
}

#: A second model that is frozen, as a reference or a teacher is.
FROZEN = TEXT | {"models": TEXT["models"] | {"reference": MODEL}}

NETS = {
    "scenario": {"type": "gymnasium", "id": "CartPole-v1", "num_envs": 2},
    "trainer": "vanilla_ppo",
    "rl": {"frames_per_batch": 64, "num_iterations": 1},
    "settings": {"device": "cpu"},
}

BASES = {"text": TEXT, "remote": REMOTE, "frozen": FROZEN, "nets": NETS}

# A dotted key, and text that is one.
_KEY = r"[a-z_]+(?:\.[A-Za-z_][\w]*|\[\d+\])*"

_DOTTED = r"[a-z_]+(?:\.[A-Za-z_]\w*|\[\d+\])+"


@dataclass(frozen=True)
class Row:
    """What provokes a message, part of its text, and the edit where the text is no command.

    Attributes:
        words: overrides of the base; the first is what is wrong.
        says: a part of the message, where ``{}`` is any text.
        edit: overrides that do what the message says; ``-KEY`` takes a word out. None: as it says.
        base: the configuration.
        left: what another fault may say then, which is honest news.
    """

    words: tuple[str, ...]
    says: str = ""
    edit: tuple[str, ...] | None = None
    base: str = "text"
    left: str | None = None

    def __str__(self) -> str:
        return f"{self.base}: {' '.join(self.words)}"


def _words(text: str) -> tuple[str, ...]:
    """The words of a command line, divided by the spaces outside of brackets."""
    marked, depth = "", 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        marked += "\n" if character == " " and not depth else character
    return tuple(marked.split("\n")) if marked else ()


def row(words: str, says: str = "", edit: str | None = None, **more: str) -> Row:
    """A row from command lines."""
    return Row(_words(words), says, None if edit is None else _words(edit), **more)


@functools.cache
def faults(base: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of the report about a base with overrides."""
    try:
        prepare(json.loads(json.dumps(BASES[base])) if base in BASES else base, list(words))
    except PlugrlError as error:
        return tuple(getattr(error, "faults", None) or (str(error),))
    return ()


def applied(fault: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """``words`` with what a fault recommends."""
    key = re.split(r" \(|: ", fault, maxsplit=1)[0]
    wrong = next((word for word in words if _same(word.partition("=")[0], key)), "")
    rest = tuple(word for word in words if word != wrong)
    value = wrong.partition("=")[2]
    meant = re.search(rf"did you mean ({_KEY})\?", fault)
    if meant:
        new = meant[1] if "." in meant[1] else key.rpartition(".")[0] + "." + meant[1]
        return (*rest, f"{new.lstrip('.')}={value}")
    refused = re.match(r"\(command line\): override '([^']*)'", fault)
    if refused:
        words = tuple(word for word in words if word != refused[1])
    said = re.findall(rf"({_DOTTED})=([^\s,;)]+)", fault.partition("; ")[2] or fault)
    if said:
        return (*words, *(f"{k}={v}" for k, v in said))
    moved = re.search(rf"write ({_DOTTED})(?:: ([^\s,;)]+))?(?=[ ,;.]|$)", fault)
    if moved:
        new = moved[1].replace("NAME", "policy")
        return (*rest, f"{new}={moved[2] or value}")
    if "leave it out" in fault:
        return rest
    written = re.search(r"write (?:only )?([^\s,;]+)", fault)
    assert written, f"no edit is read in: {fault}"
    return (*rest, f"{key}={written[1]}")


def _same(word: str, key: str) -> bool:
    return word == key or key.startswith((f"{word}.", f"{word}[")) or word.startswith(f"{key}.")


def has(line: str, says: str) -> bool:
    """Whether a message has ``says``, in which ``{}`` is any text."""
    return re.search(re.escape(says).replace(r"\{\}", ".*?"), line) is not None


def tried(each: Row) -> str:
    """Try the remedy of a row; give the fault that it was about."""
    before = faults(each.base, each.words)
    about = [line for line in before if has(line, each.says)]
    assert about, f"no such message; there are: {before}"
    fault = about[0]
    if each.edit is None:
        words = applied(fault, each.words)
    else:
        out = {edit[1:] for edit in each.edit if edit[0] == "-"}
        kept = [word for word in each.words if word.partition("=")[0] not in out]
        words = (*kept, *(edit for edit in each.edit if edit[0] != "-"))
    after = faults(each.base, words)
    honest = [line for line in after if each.left is None or each.left not in line]
    assert not honest, f"{fault}\n with {words}: {honest}"
    return fault


#: The share of rows that the fast tier tries: one in so many.
_FAST = 36


def tiered(rows: Iterable[Row]) -> list[Any]:
    """Rows for the tier integration, and a sample of them, drawn by their names, for the fast."""
    return [
        each
        if zlib.crc32(str(each).encode()) % _FAST == 0 and each.base in BASES
        else pytest.param(each, marks=pytest.mark.integration)
        for each in rows
    ]


#: Rooms of the package, one test module each: a file is in the first that fits.
ROOMS = (
    *("core/config", "core/plugins", "core/protocol", "core/run"),
    *("core/tensordict", "core/text", "core"),
    *("commands", "plugins", "scenarios", "trainers", ""),
)
_VERB = (
    r"(?:write|set|take|give|run|use|lower|add|name|leave|choose|raise|drop|see plugrl|remove"
    r"|change|put|install|pass|keep|mend|correct|ask for|allow|declare|list|edit|let|convert|join"
    r"|delete|quote|indent|close|save it|break"
    r"|shorten|rename|define|call|return|check|make|register|divide|start|move|turn)\b"
)
#: What recommends: an order at the beginning of a text or of one of its parts, or an example.
_RECOMMENDS = re.compile(
    rf"(?:^|[;:,.(] )(?:or |and |so |then )*{_VERB}|did you mean|such as |plugrl [a-z]+ [A-Z]+\b"
)
#: Calls whose texts describe options, and no faults.
_DESCRIBE = {"described", "component", "Argument", "Option"}


def texts(room: str, word: str = "") -> Iterator[tuple[str, str]]:
    """File without suffix, and fixed parts, of each text of a room that recommends something.

    With ``word``, of the files alone that have it.
    """
    root = Path(plugrl.__file__).parent
    for path in sorted((root / room).rglob("*.py")):
        name = str(path.relative_to(root).with_suffix(""))
        if next(each for each in ROOMS if name.startswith(each)) == room:
            source = path.read_text(encoding="utf-8")
            for text in _constants(ast.parse(source)) if word in source else ():
                if _RECOMMENDS.search(text):
                    yield name, text


def _constants(tree: ast.Module) -> Iterator[str]:
    """The texts of a module but those of documentation; what is formatted into one is ``{}``."""
    quiet: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called in _DESCRIBE:
                quiet |= {id(inner) for inner in ast.walk(node)}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            quiet.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            quiet |= {id(each) for each in node.values}
    for node in ast.walk(tree):
        if id(node) in quiet:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(map(_part, node.values))
            continue
        text = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        # What has several lines is a program, an example or a prompt.
        if isinstance(text, str) and " " in text and "\n" not in text:
            yield text


def _part(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    calls = (each.func for each in ast.walk(value) if isinstance(each, ast.Call))
    suggests = any(getattr(each, "id", "") == "did_you_mean" for each in calls)
    return "; did you mean {}?" if suggests else "{}"


def untried(room: str, says: Iterable[str], reasons: Mapping[str, str]) -> list[str]:
    """What keeps the trials of a room from being complete.

    Args:
        room: one of ``ROOMS``.
        says: a part of each message that a trial provokes, long enough to be its alone; or a
            file without suffix, a colon and the whole text, if it is short.
        reasons: parts of texts, or beginnings of files' names, and why nothing is tried there: the
            text names no key, value or command.
    """
    found, whole = list(texts(room)), set(says)
    parts = [part for part in whole if len(part) > 5 and part not in _COMMON]
    used: set[str] = set()
    lacking = []
    for name, text in found:
        if f"{name}: {text}" in whole or any(part in text for part in parts):
            continue
        why = [part for part in reasons if part in text or f"{name}: {text}".startswith(part)]
        used.update(why)
        if not why:
            lacking.append(f"{name}: {text}")
    return lacking + [f"no text needs this reason: {part}" for part in reasons if part not in used]


#: Parts of messages that many have, so that a trial of one says nothing about another.
_COMMON = {"leave it out", "did you mean", "type: openai", "leave them out"}
