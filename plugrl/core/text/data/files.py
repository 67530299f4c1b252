"""Problems in parquet, JSONL, JSON, CSV and Arrow files, and in folders of ``save_to_disk``."""

from __future__ import annotations

import csv
import glob
import itertools
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plugrl.core.errors import ConfigError
from plugrl.core.hub import SCHEME, find_hub
from plugrl.core.plugins.user_code.error_location import first_line
from plugrl.core.scenario import DataItem

#: The types of files that are read here.
PLAIN_SUFFIXES = (".parquet", ".jsonl", ".json", ".csv", ".arrow")
#: In folders that ``save_to_disk`` of ``datasets`` writes: of one split, and of several.
_OF_SPLIT, _OF_SPLITS = "state.json", "dataset_dict.json"
_WILD = frozenset("*?[")


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


def is_pattern(path: str | Path) -> bool:
    """Whether a path is a pattern such as ``data/*.jsonl``, and no file of that name."""
    return not _WILD.isdisjoint(str(path)) and not Path(path).exists()


def read_files(paths: Sequence[str | Path], *, text_column: str | None = None) -> list[DataItem]:
    """Problems from files, in order.

    Args:
        paths: of files, or of folders that ``save_to_disk`` of ``datasets`` wrote; patterns, whose
            files are sorted by name; or addresses of the hub (``hf://``).
        text_column: where it is given, a text in place of a problem is one with this column alone.

    Raises:
        ConfigError: a file is missing, unreadable, of unknown type or malformed.
    """
    files = (file for path in paths for file in files_of(path))
    return [item for file in files for item in _read(file, text_column=text_column)]


def first_problem(path: str | Path) -> DataItem | None:
    """The first problem of a path as of :func:`read_files`, without reading the rest.

    None: it holds none, or much would have to be downloaded first.

    Raises:
        ConfigError: as :func:`read_files`.
    """
    if str(path).startswith(SCHEME):
        return find_hub().first_in(str(path))
    for file in files_of(path):
        found = _read(file, 1)
        if found:
            return found[0]
    return None


def files_of(path: str | Path) -> Sequence[Path]:
    """The files that a path means, those of a pattern and of a folder sorted.

    Raises:
        ConfigError: there are none.
    """
    if str(path).startswith(SCHEME):
        return find_hub().files(str(path))
    if is_pattern(path):
        found = [Path(file) for file in sorted(glob.glob(str(path), recursive=True))]
        files = [file for file in found if not file.is_dir()]
        if not files:
            raise ConfigError(f"data files {path}: no file matches the pattern")
        return files
    folder = Path(path)
    return _saved_files(folder) if folder.is_dir() else [folder]


def _saved_files(folder: Path) -> list[Path]:
    """The files of a folder that ``save_to_disk`` wrote, in the order of their rows."""
    if (folder / _OF_SPLITS).is_file():
        splits = sorted(each.parent.name for each in folder.glob(f"*/{_OF_SPLIT}"))
        raise ConfigError(
            f"data folder {folder}: it holds the splits {', '.join(splits)}; name one, such as "
            f"{folder / splits[0] if splits else folder}"
        )
    try:
        state = json.loads((folder / _OF_SPLIT).read_text(encoding="utf-8"))
        return [folder / file["filename"] for file in state["_data_files"]]
    except FileNotFoundError:
        raise ConfigError(
            f"data folder {folder}: it is not one that save_to_disk of datasets writes; name its "
            f"files, such as {folder / '*.jsonl'}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"data folder {folder}: {_OF_SPLIT}: {first_line(error)}") from None


def _read(
    path: Path, limit: int | None = None, *, text_column: str | None = None
) -> list[DataItem]:
    readers: dict[str, Callable[[Path], Iterator[DataItem]]] = {
        ".parquet": _parquet,
        ".jsonl": partial(_jsonl, text_column=text_column),
        ".json": partial(_json, text_column=text_column),
        ".csv": _csv,
        ".arrow": _arrow,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(f"data file {path}: unknown type; use {', '.join(PLAIN_SUFFIXES)}")
    try:
        # A pipe would be waited for, and a device has no end.
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            raise ConfigError(f"data file {path}: not a regular file; name one with problems")
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


def _arrow(path: Path) -> Iterator[DataItem]:
    """Rows of Arrow's formats: the stream, which ``datasets`` writes, and the file."""
    import pyarrow

    rows = itertools.count()
    try:
        with pyarrow.memory_map(os.fspath(path)) as source:
            begins = source.read(6)
            source.seek(0)
            is_file = begins == b"ARROW1"
            reader = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(source)
            numbers = range(reader.num_record_batches) if is_file else None
            batches = reader if numbers is None else map(reader.get_batch, numbers)
            for batch in batches:
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


def _json(path: Path, text_column: str | None = None) -> Iterator[DataItem]:
    """Items of a list, or of a file with one object a line, as many data sets name such files."""
    text = path.read_text(encoding="utf-8-sig")
    if not text.strip():
        return
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        if str(getattr(error, "msg", "")).startswith("Extra data"):
            yield from _jsonl(path, text_column)
            return
        line = getattr(error, "lineno", None)
        place = f"{path}:{line}" if line else str(path)
        raise ConfigError(f"data file {place}: {getattr(error, 'msg', error)}") from None
    if not isinstance(values, list):
        items = "objects" if text_column is None else "texts or objects"
        raise ConfigError(
            f"data file {path}: it holds {_kind(values)}; a list of {items} is expected"
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
