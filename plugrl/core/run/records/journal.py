"""``Journal``: a JSON lines file of finished work, from which interrupted work continues."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from plugrl.core.run.atomic_writes import disk_error, sync_folder, write_text


class Journal(ABC):
    """A JSON lines file: a header that identifies the work, then a line for each finished piece.

    A line is on disk before the next piece counts as finished. A partial line at the end, left by a
    killed process, is overwritten by the next line; other unreadable lines are removed.

    Args:
        path: the file; it is created with the first line.
        header: plain values; a file with another header is passed to :meth:`reject`.

    Attributes:
        damaged: the numbers of lines that were removed, counted from 1.

    Raises:
        PlugrlError: the file cannot be read, or rewritten without the unreadable lines.
    """

    #: What messages say that a disk error prevented, and the setting that names the folder.
    action: ClassVar[str] = "write down finished work"
    setting: ClassVar[str] = "settings.runs_folder"

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.damaged: list[int] = []
        self._header = json.loads(json.dumps(dict(header), default=str))
        self._size = 0
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise disk_error(error, self.action, path, self.setting) from error
        self._read(content)

    def _read(self, content: bytes) -> None:
        # Whatever follows the last line break is a partial line.
        first, *lines = content.split(b"\n")
        found = _parse_line(first) if lines else None
        if found != self._header:
            if not _line(self._header).startswith(content):
                self.reject(found, content)
            return
        whole, unread = [first], []
        for number, line in enumerate(lines[:-1], 2):
            record = _parse_line(line)
            try:
                if record is None:
                    raise TypeError("it is no JSON object")
                self.accept(record)
            except (TypeError, KeyError, AttributeError):
                unread.append(number)
            else:
                whole.append(line)
                # Unreadable lines after the last readable one are left by a kill, not damage.
                self.damaged = list(unread)
        intact = b"\n".join([*whole, b""])
        self._size = len(intact)
        if self.damaged:
            try:
                write_text(self.path, intact.decode())
            except OSError as error:
                raise disk_error(error, self.action, self.path, self.setting) from error

    @abstractmethod
    def accept(self, record: dict[str, Any]) -> None:
        """Handle a record of the file; a later record of the same piece replaces an earlier one.

        Raises:
            TypeError, KeyError, AttributeError: it is not a record of this kind of work.
        """

    @abstractmethod
    def reject(self, found: dict[str, Any] | None, content: bytes) -> None:
        """Handle a file of other work: move it away, or raise.

        Args:
            found: its header; None if the first line cannot be read.
            content: the whole file.
        """

    def append(self, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Write records; they are on the disk when this returns.

        Returns:
            The records as they are read again.

        Raises:
            PlugrlError: they cannot be written.
        """
        lines = [_line(record) for record in records]
        data = b"".join(lines if self._size else [_line(self._header), *lines])
        try:
            new = not self.path.exists()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "xb" if new else "r+b") as file:
                file.truncate(self._size)
                file.seek(self._size)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if new:
                sync_folder(self.path.parent)
        except OSError as error:
            raise disk_error(error, self.action, self.path, self.setting) from error
        self._size += len(data)
        return [json.loads(line) for line in lines]


def _line(record: Mapping[str, Any]) -> bytes:
    # ASCII escapes also represent invalid Unicode, such as lone surrogates.
    return (json.dumps(record) + "\n").encode("ascii")


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
