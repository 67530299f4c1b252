"""Tables of another system's names on pages of the documentation, and trying their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
#: What rows say of a name: it works, something else is written, or there is nothing like it.
STATES = ("works", "instead", "missing")

#: By name: what is written there, and for "instead" what is written here.
Trials = Mapping[str, tuple[str, str | None]]


def rows_of(page: str) -> list[list[str]]:
    """Name, state and the last column of each row of the tables with three columns."""
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return [row for row in cells if len(row) > 1 and row[1] in STATES]


@dataclass
class NamePage:
    """A page and what tries its rows.

    Args:
        file: the page.
        prelude: the code that all trials begin with.
        trials: one for each row.
    """

    file: str
    prelude: str
    trials: Trials
    _names: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> list[list[str]]:
        """As of :func:`rows_of`."""
        return rows_of((DOCS / self.file).read_text("utf-8"))

    def params(self) -> list[Any]:
        """Page, name and state of each row, for ``parametrize``."""
        return [pytest.param(self, row[0], row[1], id=f"{self.file}-{row[0]}") for row in self.rows]

    def try_row(self, name: str, state: str) -> None:
        """Run what is written there, and here.

        Raises:
            AssertionError: another thing happens than the row says.
        """
        written, ours = self.trials[name]
        if state == "works":
            self._run(written)
            return
        with pytest.raises(Exception) as refused:  # noqa: B017, PT011 - each has its own
            self._run(written)
        assert not isinstance(refused.value, (NameError, SyntaxError)), refused.value
        assert (ours is None) == (state == "missing")
        if ours is not None:
            self._run(ours)

    def _run(self, code: str) -> None:
        if not self._names:
            self._names["__name__"] = "tried"
            exec(self.prelude, self._names)  # noqa: S102 - the text of a test
        exec(code, dict(self._names))  # noqa: S102 - the text of a test
