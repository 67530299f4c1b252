"""``plugrl bench zoo``: its settings, its sums, and runs of which one fails."""

import importlib.util
import json
import sys
from pathlib import Path

import forking
import numpy as np
import pytest

from plugrl.core.experiment import prepare

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "zoo.py"
SETTINGS = sorted((SCRIPT.parent / "zoo").glob("*/*.yaml"))


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("zoo", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules["zoo"] = module
    sys.path.insert(0, str(SCRIPT.parent))
    spec.loader.exec_module(module)
    sys.path.remove(str(SCRIPT.parent))
    yield module
    del sys.modules["zoo"]


def line(pair, seed, value, **others):
    row = {"pair": pair, "overrides": [], "seed": seed, "return": value, "steps": 1000}
    return row | {"cpu_seconds": 2.0 + seed, "wall_seconds": 9.0, "curve": []} | others


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_each_pair_has_a_file_of_settings(script):
    assert {f"{path.parent.name}/{path.stem}" for path in SETTINGS} == set(script.PUBLISHED)


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_nothing_is_wrong_with_the_settings(path):
    tree = prepare(path, preflight=False).validated.tree
    assert tree["scenario"]["id"] == path.stem
    trainer = {"ppo": "vanilla_ppo"}.get(path.parent.name, path.parent.name)
    assert tree["trainer"]["type"] == trainer
    assert (tree["validate"]["episodes"], tree["validate"]["every"]) == (100, 0)
    assert tree["validate"]["deterministic"] is True


def test_interquartile_means_leave_a_quarter_out_at_each_end(script):
    assert script.interquartile_mean(np.array([9.0, 1, 2, -50, 3])) == 2
    rows = np.array([[8.0, 1, 2, 3, 4, 5, 6, 7], [1, 1, 1, 1, 1, 1, 1, 1]])
    assert script.interquartile_mean(rows).tolist() == [4.5, 1]
    # Of two runs each mean is that of one of four equally likely pairs.
    assert script.interval(np.array([0.0, 10.0])) == [0, 10]
    assert script.interval(np.array([7.0, 7.0, 7.0])) == [7, 7]


def test_the_table_sums_up_files_without_failed_runs(script, tmp_path):
    first = written(
        tmp_path / "1.jsonl",
        [line("dqn/CartPole-v1", seed, value) for seed, value in enumerate([100, 300])]
        + [{"pair": "dqn/CartPole-v1", "overrides": [], "seed": 2, "error": "exit code 1"}],
    )
    second = written(
        tmp_path / "2.jsonl",
        [line("dqn/CartPole-v1", 2, 500), line("reinforce/CartPole-v1", 0, 9.5)]
        + [line("dqn/CartPole-v1", 0, 20, overrides=["dqn.double=true"])],
    )
    result = script.measure(script.arguments(["--table", str(first), str(second)]))
    by_name = {(e["pair"], *e["overrides"]): e for e in result["pairs"]}
    plain = by_name["dqn/CartPole-v1",]
    assert (plain["seeds"], plain["mean"], plain["deviation"]) == ([0, 1, 2], 300, 200)
    assert plain["cpu_seconds"] == 3
    rows = script.table(result).splitlines()
    cells = {tuple(row.split(" | ")[:2]): row for row in rows[2:]}
    assert "| 3 | 300.0 ± 200.0 | 300.0 (" in cells["| CartPole-v1", "dqn"]
    assert "| 500.0 ± 0.0 |" in cells["| CartPole-v1", "dqn"]
    assert "| 1 | 20.0 | 20.0 (20.0 to 20.0) |" in cells["| CartPole-v1", "dqn `dqn.double=true`"]
    assert "|  |" in cells["| CartPole-v1", "reinforce"]


def test_a_curve_has_few_points_which_are_means(script):
    assert script.thinned([]) == []
    assert script.thinned([[10, 1.0], [20, 3.0]]) == [[10, 1], [20, 3]]
    many = script.thinned([[step, 2.0 * step] for step in range(1, 101)])
    assert many[:2] == [[1.5, 3], [3.5, 7]]
    assert len(many) == 50


def test_nothing_begins_after_the_limit_and_unknown_pairs_are_refused(script, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    given = script.arguments(["dqn/CartPole-v1", "--limit", "0", "--seeds", "3", "--out", str(out)])
    assert script.measure(given)["pairs"] == []
    assert json.loads(out.read_text())["error"] == "not begun before --limit"
    with pytest.raises(script.BenchmarkError, match=r"no pair 'dqn/Cart'; pairs: reinforce/"):
        script.jobs_of(["dqn/Cart rl.lr=1"], [0])


def test_what_has_its_line_is_not_made_again(script, tmp_path):
    out = written(tmp_path / "out.jsonl", [line("dqn/CartPole-v1", 4, 123)])
    before = out.read_text()
    given = script.arguments(["dqn/CartPole-v1", "--seeds", "4", "--out", str(out)])
    assert [entry["returns"] for entry in script.measure(given)["pairs"]] == [[123]]
    assert out.read_text() == before


def test_the_page_has_the_figures_of_the_lines_that_are_kept(script):
    lines = SCRIPT.parent / "zoo" / "results.jsonl"
    page = (SCRIPT.parents[1] / "docs" / "small-network-results.md").read_text("utf-8")
    entries = script.measure(script.arguments(["--table", str(lines)]))["pairs"]
    plain = [entry for entry in entries if not entry["overrides"]]
    assert len(plain) >= 8
    assert script.table({"pairs": plain}) in page
    ids = {entry["pair"].split("/")[1] for entry in plain}
    assert {name for name in ids if f"(curves/{name}.svg)" in page} == ids


@pytest.mark.integration
def test_runs_become_lines_and_one_that_fails_stops_no_other(tmp_path):
    short = "reinforce/CartPole-v1 rl.num_iterations=2 rl.frames_per_batch=800"
    words = [f"{short} rl.lr=-1", short, "--seeds", "3", "--out", "out.jsonl", "--json"]
    done = forking.run([SCRIPT, *words], cwd=tmp_path, check=True)
    (entry,) = json.loads(done.stdout)["pairs"]
    failed, good = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert failed["error"] == "exit code 2"
    assert "rl.lr" in "".join(failed["log"])
    assert (entry["seeds"], entry["returns"]) == ([3], [good["return"]])
    assert good["steps"] == 1600
    assert [step for step, _ in good["curve"]] == [800, 1600]
    assert good["episodes"] >= 100
    assert 8 <= good["return"] <= 500
