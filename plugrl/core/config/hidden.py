"""What of a configuration stays on the machine: credentials, and text of the environment.

A run keeps its configuration in two files. ``config.yaml``, like checkpoints, trackers and the
report, is what people share: text that came from an environment variable stands there as the
reference that was written, and a credential as ``<hidden>``. Their values are in
``config.private.json``, which its owner alone can read, so that a resume has what the run began
with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugrl.core.config.sources.origins import KeyPath

#: Stands where a value was hidden.
HIDDEN = "<hidden>"
#: The values that ``config.yaml`` beside it withholds.
PRIVATE_FILE = "config.private.json"

_SECRET = re.compile(
    r"(?:^|[_\-.])(?:\w*api_?key|auth|authorization|bearer|cookie|credentials?|keys?|pass|"
    r"pass(?:word|wd|phrase)s?|pw|pwd|secrets?|tokens?)$",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: Names that look like one of a credential and are columns of data or marks of a tokenizer.
_PLAIN = re.compile(
    r"^(?:answer|chosen|completion|data_source|demonstration|json|label|margin|prompt|question|"
    r"category|reference|rejected|reward|solution|source|teacher|tests|words)_key$|^(?:bos|cls|eos|mask|pad|sep|unk)_token$",
    re.IGNORECASE,
)
#: Credentials within text: ``https://user:word@host``, ``?token=word``, and words that have the
#: form of a key: those of OpenAI, Anthropic and Stripe, Hugging Face, GitHub, GitLab, Slack, AWS,
#: Google and Replicate, JSON web tokens, private keys in PEM.
_IN_TEXT = re.compile(
    r"(?<=://)[^/\s@]+(?=@)|(?<=[?&])(?P<name>(?:\w*_)?(?:key|token|password|secret|sig|signature))"
    r"=[^&\s]+|(?i:(?<=bearer )[\w.~+/=-]{12,})"
    r"|\b(?:[sr]k[-_](?=[\w-]*\d)[\w-]{16,}|hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeoprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[\w-]{30,}|r8_[A-Za-z0-9]{20,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
#: A value that is one reference, and the default within it, which may be the credential itself.
_REFERENCE = re.compile(r"\$\{[^{}]*\}")
_DEFAULT = re.compile(r"^(\$\{\s*(?:oc\.env\s*:|env\.)\s*\w+)\s*,[^}]*\}$")
#: Characters of a credential that is looked for at other keys too, to which it may be copied.
_LONG = 8
#: Of an option of a command that is followed by its value.
_OPTION = re.compile(r"--?([\w-]+)")


class Reference(str):
    """Text of a configuration that is to be read as an interpolation, not as itself."""


@dataclass(frozen=True)
class Withheld:
    """A value that is kept apart, and what stands in its place."""

    path: KeyPath
    shown: str
    value: str


def names_secret(key: str) -> bool:
    """Whether a key names a credential, such as ``api_key``, ``HF_TOKEN`` or ``password``."""
    key = _CAMEL.sub("_", key)
    return _SECRET.search(key) is not None and _PLAIN.match(key) is None


def without_credentials(text: str) -> str:
    """``text`` with ``<hidden>`` for what has the form of a credential, also within addresses."""
    return _IN_TEXT.sub(
        lambda found: f"{found['name']}={HIDDEN}" if found["name"] else HIDDEN, text
    )


def redacted(key: str, text: str) -> str:
    """What may be shown of the value ``text`` of ``key``: of a reference all but its default."""
    if not text or not names_secret(key):
        return without_credentials(text)
    return _DEFAULT.sub(r"\1}", text) if _REFERENCE.fullmatch(text) else HIDDEN


def withhold(
    tree: Mapping[str, Any],
    references: Mapping[KeyPath, str] | None = None,
    composed: Any = None,
) -> tuple[dict[str, Any], list[Withheld]]:
    """Divide a configuration into what may be shown and what is kept apart.

    Numbers are shown wherever they came from: what is learned depends on them.

    Args:
        tree: the validated configuration.
        references: the text of those values of ``composed`` that come from the environment.
        composed: the configuration before validation, which may move values.
    """
    references = references or {}
    texts: dict[str, str] = {}
    for path, value in leaves(composed, ()):
        source = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in references), None)
        if source is not None and isinstance(value, str) and value:
            texts.setdefault(value, references[source] if source == path else HIDDEN)
    for path, value in leaves(tree, ()):
        long = isinstance(value, str) and len(value) >= _LONG
        if long and names_secret(last_name(path)) and not _REFERENCE.fullmatch(value):
            texts.setdefault(value, HIDDEN)
    apart: list[Withheld] = []

    def show(value: Any, path: KeyPath) -> Any:
        if isinstance(value, Mapping):
            return {key: show(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [show(item, (*path, i)) for i, item in enumerate(value)]
        if not isinstance(value, str) or not value:
            return value
        # A path that a reference gave may have been made absolute since.
        source = references.get(path) or texts.get(value)
        shown = redacted(last_name(path), source or value)
        if shown == value:
            return value
        apart.append(Withheld(path, shown, value))
        return Reference(shown) if "${" in (source or "") else shown

    return {key: show(value, (key,)) for key, value in tree.items()}, apart


def private_text(apart: Iterable[Withheld]) -> str:
    """The text of ``config.private.json``."""
    listed = [{"path": item.path, "shown": item.shown, "value": item.value} for item in apart]
    return json.dumps(listed, indent=2) + "\n"


def read_private(folder: Path) -> list[Withheld]:
    """What the ``config.yaml`` in ``folder`` withholds; empty where that cannot be read.

    Without it the references are read anew, so that whoever has the variables can go on.
    """
    try:
        listed = json.loads((folder / PRIVATE_FILE).read_text(encoding="utf-8"))
        return [Withheld(tuple(i["path"]), str(i["shown"]), str(i["value"])) for i in listed]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def fill(tree: Any, apart: Iterable[Withheld]) -> None:
    """Put back in ``tree`` what was withheld of it; what was edited since stays as it is."""
    for item in apart:
        part = tree
        try:
            for key in item.path[:-1]:
                part = part[key]
            if part[item.path[-1]] == item.shown:
                part[item.path[-1]] = item.value.replace("${", "\\${")
        except (KeyError, IndexError, TypeError):
            continue


def still_hidden(tree: Any) -> list[KeyPath]:
    """The paths of ``tree`` at which no value stands, but the mark of one that was withheld."""
    marks = (f"//{HIDDEN}@", f"={HIDDEN}")
    return [
        path
        for path, value in leaves(tree, ())
        if isinstance(value, str) and (value == HIDDEN or any(mark in value for mark in marks))
    ]


def redacted_yaml(text: str, key: str = "") -> str:
    """YAML ``text`` with ``<hidden>`` for its credentials, and else as it was written.

    Args:
        text: what a user wrote.
        key: of the value that it is; empty: it is a whole file.
    """
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)  # type: ignore[no-untyped-call]
    except (yaml.YAMLError, RecursionError):
        return redacted(key, text)
    spans = {
        (node.start_mark.index, node.end_mark.index): (node.value, shown)
        for name, node in _scalars(root, key, set())
        if (shown := redacted(name, node.value)) != node.value
    }
    # From the end, so that places before a change stay where they are.
    for (start, end), (value, shown) in sorted(spans.items(), reverse=True):
        written = text[start:end]
        # An anchor before it and the line end of a block stay.
        written = written.replace(value, shown) if value in written else shown
        text = text[:start] + written + "\n" * text[start:end].endswith("\n") + text[end:]
    # Comments too.
    return without_credentials(text)


def redacted_words(words: Sequence[str]) -> list[str]:
    """The words of a command line, with ``<hidden>`` for the credentials among them."""
    shown: list[str] = []
    option = ""
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            name = re.split(r"[.\[]", key.lstrip("-"))
            last = next((part for part in reversed(name) if not part[:1].isdigit()), "")
            shown.append(f"{key}={redacted_yaml(value, last)}")
        else:
            shown.append(redacted(option.replace("-", "_"), word))
        found = _OPTION.fullmatch(word)
        option = found[1] if found else ""
    return shown


def _scalars(node: Any, key: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    import yaml

    if isinstance(node, yaml.ScalarNode):
        yield key, node
    elif node is not None and id(node) not in seen:
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for name, value in node.value:
                yield from _scalars(value, str(name.value), seen)
        else:
            for value in node.value:
                yield from _scalars(value, key, seen)


def last_name(path: KeyPath) -> str:
    """The key of a value; of an item of a list, that of the list."""
    return next((str(part) for part in reversed(path) if isinstance(part, str)), "")


def leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Everything in nested mappings and lists that is neither, with the path to it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    else:
        yield path, value
