"""Samples as tables, for trackers that hold tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from plugrl.core.run.records.jsonl_file import json_ready


@dataclass
class SampleTable:
    """The records of one name and step: ``data`` has one row of ``columns`` for each."""

    name: str
    step: int
    columns: list[str] = field(default_factory=list)
    data: list[list[Any]] = field(default_factory=list)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a row; values other than text, numbers and null become JSON."""
        for column in record:
            if column != "step" and column not in self.columns:
                self.columns.append(str(column))
                for row in self.data:
                    row.append(None)
        self.data.append([_cell(record.get(column)) for column in self.columns])


class SampleTables:
    """Collects samples until their step is over."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, int], SampleTable] = {}

    def add(self, name: str, record: Mapping[str, Any]) -> None:
        """Add a record to the table of its name and step."""
        step = int(record.get("step", 0))
        table = self._tables.setdefault((name, step), SampleTable(name, step))
        table.add(record)

    def take(self, step: int | None = None) -> Iterator[SampleTable]:
        """Remove and yield the tables up to a step, or all, in the order of their steps."""
        for key in sorted(self._tables, key=lambda key: key[1]):
            if step is None or key[1] <= step:
                yield self._tables.pop(key)


def _cell(value: Any) -> str | int | float | bool | None:
    value = json_ready(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return json.dumps(value, ensure_ascii=False)


def markdown(table: SampleTable) -> str:
    """A table of Markdown; line breaks within cells are kept."""
    lines = [table.columns, ["---"] * len(table.columns), *table.data]
    return "\n".join("| " + " | ".join(map(_escape_cell, line)) + " |" for line in lines)


def _escape_cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return "<br>".join(text.replace("\\", "\\\\").replace("|", "\\|").splitlines())
