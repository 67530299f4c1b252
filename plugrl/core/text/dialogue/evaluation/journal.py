"""Finished dialogues as JSON lines, so that an evaluation that is cut off goes on from there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plugrl.core.errors import UsageError
from plugrl.core.run.files import disk_error, write_text
from plugrl.core.text.dialogue.evaluation.records import EvaluatedDialogue

JOURNAL_FILE = "dialogues.jsonl"
_OUTPUT = "--output"
#: A dialogue by the place of its prompt and its attempt.
Key = tuple[int, int]


class Journal:
    """The file ``dialogues.jsonl`` of an evaluation: what it is about, then a line a dialogue.

    Lines that are not intact are left out, such as the last one after a crash; their dialogues
    are held again. Of two lines about one dialogue the later one counts.

    Args:
        folder: is created, with those above it.
        identity: what the evaluation is about; a folder of another one is refused.

    Raises:
        UsageError: the folder holds another evaluation, or cannot be written.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.path = folder / JOURNAL_FILE
        self.finished: dict[Key, EvaluatedDialogue] = {}
        self._header = json.loads(json.dumps({"red_team": dict(identity)}, default=str))
        make_folder(folder)
        try:
            if self.path.exists():
                self._read()
            self._write_again()
        except OSError as error:
            raise disk_error(error, "keep dialogues", self.path, _OUTPUT) from error

    def _read(self) -> None:
        # Cut off in the middle of a character, a line is no UTF-8.
        lines = self.path.read_bytes().split(b"\n")
        header = _parsed(lines[0])
        if header is None and any(line.strip() for line in lines):
            raise UsageError(
                f"{self.path} does not begin as an evaluation of red-teaming does; name another "
                f"folder with {_OUTPUT}"
            )
        if header is not None and header != self._header:
            raise UsageError(
                f"{self.path} holds another evaluation ({_difference(header, self._header)}); "
                f"name another folder with {_OUTPUT}"
            )
        for line in lines[1:]:
            record = _parsed(line)
            try:
                dialogue = EvaluatedDialogue.from_dict(record) if record else None
            except (TypeError, KeyError, AttributeError):
                continue
            if dialogue is not None:
                self.finished[dialogue.item, dialogue.attempt] = dialogue

    def _write_again(self) -> None:
        """The intact lines alone, so that the next one does not stand behind half of one."""
        records = [self._header, *(dialogue.to_dict() for dialogue in self.finished.values())]
        write_text(self.path, "".join(map(_line, records)))

    def add(self, dialogues: Sequence[EvaluatedDialogue]) -> None:
        """Write dialogues, each a line.

        Raises:
            PlugrlError: they cannot be written.
        """
        try:
            with self.path.open("a", encoding="utf-8") as file:
                for dialogue in dialogues:
                    file.write(_line(dialogue.to_dict()))
                    self.finished[dialogue.item, dialogue.attempt] = dialogue
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_error(error, "keep dialogues", self.path, _OUTPUT) from error


def make_folder(folder: Path) -> None:
    """Make a folder, with those above it.

    Raises:
        PlugrlError: it cannot be made, or is a file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{folder} is a file; name a folder with {_OUTPUT}") from None
    except OSError as error:
        raise disk_error(error, "make the folder", folder, _OUTPUT) from error


def _line(record: Mapping[str, Any]) -> str:
    # ASCII, so that text which is no Unicode, such as half of a pair, can be written too.
    return json.dumps(record) + "\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    old, new = found.get("red_team"), wanted["red_team"]
    if not isinstance(old, dict):
        return "of another form"
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return f"{', '.join(changed)} {'differs' if len(changed) == 1 else 'differ'}"
