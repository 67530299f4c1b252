"""Goals from files: CSV in the form of AdvBench, JSON and JSONL lists, parquet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plugrl.core.errors import ConfigError
from plugrl.core.text.data.files import FileItem, place_of_problem, read_files
from plugrl.core.wording import did_you_mean

#: Columns that hold what the tester is told, in files of others; the first that is there counts.
PROMPTS = ("prompt", "goal", "behavior", "instruction")
#: The column of the category, unless a setting names another.
CATEGORY = "category"
_FIELD = re.compile(r"\{(\w+)\}")


def read_goals(
    path: str, prompt_key: str | None = None, category_key: str = CATEGORY
) -> list[dict[str, Any]]:
    """The goals of a file, with the columns ``prompt`` and ``category`` beside its own.

    Args:
        path: ``.csv``, ``.json``, ``.jsonl`` or ``.parquet``.
        prompt_key: column of what the tester is told; None: the first of ``PROMPTS``.
        category_key: column of the category; a row without it has none.

    Raises:
        ConfigError: the file is missing, malformed or empty, or lacks a column that is named.
    """
    rows = read_files([path], text_column="prompt")
    if not rows:
        raise ConfigError(f"data file {path} holds no goals; give it at least one")
    if category_key != CATEGORY and not any(category_key in row for row in rows):
        has = list(map(str, rows[0]))
        close = did_you_mean(category_key, has, 1)
        raise ConfigError(
            f"data file {path} has no column {category_key!r}; it has: {', '.join(has)}{close}"
        )
    return [
        _goal(row, place_of_problem(row, i), prompt_key, category_key) for i, row in enumerate(rows)
    ]


def _goal(
    row: Mapping[str, Any], place: str, prompt_key: str | None, category_key: str
) -> dict[str, Any]:
    key = prompt_key or next((name for name in PROMPTS if name in row), None)
    if key is None or key not in row:
        has = ", ".join(map(str, row)) or "nothing"
        wanted = repr(key) if key else " or ".join(map(repr, PROMPTS[:2]))
        close = did_you_mean(key, list(map(str, row)), 1) if key else "; set prompt_key"
        raise ConfigError(f"data file {place} has no column {wanted}; it has: {has}{close}")
    if not isinstance(row[key], str) or not row[key].strip():
        raise ConfigError(
            f"data file {place}: column {key!r} is {row[key]!r:.60}; text is expected"
        )
    category = row.get(category_key)
    return FileItem({**row, "prompt": row[key], "category": str(category or "")}, place)


def fill_template(template: str, item: Mapping[str, Any], setting: str) -> str:
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
