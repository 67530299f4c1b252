"""Output of commands: tables and JSON go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from plugrl.core.wording import shown


def emit_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    as_json: bool = False,
    empty: str = "",
) -> None:
    """Print rows as aligned columns, or as a JSON list of objects.

    JSON has all keys of the rows, the table only ``columns``. No rows print ``[]`` in JSON; instead
    of an empty table the remark ``empty`` goes to stderr.
    """
    if as_json:
        emit_json([dict(row) for row in rows])
        return
    if not rows:
        if empty:
            note(empty)
        return
    lines = [[_heading(name) for name in columns]]
    lines += [[cell(row.get(name)) for name in columns] for row in rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        text = "  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True))
        print(shown(text.rstrip()))


def _heading(column: str) -> str:
    """The heading of a column; keys and metrics are left unchanged, so that they can be copied."""
    written = "." in column or "/" in column
    return column if written else column.upper().replace("_", " ")


def emit_json(value: Any) -> None:
    """Print a value as indented JSON; values that JSON lacks become strings."""
    json.dump(value, sys.stdout, indent=2, default=str)
    print()


def can_print(text: str) -> bool:
    """Whether the encoding of stdout can represent ``text``."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def cell(value: Any) -> str:
    """A value as the text of a table cell: ``-`` for nothing, lists joined by commas."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(str(item) for item in value) or "-"
    return str(value)


def note(message: str) -> None:
    """Print a remark for the user on stderr."""
    print(shown(message), file=sys.stderr)


Verbosity = Literal["quiet", "normal", "verbose"]


def set_verbosity(*, verbose: bool, quiet: bool) -> Verbosity:
    """Decide what of a run is shown while it goes on: its messages and its progress.

    Quiet: errors alone. Normal: progress, and messages but those that say the same. Verbose: all
    messages.

    Raises:
        UsageError: both are wanted.
    """
    import logging
    import warnings

    from plugrl.core.errors import PlugrlDeprecationWarning, UsageError
    from plugrl.core.run.progress import force_style

    if verbose and quiet:
        raise UsageError("-v and -q exclude each other; leave one out")
    force_style("none" if quiet else None)
    if quiet:
        warnings.simplefilter("ignore", PlugrlDeprecationWarning)
    logger = logging.getLogger("plugrl")
    logger.setLevel(min(logging.INFO, logger.level or logging.INFO))
    for handler in logger.handlers:
        if handler.get_name() != "plugrl.cli":
            continue
        if quiet:
            handler.setLevel(logging.ERROR)
            continue
        if not verbose and handler.level > logging.DEBUG:
            handler.addFilter(lambda record: not getattr(record, "plugrl_detail", False))
        handler.setLevel(min(logging.INFO, handler.level))
    return "quiet" if quiet else "verbose" if verbose else "normal"


def emit_runs(runs: Sequence[Any]) -> None:
    """Print the last metrics of finished runs: one column per run, one row per metric."""
    from plugrl.core.plugins.user_code.working_folder import display_path

    tables = []
    for run in runs:
        metrics = {k: v for k, v in run.last_metrics.items() if not k.startswith("time/")}
        tables.append({"run": str(display_path(run.folder)), "seed": run.config.seed, **metrics})
    names = dict.fromkeys(name for table in tables for name in table)
    columns = [f"value {i}" if len(tables) > 1 else "value" for i in range(1, len(tables) + 1)]
    emit_table(
        [
            {"name": name, **{c: t.get(name) for c, t in zip(columns, tables, strict=True)}}
            for name in names
        ],
        ["name", *columns],
    )


def write_lines(path: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records as JSON lines.

    Raises:
        UsageError: the file cannot be written.
    """
    from plugrl.core.errors import UsageError

    try:
        with open(path, "w", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def check_writable(path: str) -> None:
    """Refuse a file that :func:`write_lines` cannot write, before hours are spent on its content.

    Raises:
        UsageError: it cannot be opened for writing.
    """
    import os

    from plugrl.core.errors import UsageError

    new = not os.path.lexists(path)
    try:
        with open(path, "a", encoding="utf-8"):
            pass
        if new:
            os.unlink(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def read_lines(path: str) -> list[str]:
    """The non-empty lines of a text file.

    Raises:
        UsageError: the file cannot be read.
    """
    from plugrl.core.errors import UsageError

    try:
        with open(path, encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
