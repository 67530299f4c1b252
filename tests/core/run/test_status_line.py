"""What a status line says at a width, and how long the rest will take."""

import pytest

from plugrl.core.run.status_line import Pace, StatusLine, duration, padded

NUMBERS = [
    ("validation/exact_match", "0.41  "),
    ("rollout/reward", "0.3867"),
    ("train/loss", "-0.0028"),
]


def line(**changes):
    known = {
        "description": "warm_start", "completed": 37, "total": 600, "elapsed": 12.0, "left": 62.0,
        "numbers": NUMBERS, "activity": "rollout",
    }  # fmt: skip
    return StatusLine(**(known | changes))


@pytest.mark.parametrize(
    ("width", "left", "bar", "right"),
    [
        (160, "warm_start   37/600  rollout    ", 40,
         "  1:02 left  validation/exact_match 0.41    rollout/reward 0.3867  train/loss -0.0028"),
        (120, "warm_start   37/600  rollout    ", 23,
         "  1:02 left  validation/exact_match 0.41    rollout/reward 0.3867"),
        (100, "warm_start   37/600  ", 14,
         "  1:02 left  validation/exact_match 0.41    rollout/reward 0.3867"),
        (80, "warm_start   37/600  ", 13, "  1:02 left  exact_match 0.41    reward 0.3867"),
        (60, "warm_start   37/600  ", 0, "1:02 left  exact_match 0.41  "),
        (40, " 37/600  ", 0, "1:02 left  exact_match 0.41  "),
        (26, " 37/600  ", 0, "1:02 left  0.41  "),
        (20, " 37/600  ", 0, "0.41  "),
        (8, " 37/600", 0, ""),
        (3, " 37", 0, ""),
    ],
)  # fmt: skip
def test_what_there_is_room_for(width, left, bar, right):
    parts = line().arranged(width)
    assert (parts.left, parts.bar, parts.right) == (left, bar, right)
    assert parts.width <= width


@pytest.mark.parametrize("description", ["grpo", "warm_start", "a" * 60])
@pytest.mark.parametrize("total", [5, 100_000, None])
def test_it_never_needs_more_than_the_width(description, total):
    for width in range(1, 250):
        assert line(description=description, total=total).arranged(width).width <= width


def test_names_that_end_alike_keep_what_tells_them_apart():
    numbers = [("validation/reward", "0.41  "), ("rollout/reward", "0.3867")]
    assert line(numbers=numbers).arranged(70).right.endswith("validation 0.41    rollout 0.3867")


def test_without_an_end_there_is_a_clock_and_no_bar():
    parts = line(total=None, completed=None, description="validate", numbers=[]).arranged(80)
    assert (parts.left, parts.bar, parts.right) == ("validate  rollout    ", 0, "0:12")


def test_it_stands_still_when_a_number_gets_shorter():
    widths: dict[str, int] = {}
    assert padded({"a": 0.12345}, widths) == [("a", "0.1235")]
    assert padded({"a": -0.0012345}, widths) == [("a", "-0.001234")]
    assert padded({"a": 0.5}, widths) == [("a", "0.5      ")]


def test_the_pace_is_that_of_the_latest_units():
    pace = Pace(started=100.0)
    assert pace.left(10, 100.0) is None
    pace.update(1, 104.0)
    # Nine more of four seconds; two have passed.
    assert pace.left(10, 104.0) == 36.0
    assert pace.left(10, 106.0) == 34.0
    assert pace.left(None, 106.0) is None
    assert pace.left(10, 400.0) == 0.0


def test_what_was_done_before_a_resume_says_nothing_of_the_pace():
    pace = Pace(started=0.0)
    pace.update(901, 2.0)
    assert pace.left(1000, 2.0) == 2.0 * 99


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0:00"), (61.6, "1:02"), (3599.6, "1:00:00"), (90_061, "25:01:01")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
