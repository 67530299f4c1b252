"""Small curves as inline pictures, and static pages of tables."""

import re

import pytest

from plugrl.core.run.records.curve_svg import curve_svg
from plugrl.core.run.records.web_page import page, table, text


def drawn(values):
    """The points of a curve over steps from 0, as they stand in its picture."""
    picture = curve_svg([(float(step), value) for step, value in enumerate(values)])
    found = re.search(r'<polyline points="([^"]*)"', picture)
    if found is None:
        return re.search(r'<circle cx="([\d.]+)" cy="([\d.]+)"', picture).groups()
    return [tuple(map(float, point.split(","))) for point in found[1].split()]


# The picture is 360 wide and 110 high, with a margin of 4: the lower left corner is (4, 106).
@pytest.mark.parametrize(
    ("values", "points"),
    [
        ([5.0, 7.0, 6.0], [(4, 106), (180, 4), (356, 55)]),
        ([2.0, 2.0], [(4, 55), (356, 55)]),
        ([3.0], ("180.0", "55.0")),
    ],
)
def test_a_curve_fills_its_picture(values, points):
    assert drawn(values) == points


@pytest.mark.parametrize("count", [400, 401, 1000, 5000])
def test_a_long_curve_is_drawn_by_400_points_evenly_from_the_first_to_the_last(count):
    points = drawn([step >= count / 2 for step in range(count)])
    assert len(points) == 400
    assert (points[0], points[-1]) == ((4, 106), (356, 4))
    steps = [(x - 4) / 352 * (count - 1) for x, _ in points]
    # Places have one digit behind the point, and steps are whole.
    slack = 1 + 0.1 / 352 * count
    assert all(abs(step - place * (count - 1) / 399) <= slack for place, step in enumerate(steps))
    assert len({x for x, _ in points}) == 400
    assert [y for _, y in points] == [106] * 200 + [4] * 200


def test_pages_show_text_as_it_is_read_and_load_nothing():
    hostile = '<script>alert("x")</script>\u202e\x1b[2Jend'
    made = page(hostile, table(["name", "value"], [[text(hostile), "1.5"], ["a", 2], ["-", "b"]]))
    assert "default-src 'none'; style-src 'unsafe-inline'" in made
    for part in ("<script", "\u202e", "\x1b"):
        assert part not in made
    assert made.count("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;") == 3
    # Numbers stand on the right; 2 and a dash count as such.
    assert made.count('<td class="n">') == 3
    assert table((), [["a"]]) == "<table><tr><td>a</td></tr></table>"
