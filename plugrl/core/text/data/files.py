"""Problems in parquet, JSONL, CSV and JSON files."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import first_line
from plugrl.core.scenario import DataItem


class FileItem(dict[str, Any]):
    """A problem of a file, which knows its place there: ``file:line``, or the row of a table."""

    __slots__ = ("place",)

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        super().__init__(values)
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return FileItem, (dict(self), self.place)


def place_of_problem(item: DataItem, index: int) -> str:
    """How messages name a problem: by its place in a file, or else by its number."""
    return getattr(item, "place", "") or f"problem {index}"


def read_files(paths: Sequence[str | Path], *, text_column: str | None = None) -> list[DataItem]:
    """Problems from parquet, JSONL and CSV files, in order.

    Args:
        paths: of the files.
        text_column: where it is given, a text in place of a problem is one with this column alone,
            and JSON files with a list are read too.

    Raises:
        ConfigError: a file is missing, unreadable, of unknown type or malformed.
    """
    return [item for path in paths for item in _read(Path(path), text_column=text_column)]


def first_problem(path: str | Path) -> DataItem | None:
    """The first problem of a file, without reading the rest; None: the file holds none.

    Raises:
        ConfigError: as :func:`read_files`.
    """
    found = _read(Path(path), 1)
    return found[0] if found else None


def _read(
    path: Path, limit: int | None = None, *, text_column: str | None = None
) -> list[DataItem]:
    readers: dict[str, Callable[[Path], Iterator[DataItem]]] = {
        ".parquet": _parquet,
        ".jsonl": partial(_jsonl, text_column=text_column),
        ".csv": _csv,
    }
    if text_column is not None:
        readers = {".csv": _csv, ".json": partial(_json, text_column=text_column), **readers}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(f"data file {path}: unknown type; use {', '.join(readers)}")
    try:
        return list(itertools.islice(reader(path), limit))
    except OSError as error:
        raise ConfigError(f"data file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"data file {path}: not UTF-8 text") from None


def _parquet(path: Path) -> Iterator[DataItem]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            rows = itertools.count()
            for batch in file.iter_batches():
                for item in batch.to_pylist():
                    yield FileItem(item, f"{path}, row {next(rows)}")
    except pyarrow.ArrowException as error:
        raise ConfigError(f"data file {path}: {first_line(error)}") from None


def _jsonl(path: Path, text_column: str | None = None) -> Iterator[DataItem]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            place = f"{path}:{number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"data file {place}: {getattr(error, 'msg', error)}") from None
            yield _item(value, place, text_column)


def _json(path: Path, text_column: str) -> Iterator[DataItem]:
    text = path.read_text(encoding="utf-8-sig")
    if not text.strip():
        return
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        place = f"{path}:{line}" if line else str(path)
        raise ConfigError(f"data file {place}: {getattr(error, 'msg', error)}") from None
    if not isinstance(values, list):
        raise ConfigError(
            f"data file {path}: it holds {_kind(values)}; a list of texts or objects is expected"
        )
    for number, value in enumerate(values):
        yield _item(value, f"{path}, item {number}", text_column)


def _item(value: Any, place: str, text_column: str | None) -> FileItem:
    if isinstance(value, dict):
        return FileItem(value, place)
    if text_column is None:
        raise ConfigError(f"data file {place}: an object is expected")
    if not isinstance(value, str):
        raise ConfigError(f"data file {place}: {_kind(value)}; a text or an object is expected")
    return FileItem({text_column: value}, place)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    return names.get(type(value), f"the value {value!r:.40}")


def _csv(path: Path) -> Iterator[DataItem]:
    # The module's own limit of 128 KiB a field is shorter than some prompts.
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    with path.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.DictReader(lines, strict=True)
        try:
            names = list(rows.fieldnames or ())
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise ConfigError(f"data file {path}:1: two columns are named {twice!r}")
            for row in rows:
                if None in row or None in row.values():
                    raise ConfigError(f"data file {path}:{rows.line_num}: wrong number of columns")
                yield FileItem(row, f"{path}:{rows.line_num}")
        except csv.Error as error:
            raise ConfigError(f"data file {path}:{rows.reader.line_num}: {error}") from None
