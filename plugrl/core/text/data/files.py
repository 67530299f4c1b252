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
from typing import Any, TextIO

from plugrl.core.errors import ConfigError
from plugrl.core.hub.hub import SCHEME, find_hub
from plugrl.core.plugins.user_code.error_location import first_line
from plugrl.core.scenario import DataItem
from plugrl.core.wording import bounded

#: The types of files that are read here.
PLAIN_SUFFIXES = (".parquet", ".jsonl", ".json", ".csv", ".arrow")
#: In folders that ``save_to_disk`` of ``datasets`` writes: of one split, and of several.
_OF_SPLIT, _OF_SPLITS = "state.json", "dataset_dict.json"
#: What makes a path a glob.
WILD = frozenset("*?[")
#: Characters of one line, or of one field of a CSV file; a file without line breaks is no data.
LONGEST_LINE = 2**26


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
    return not WILD.isdisjoint(str(path)) and not os.path.exists(path)


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
    # What `Path` asks raises where a folder above may not be entered.
    return _saved_files(folder) if os.path.isdir(folder) else [folder]


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
        if not stat.S_ISREG(path.stat().st_mode) and not os.path.isdir(path):
            raise ConfigError(f"data file {path}: not a regular file; name one with problems")
        return list(itertools.islice(reader(path), limit))
    except OSError as error:
        # Those of Arrow have a message of several lines and no description of the system's.
        raise ConfigError(f"data file {path}: {error.strerror or first_line(error)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"data file {path}: {_NO_TEXT}") from None


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
                # Offsets of a damaged file point anywhere, and reading there ends the process.
                batch.validate(full=True)
                for item in batch.to_pylist():
                    yield FileItem(item, f"{path}, row {next(rows)}")
    except pyarrow.ArrowException as error:
        raise ConfigError(f"data file {path}: {first_line(error)}") from None


_NO_TEXT = "not UTF-8 text; save it as UTF-8"


def _open_text(path: Path, newline: str | None = None) -> TextIO:
    """A file of text, opened; UTF-16 and UTF-32 have a zero byte among the first four."""
    with path.open("rb") as file:
        if b"\0" in file.read(4):
            raise ConfigError(f"data file {path}: {_NO_TEXT}")
    return path.open(encoding="utf-8-sig", newline=newline)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; of a key that is there twice, the first value would be lost."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the key {bounded(twice, 100)!r} is there twice; leave one out")
    return values


_JSON = json.JSONDecoder(object_pairs_hook=_object)


def _decode(text: str, place: str) -> Any:
    """A value of JSON.

    Raises:
        json.JSONDecodeError: it is none.
        ConfigError: it is one that cannot be read; ``place`` says where.
    """
    try:
        return _JSON.decode(text)
    except json.JSONDecodeError:
        raise
    except ConfigError as error:
        raise ConfigError(f"data file {place}: {error}") from None
    except RecursionError:
        raise ConfigError(f"data file {place}: lists or objects are nested too deeply") from None
    except ValueError:
        # The only one besides: Python converts no whole number of more digits.
        limit = sys.get_int_max_str_digits()
        raise ConfigError(
            f"data file {place}: a number of more than {limit:,} digits; write it as a text"
        ) from None


def _jsonl(path: Path, text_column: str | None = None) -> Iterator[DataItem]:
    with _open_text(path) as file:
        lines = iter(partial(file.readline, LONGEST_LINE + 1), "")
        for number, line in enumerate(lines, 1):
            place = f"{path}:{number}"
            if len(line) > LONGEST_LINE:
                raise ConfigError(
                    f"data file {place}: the line has more than {LONGEST_LINE:,} characters; "
                    "write each problem on a line of its own"
                )
            if not line.strip():
                continue
            try:
                value = _decode(line, place)
            except json.JSONDecodeError as error:
                raise ConfigError(f"data file {place}: {error.msg}") from None
            yield _item(value, place, text_column)


def _json(path: Path, text_column: str | None = None) -> Iterator[DataItem]:
    """Items of a list, or of a file with one object a line, as many data sets name such files."""
    with _open_text(path) as file:
        text = file.read()
    if not text.strip():
        return
    try:
        values = _decode(text, str(path))
    except json.JSONDecodeError as error:
        if error.msg.startswith("Extra data"):
            yield from _jsonl(path, text_column)
            return
        raise ConfigError(f"data file {path}:{error.lineno}: {error.msg}") from None
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
    csv.field_size_limit(LONGEST_LINE)
    with _open_text(path, newline="") as lines:
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
            place = f"{path}:{rows.reader.line_num}"
            if str(error).startswith(("field larger", "unexpected end")):
                raise ConfigError(
                    f"data file {place}: a quoted field does not end; close its quotation mark"
                ) from None
            raise ConfigError(f"data file {place}: {error}") from None
