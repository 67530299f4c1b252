"""Goals from files: CSV in the form of AdvBench, JSON and JSONL lists, parquet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plugrl.core.errors import ConfigError
from plugrl.core.suggest import did_you_mean
from plugrl.core.text.data.files import FileItem, place_of_problem, read_files

#: Columns that hold what the tester is told, in files of others; the first that is there counts.
PROMPTS = ("prompt", "goal", "behavior", "instruction")
_FIELD = re.compile(r"\{(\w+)\}")


def read_goals(
    path: str, prompt_key: str | None = None, category_key: str = "category"
) -> list[dict[str, Any]]:
    """The goals of a file, with the columns ``prompt`` and ``category`` beside its own.

    Args:
        path: ``.csv``, ``.json``, ``.jsonl`` or ``.parquet``.
        prompt_key: column of what the tester is told; None: the first of ``PROMPTS``.
        category_key: column of the category; a row without it has none.

    Raises:
        ConfigError: the file is missing, malformed or empty, or lacks the column.
    """
    file = Path(path)
    own = {".json": _json, ".jsonl": _jsonl}.get(file.suffix.lower())
    try:
        rows = list(own(file)) if own else [dict_at(item, i) for i, item in _table(file)]
    except OSError as error:
        raise ConfigError(f"data file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"data file {path}: not UTF-8 text") from None
    if not rows:
        raise ConfigError(f"data file {path} holds no goals; give it at least one")
    return [_goal(row, path, prompt_key, category_key) for row in rows]


def dict_at(item: Mapping[str, Any], index: int) -> FileItem:
    """A row that knows its place."""
    return FileItem(item, place_of_problem(item, index))


def _table(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if file.suffix.lower() not in (".csv", ".parquet"):
        raise ConfigError(f"data file {file}: unknown type; use .csv, .json, .jsonl or .parquet")
    yield from enumerate(read_files([file]))


def _jsonl(file: Path) -> Iterator[FileItem]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _row(_parsed(line, f"{file}:{number}"), f"{file}:{number}")


def _json(file: Path) -> Iterator[FileItem]:
    text = file.read_text(encoding="utf-8-sig")
    if not text.strip():
        return
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f"{file}:{line}" if line else str(file)
        raise ConfigError(f"data file {where}: {getattr(error, 'msg', error)}") from None
    if not isinstance(values, list):
        raise ConfigError(
            f"data file {file}: it holds {_kind(values)}; a list of texts or objects is expected"
        )
    for number, value in enumerate(values):
        yield _row(value, f"{file}, item {number}")


def _parsed(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"data file {place}: {getattr(error, 'msg', error)}") from None


def _row(value: Any, place: str) -> FileItem:
    if isinstance(value, str):
        return FileItem({"prompt": value}, place)
    if not isinstance(value, dict):
        raise ConfigError(f"data file {place}: {_kind(value)}; a text or an object is expected")
    return FileItem(value, place)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    return names.get(type(value), f"the value {value!r:.40}")


def _goal(row: FileItem, path: str, prompt_key: str | None, category_key: str) -> dict[str, Any]:
    key = prompt_key or next((name for name in PROMPTS if name in row), None)
    if key is None or key not in row:
        has = ", ".join(map(str, row)) or "nothing"
        wanted = repr(key) if key else " or ".join(map(repr, PROMPTS[:2]))
        close = did_you_mean(key, list(map(str, row)), 1) if key else "; set prompt_key"
        raise ConfigError(f"data file {row.place} has no column {wanted}; it has: {has}{close}")
    if not isinstance(row[key], str) or not row[key].strip():
        raise ConfigError(
            f"data file {row.place}: column {key!r} is {row[key]!r:.60}; text is expected"
        )
    category = row.get(category_key)
    return FileItem({**row, "prompt": row[key], "category": str(category or "")}, row.place)


def filled(template: str, item: Mapping[str, Any], setting: str) -> str:
    """``template`` with ``{COLUMN}`` replaced by the columns of a goal.

    Raises:
        ConfigError: the goal has no such column.
    """

    def column(match: re.Match[str]) -> str:
        name = match[1]
        if name not in item:
            has = ", ".join(map(str, item))
            place = getattr(item, "place", "")
            raise ConfigError(
                f"{setting} fills in {{{name}}}, and a goal has no such column; it has: {has}"
                + (f" ({place})" if place else "")
            )
        return str(item[name])

    return _FIELD.sub(column, template)
