"""Resolving a component in a process that shares nothing with this one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from plugrl.core.kinds import Record

_PROGRAM = """
import json, sys
from plugrl.core.kinds import Record
from plugrl.core.registry import default_registry
from plugrl.testing.processes import location
print(location(default_registry().load(Record.from_json(json.load(sys.stdin)))))
"""


def location(value: Any) -> str:
    """The ``module:name`` where a class is defined, which need not be where it is exported."""
    return f"{value.__module__}:{value.__qualname__}"


def resolved_elsewhere(record: Record) -> str:
    """Load ``record`` in a new process and give the ``location`` of what it found there.

    Raises:
        AssertionError: the new process could not load it; the message is its error output.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps(record.to_json()),
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"a new process cannot load {record.name}: {done.stderr}"
    return done.stdout.splitlines()[-1]
