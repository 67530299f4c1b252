"""How much memory this machine has, for tests that need much of it."""

from __future__ import annotations

import re
from pathlib import Path


def kilobytes(name: str) -> int:
    """What ``/proc/meminfo`` says under a name, such as ``MemAvailable``."""
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    found = re.search(rf"^{name}: +(\d+) kB$", text, re.MULTILINE)
    assert found is not None, name
    return int(found[1])
