"""Resolves components in a new process that shares nothing with this one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from plugrl.core.plugins.kinds import Record

_PROGRAM = """
import json, sys, traceback
from plugrl.core.plugins.kinds import Record
from plugrl.core.plugins.registry import default_registry
from plugrl.testing.processes import defining_name
answers = []
for record in json.load(sys.stdin):
    try:
        found = default_registry().load(Record.from_json(record))
        answers.append({"location": defining_name(found)})
    except BaseException:
        answers.append({"error": traceback.format_exc()})
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(answers, file)
"""
_SECONDS = 300.0


def defining_name(value: Any) -> str:
    """The ``module:name`` where a class is defined, which need not be where it is exported."""
    return f"{value.__module__}:{value.__qualname__}"


class NewProcess:
    """Resolves components in a new process, all known ones in a single process.

    A component that cannot be loaded together with the others gets a process of its own, so that
    none fails because of another.

    Args:
        records: components that may be resolved.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._together = list(dict.fromkeys(records))
        self._found: dict[Record, str] = {}

    def location(self, record: Record) -> str:
        """The ``module:name`` of the class that a new process finds for ``record``.

        Raises:
            AssertionError: a new process cannot load it; the message is its error output.
        """
        if record in self._together:
            answers, fault = _load_in_new_process(self._together)
            if not fault:
                pairs = zip(self._together, answers, strict=True)
                self._found = {asked: a["location"] for asked, a in pairs if "location" in a}
            self._together = []
        if record not in self._found:
            answers, fault = _load_in_new_process([record])
            fault = fault or answers[0].get("error", "")
            assert not fault, f"a new process cannot load {record.name}: {fault}"
            self._found[record] = answers[0]["location"]
        return self._found[record]


def _load_in_new_process(records: Sequence[Record]) -> tuple[list[dict[str, str]], str]:
    """Load ``records`` in a new process; return an answer for each, or why the process failed."""
    with tempfile.TemporaryDirectory(prefix="plugrl-elsewhere-") as folder:
        result = Path(folder, "answers.json")
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(result)],
            input=json.dumps([record.to_json() for record in records]),
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode != 0 or not result.is_file():
            return [], f"it ended with code {done.returncode}: {done.stderr}"
        return json.loads(result.read_text(encoding="utf-8")), ""
