"""YAML text to plain values, each with the line that wrote it.

The scalars are those of YAML 1.2, in which ``1e-3`` is a number and ``no``, ``on``, ``12:30``
and ``2026-01-01`` are text. Duplicate keys, keys that are no text, unknown tags and documents
that are too deep or too large are faults.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from plugrl.core.config.coerce import GLUED
from plugrl.core.config.sources.files import read_small_text
from plugrl.core.config.sources.origins import Fault, KeyPath, Origin, Origins, dotted, shown
from plugrl.core.errors import ConfigError

MAX_DEPTH = 32
MAX_VALUES = 10_000
_TOO_MANY = (
    f"more than {MAX_VALUES:,} values once aliases are expanded; data belongs in files that "
    "data.data_files names"
)

_YAML: Any = yaml
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}


class _Loader(_BASE):  # type: ignore[misc]
    """PyYAML's loader with no implicit types: `_scalar` decides them."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {"<": [(f"{_TAG}merge", re.compile("<<"))]}


def read_file(path: Path, faults: list[Fault]) -> tuple[dict[str, Any], Origins, str]:
    """Read one YAML file whose root is a mapping; give its values, origins and text.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8 or is not YAML.
    """
    name = shown(path)
    text = read_small_text(path, name)
    origin = Origin(name, 1, path.parent.resolve())
    origins: Origins = {}
    value = read_text(text, origin, origins, faults)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else "a single value"
        glued = GLUED.fullmatch(value) if isinstance(value, str) else None
        remedy = "write sections such as trainer: and indent what belongs to them"
        if glued is not None:
            remedy = f"write {glued[1]}: {glued[2]}, with a space"
        raise ConfigError(f"{name}: the root must be a mapping of sections, not {kind}; {remedy}")
    return value, origins, text


def read_text(
    text: str, origin: Origin, origins: Origins, faults: list[Fault], path: KeyPath = ()
) -> Any:
    """Parse YAML text; lines are counted when ``origin`` has one.

    Raises:
        ConfigError: the text is not YAML, with line and column.
    """
    opened: list[int] = []
    try:
        count = 0
        for event in _YAML.parse(text, Loader=_Loader):
            if not isinstance(event, yaml.CollectionEndEvent):
                count += 1
            # Keys and values are events of their own, and so is the beginning of the stream; the
            # exact count is made below, with aliases.
            if count > 2 * MAX_VALUES + MAX_DEPTH:
                raise ConfigError(f"{origin.source}: {_TOO_MANY}")
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append(event.start_mark.line + 1)
                if len(opened) > MAX_DEPTH:
                    line = event.start_mark.line + 1
                    raise ConfigError(
                        f"{origin.source}:{line}: nested deeper than {MAX_DEPTH} levels; flatten it"
                    )
            elif isinstance(event, yaml.CollectionEndEvent):
                opened.pop()
        node = _YAML.compose(text, Loader=_Loader)
    except UnicodeEncodeError as error:
        # Bytes of a command line that are no UTF-8 become half of a character.
        raise ConfigError(
            f"{origin.source}: not Unicode at column {error.start + 1}: {text[error.start]!r}; "
            "write the text in UTF-8"
        ) from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_syntax(error, origin, opened)) from None
    except yaml.YAMLError as error:
        what = str(error).partition("\n")[0]
        remedy = "remove it, or write it as an escape in double quotes"
        raise ConfigError(f"{origin.source}: not YAML: {what}; {remedy}") from None
    if node is None:
        return None
    return _Builder(origin, origins, faults).build(node, path)


#: What to do about a syntax error, by a part of PyYAML's words for it.
_REMEDIES = (
    ("'\\t'", "indent with spaces"),
    ("cannot start any token", "indent with spaces; quote text that starts with this character"),
    ("mapping values are not allowed", "quote text with a colon, and give each key its own line"),
    ("quoted scalar", "close the quote that is opened in line {line}"),
    ("flow", "close the bracket that is opened in line {line}"),
    ("another document", "keep one document; remove the --- line"),
    ("undefined alias", "quote text that starts with *, or define the anchor above"),
    ("alias", "quote text that starts with *"),
    ("anchor", "quote text that starts with &"),
    ("directive", "quote text that starts with %"),
    ("tag", "quote text that starts with !"),
    ("':'", "write key: value"),
)


def _syntax(error: yaml.MarkedYAMLError, origin: Origin, brackets: list[int]) -> str:
    """What is wrong and what to do; ``brackets`` are the lines of the collections that are open."""
    mark = error.problem_mark or error.context_mark
    what = ", ".join(part for part in (error.context, error.problem) if part)
    found = [remedy for words, remedy in _REMEDIES if words in what]
    remedy = found[0] if found else "check the indentation, quotes and brackets before it"
    opened = (error.context_mark or mark).line + 1 if mark is not None else 1
    if "flow" in what and brackets:
        # The parser names where it gave up for an item that is missing.
        opened = brackets[-1]
    what += f"; {remedy.format(line=opened)}"
    if mark is None:
        return f"{origin.source}: not YAML: {what}"
    if origin.line is None:
        what = what.removesuffix(f" that is opened in line {opened}")
        return f"{origin.source}: not YAML at column {mark.column + 1}: {what}"
    return f"{origin.source}:{mark.line + 1}:{mark.column + 1}: not YAML: {what}"


