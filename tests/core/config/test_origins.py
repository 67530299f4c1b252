"""Where values were written, through everything that moves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugrl.core.config.sources.origins import (
    COMMAND_LINE,
    DEFAULT,
    Fault,
    Origin,
    as_written,
    bare_name,
    fault_at,
    forget,
    mark,
    move,
    nearest,
    place,
)

FILE = Origin("a.yaml", 3, Path("/a"), 2)


def test_what_was_moved_keeps_the_key_that_somebody_wrote():
    """However often it moves, and what lies below it too; what lies beside it stays."""
    origins = {("old", "lr"): FILE, ("old", "lr", "0"): COMMAND_LINE, ("older",): DEFAULT}
    move(origins, ("old",), ("new", "place"))
    move(origins, ("new", "place", "lr"), ("end",))
    assert {path: origin.key for path, origin in origins.items()} == {
        ("end",): "old.lr",
        ("end", "0"): "old.lr[0]",
        ("older",): None,
    }
    assert origins["end",] == FILE
    assert (origins["end",].folder, origins["end",].layer) == (Path("/a"), 2)
    assert str(fault_at(origins, ("end",), "is wrong")) == "old.lr (a.yaml:3): is wrong"
    assert str(fault_at(origins, ("end", "x"), "is wrong")) == "old.lr.x (a.yaml:3): is wrong"
    assert place(origins, ("end",)) == "old.lr (a.yaml:3)"


def test_everything_below_is_marked_and_forgotten_with_it():
    origins = {("b",): DEFAULT}
    mark({"x": [1, {"y": 2}]}, ("a",), FILE, origins)
    below = [("a",), ("a", "x"), ("a", "x", 0), ("a", "x", 1), ("a", "x", 1, "y")]
    assert origins == {("b",): DEFAULT, **dict.fromkeys(below, FILE)}
    forget(("a", "x"), origins)
    assert origins == {("b",): DEFAULT, ("a",): FILE}


def test_the_nearest_that_is_known_counts_and_no_default_where_somebody_wrote():
    origins = {(): COMMAND_LINE, ("a",): FILE, ("a", "b"): DEFAULT}
    assert nearest(origins, ("a", "b", "c")) is DEFAULT
    assert nearest(origins, ("a", "b", "c"), written=True) is FILE
    assert nearest(origins, ("x",)) is COMMAND_LINE
    assert nearest({}, ("x",)) is None


def test_a_bare_name_is_told_by_its_own_key():
    origins = {("trainer",): FILE}
    bare_name(origins, ("trainer",))
    assert str(fault_at(origins, ("trainer", "type"), "x")) == "trainer (a.yaml:3): x"


@pytest.mark.parametrize(
    ("path", "text"),
    [(("a", 0, "b"), "a[0].b"), (("a", "0", "b"), "a[0].b"), (("a",), "a"), ((), "")],
)
def test_paths_as_they_are_written(path, text):
    assert as_written(path) == text


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault("a.b", None, "m"), "a.b: m"),
        (Fault("a.b", DEFAULT, "m"), "a.b: m"),
        (Fault("a.b", FILE, "m", "c"), "a.b (a.yaml:3): m; did you mean c?"),
        (Fault("a.b", COMMAND_LINE, "m", written="b"), "b (command line): m"),
        (Fault("", None, "m"), "m"),
        (Fault("", COMMAND_LINE, "m"), "(command line): m"),
        (Fault("a\nb\r", None, "m"), "a\\nb\\r: m"),
    ],
)
def test_the_line_of_a_fault(fault, text):
    assert str(fault) == text
