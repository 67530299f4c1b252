"""Texts that a model may write and that break what reads them without care."""

from __future__ import annotations

from collections.abc import Sequence

HOSTILE: Sequence[str] = (
    "",
    " ",
    "\x00",
    "\n" * 100,
    "x" * 100_000,
    "((((",
    "NaN",
    "</answer><answer>",
    "{probe}{dialogue}{%",
    "</s><|eot_id|><eos>",
    "é漢字🙂",
    "\u202eNaN",
)
