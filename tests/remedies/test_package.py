"""Every remedy that the testing kit and the front of the package recommend is tried, and helps."""

from __future__ import annotations

import re
from pathlib import Path

from remedies import ROOMS, untried

#: Texts that name no key, value or command.
REASONS = {
    "def add(a, b): return add": "a program that a sandbox runs",
    "def add(a, b): return a + b": "a program that a sandbox runs",
    "def add(a, b): return 10 ** 100000": "a program that a sandbox runs",
    "def f(x, y): return {": "a program that a sandbox runs",
    "while True: pass": "a program that a sandbox runs",
    "raise SystemExit(3)": "a program that a sandbox runs",
    "train() ended no step; call": "of the code of a trainer",
    "plugrl has no {}; write {}": "of an import in code",
}


def test_every_remedy_is_tried_or_names_nothing():
    assert untried("", [], REASONS) == []


def test_every_room_has_a_module():
    asked = {
        room
        for file in Path(__file__).parent.glob("test_*.py")
        for room in re.findall(r'untried\(\s*"([^"]*)"', file.read_text(encoding="utf-8"))
    }
    assert asked == set(ROOMS)
