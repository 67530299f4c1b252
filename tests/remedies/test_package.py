"""Every remedy that the testing kit and the front of the package recommend is tried, and helps."""

from __future__ import annotations

from remedies import untried

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
