"""The pages that list kinds, templates and suites list all of them, and say what the code says."""

import re
from pathlib import Path

import pytest

from plugrl.commands._templates import TEMPLATES
from plugrl.core.plugins.kinds import KINDS
from plugrl.testing.plugin import KINDS as WITH_SUITES

DOCS = Path(__file__).parents[2] / "docs"


def table(page, first):
    """The rows below a header that begins with ``first``: names in code of the first cell, rest."""
    lines = (DOCS / page).read_text("utf-8").splitlines()
    (begin,) = [i for i, line in enumerate(lines) if line.startswith(f"| {first}")]
    rows = {}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        cell, rest = line.strip("| ").split(" | ", 1)
        rows |= dict.fromkeys(re.findall(r"`(\w+)`", cell), rest)
    return rows


@pytest.mark.parametrize(
    ("page", "first", "names"),
    [
        ("plugin-packages.md", "Template | Writes", TEMPLATES),
        ("plugin-packages.md", "Kind | What its suite tries", WITH_SUITES),
        ("component-kinds.md", "Kind | What it is", KINDS),
        ("component-kinds.md", "Kind | Signature and answer", KINDS),
    ],
)
def test_a_table_has_a_row_of_each(page, first, names):
    assert set(table(page, first)) == set(names)


def test_what_is_written_is_what_the_kind_asks_for():
    rows = table("component-kinds.md", "Kind | Signature and answer")
    assert {name: text.strip("`") for name, text in rows.items()} == {
        name: kind.form for name, kind in KINDS.items() if name in rows
    }


def test_a_stable_contract_is_called_stable():
    rows = table("component-kinds.md", "Kind | What it is")
    assert {name for name, text in rows.items() if text.endswith("| stable")} == {
        name for name, kind in KINDS.items() if kind.stable
    }
