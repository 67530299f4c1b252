"""Curves in bounded memory, followed while their file grows."""

import json
import random

import pytest

from plugrl.core.run.report.curves import Curve, Metrics, curves_as_json


def curve_of(values, most=8):
    curve = Curve(most)
    for step, value in enumerate(values):
        curve.add(step, value)
    return curve


def test_a_short_curve_is_kept_as_it_is():
    assert curve_of([3.0, 1.0, 2.0]).points() == {"x": [0, 1, 2], "y": [3.0, 1.0, 2.0]}


def test_neighbours_are_merged_to_mean_and_extremes():
    # Nine values in at most four points: of four values each, and one that is left over.
    points = curve_of([0, 8, 4, 4, 1, 1, 1, 5, 7], most=4).points()
    assert points == {
        "x": [3, 7, 8], "y": [4, 2, 7], "low": [0, 1, 7], "high": [8, 5, 7],
    }  # fmt: skip
    assert curve_of([0, 8, 4, 4], most=4).points(most=2) == {
        "x": [1, 3], "y": [4, 4], "low": [0, 4], "high": [8, 4],
    }  # fmt: skip


@pytest.mark.parametrize("most", [4, 5, 7, 1000])
@pytest.mark.parametrize("count", [1, 2, 5, 8, 9, 17, 63, 64, 65, 1001])
def test_every_value_counts_once_whatever_the_length(count, most):
    values = [random.Random(count).uniform(-1, 1) for _ in range(count)]
    curve = curve_of(values, most)
    points = curve.points()
    assert len(points["x"]) <= most
    assert (points["x"][-1], curve.count) == (count - 1, count)
    # Points end at steps, so the differences say of how many values each is the mean.
    starts = [-1, *points["x"][:-1]]
    spans = [(int(a) + 1, int(b) + 1) for a, b in zip(starts, points["x"], strict=True)]
    for number, (start, end) in enumerate(spans):
        part = values[start:end]
        assert points["y"][number] == pytest.approx(sum(part) / len(part), rel=1e-4)
        if "low" in points:
            assert points["low"][number] == pytest.approx(min(part), rel=1e-4)
            assert points["high"][number] == pytest.approx(max(part), rel=1e-4)
    assert curve.low[1] == min(values)
    assert curve.high == (values.index(max(values)), max(values))
    assert (curve.first, curve.last) == ((0, values[0]), (count - 1, values[-1]))


def line(step, **numbers):
    return json.dumps({"step": step, **numbers}).encode() + b"\n"


def test_a_growing_file_is_read_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    metrics.read()
    assert metrics.curves == {}
    whole = line(1, loss=2.0) + line(2, loss=1.0)
    path.write_bytes(whole[:-5])
    metrics.read()
    assert metrics.curves["loss"].points()["x"] == [1]
    path.write_bytes(whole)
    metrics.read()
    metrics.read()
    assert metrics.curves["loss"].points() == {"x": [1, 2], "y": [2.0, 1.0]}
    assert metrics.skipped == 0


@pytest.mark.parametrize("values", [[2.0], [2.0, 5.0], [2.0, 5.0, 6.0, 7.0]])
def test_a_file_that_a_resume_cut_is_read_again_also_when_it_has_grown_since(tmp_path, values):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    path.write_bytes(line(1, loss=2.0) + line(2, loss=1.0))
    metrics.read()
    path.write_bytes(b"".join(line(step, loss=value) for step, value in enumerate(values, 1)))
    metrics.read()
    assert metrics.curves["loss"].points()["y"] == values


@pytest.mark.parametrize("most", [3, 8, 100])
def test_a_curve_that_has_grown_gives_the_points_of_a_new_one(most):
    values = [float(i * 7919 % 101) for i in range(300)]
    grown = Curve(8)
    for i, value in enumerate(values, 1):
        grown.add(i, value)
        new = Curve(8)
        for step, each in enumerate(values[:i], 1):
            new.add(step, each)
        assert grown.points(most) == new.points(most)


def test_damaged_lines_are_counted_and_no_number_is_made_up(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        line(1, a=1)
        + b'{"step": 2, "a"\n\xff\xfe\n[1]\n{"a": 3}\n{"step": "x", "a": 3}\n'
        + b'{"step": true, "a": 3}\n'
        + b'{"step": 1e999, "a": 3}\n'
        + b"[" * 10_000 + b"\n\n"
        + b'{"step": 4, "a": null, "b": NaN, "c": "text", "d": Infinity, "e": 1e308, "f": [1]}\n'
        + line(5, a=2, phase=1)
        + line(6, a=2, phase=2)
    )  # fmt: skip
    metrics = Metrics(path)
    metrics.read()
    assert metrics.skipped == 8
    assert list(metrics.curves) == ["a"]
    assert metrics.curves["a"].points()["x"] == [1, 5, 6]
    assert metrics.not_finite == [(4, "a"), (4, "b"), (4, "d")]
    assert metrics.phases == [(5, 1), (6, 2)]


def test_metrics_beyond_a_thousand_are_counted(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1, **{f"m{i}": i for i in range(1003)}))
    metrics = Metrics(path)
    metrics.read()
    assert (len(metrics.curves), len(metrics.left_out)) == (1000, 3)


def test_metrics_of_the_same_steps_share_them():
    made = curves_as_json({"a": curve_of([1, 2]), "b": curve_of([3, 4]), "c": curve_of([5])}, 10)
    assert made["steps"] == [[0, 1], [0]]
    assert [made["metrics"][name]["x"] for name in "abc"] == [0, 0, 1]
    assert made["metrics"]["b"] == {
        "x": 0, "y": [3, 4], "first": [0, 3], "last": [1, 4], "min": [0, 3], "max": [1, 4],
        "count": 2,
    }  # fmt: skip