class _Builder:
    """Turns PyYAML nodes to values, and notes where each stands."""

    def __init__(self, origin: Origin, origins: Origins, faults: list[Fault]) -> None:
        self.origin = origin
        self.origins = origins
        self.faults = faults
        self.open: set[int] = set()
        self.built = 0

    def _at(self, node: yaml.Node) -> Origin:
        if self.origin.line is None:
            return self.origin
        return Origin(self.origin.source, node.start_mark.line + 1, self.origin.folder)

    def _fault(self, path: KeyPath, node: yaml.Node, message: str) -> None:
        self.faults.append(Fault(dotted(path), self._at(node), message))

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self.built += 1
        if self.built > MAX_VALUES:
            raise ConfigError(f"{self._at(node)}: {_TOO_MANY}")
        if id(node) in self.open:
            raise ConfigError(f"{self._at(node)}: {dotted(path)} contains itself through an alias")
        if len(path) > MAX_DEPTH:
            raise ConfigError(
                f"{self._at(node)}: nested deeper than {MAX_DEPTH} levels; flatten it"
            )
        self.origins.setdefault(path, self._at(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                self._known_tag(node, path, "seq")
                return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
            self._known_tag(node, path, "map")
            return self._mapping(node.value, path)
        finally:
            self.open.discard(id(node))

    def _known_tag(self, node: yaml.Node, path: KeyPath, expected: str) -> None:
        if node.tag not in (f"{_TAG}{expected}", "!"):
            self._fault(path, node, f"tag {_tag_name(node.tag)} is not supported; write plain YAML")

    def _mapping(self, pairs: list[Any], path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        lines: dict[str, int] = {}
        for key_node, value_node in pairs:
            if key_node.tag == f"{_TAG}merge":
                merged.append(value_node)
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            line = key_node.start_mark.line + 1
            if _is_glued(key_node, value_node):
                name, _, value = key.partition(":")
                message = f"no space after the colon makes this one key; write {name}: {value}"
                self._fault((*path, key), key_node, message)
                # What is meant goes on, so that nothing more is said of it.
                if name not in result:
                    result[name] = plain_scalar(value)
                    self.origins[(*path, name)] = self._at(key_node)
                continue
            if key in lines:
                first = f" (first in line {lines[key]})" if self.origin.line else ""
                self._fault((*path, key), key_node, f"written twice{first}; keep one")
                continue
            lines[key] = line
            self.origins[(*path, key)] = self._at(key_node)
            result[key] = self.build(value_node, (*path, key))
        for value_node in merged:
            self._merge(value_node, path, result)
        return result

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._fault(path, node, "a key must be text, not a list or mapping")
            return None
        key = self._scalar(node, path)
        if isinstance(key, str) and key:
            return key
        self._fault(path, node, f"the key {node.value or '(empty)'} is not text; quote it")
        return None

    def _merge(self, node: yaml.Node, path: KeyPath, result: dict[str, Any]) -> None:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self._fault(path, source, "<< merges mappings only; give it an alias to a mapping")
                continue
            origins: Origins = {}
            kept, self.origins = self.origins, origins
            try:
                values = self.build(source, path)
            finally:
                self.origins = kept
            for key, value in values.items():
                if key not in result:
                    result[key] = value
                    start = (*path, key)
                    kept.update({p: o for p, o in origins.items() if p[: len(start)] == start})

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        tag, text = node.tag, str(node.value)
        if tag in (f"{_TAG}str", "!"):
            # The loader resolves every untagged scalar to text; quotes say that text is meant.
            plain = not node.style and tag == f"{_TAG}str"
            return plain_scalar(text) if plain else text
        if tag in (f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool", f"{_TAG}null"):
            return plain_scalar(text)
        if tag == f"{_TAG}merge":
            return text
        self._fault(path, node, f"tag {_tag_name(tag)} is not supported; write plain YAML")
        return text


def _is_glued(key: yaml.ScalarNode, value: yaml.Node) -> bool:
    """Whether a pair is ``a:1`` between braces: a key without a value, where ``a: 1`` is meant."""
    empty = isinstance(value, yaml.ScalarNode) and value.start_mark.index == value.end_mark.index
    return empty and not key.style and GLUED.fullmatch(str(key.value)) is not None


def _tag_name(tag: str) -> str:
    return "!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag


def plain_scalar(text: str) -> Any:
    """Give the value of an unquoted YAML 1.2 scalar."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text) and len(text) < 100:
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        lowered = text.lower()
        return float(lowered.replace(".", "") if lowered.endswith(("inf", "nan")) else lowered)
    return text
