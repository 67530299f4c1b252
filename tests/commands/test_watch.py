"""What ``plugrl watch`` shows of a run: while it goes on, at its end, and of broken ones."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from terminal import Terminal
from waiting import DEADLINE

from plugrl.cli import main
from plugrl.commands._curve import picture, sparkline
from plugrl.commands._watch import RunView, newest_samples
from plugrl.core.run.lock import RunLock

EVIL = "[red]a[/red]\x1b[2J\u202eb\r\x00"


@pytest.fixture
def folder(tmp_path):
    """Write a run folder; give its path."""

    def make(metrics=(), samples=(), **status):
        place = tmp_path / "runs" / "sums" / "20260101-100000-abc"
        place.mkdir(parents=True)
        fields = {"state": "done", "step": 3, "started": "2026-01-01T10:00:00+00:00"}
        (place / "status.json").write_text(json.dumps(fields | status))
        add(place / "metrics.jsonl", metrics)
        (place / "samples").mkdir()
        add(place / "samples" / "rollouts.jsonl", samples)
        return place

    return make


def add(path, records):
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


METRICS = [
    {"step": n, "validation/reward": n / 4, "train/loss": 1 / (n + 1), "time/rollout": 1.0}
    for n in range(5)
]
SAMPLES = [
    {"step": n, "prompt": f"{n}+1=", "answer": str(n + 1), "reward": 1.0} for n in range(9)
]  # fmt: skip


def shown(place, width=80, height=None, **options):
    view = RunView(place, **options)
    view.read()
    return view.lines(width, height)


def test_the_headline_comes_first_with_its_curve(folder):
    lines = shown(folder(METRICS, SAMPLES), unicode=False)
    assert lines[0] == "sums/20260101-100000-abc  done  step 3"
    assert lines[2] == "validation/reward  0 -> 1, best 1 at step 4"
    # A straight line from the lower left to the upper right corner.
    curve = [line for line in lines if line.endswith("*")]
    assert curve[0].split()[0] == "1"
    assert curve[-1].startswith("0 *")
    assert [line.index("*") for line in curve] == sorted(
        (line.index("*") for line in curve), reverse=True
    )
    (loss,) = (line for line in lines if line.startswith("train/loss"))
    # 1, 1/2, 1/3, 1/4 and 1/5 are 7, 2.6, 1.2, 0.4 and 0 sevenths of the way from the smallest up.
    assert loss.split() == ["train/loss", "0.2", "@=.__"]
    assert not any("time/" in line for line in lines)
    # Of the newest step first; the text stands below what is known of it.
    assert lines[-8:] == [
        part for n in range(5, 9) for part in (f"-- step {n}, reward 1", f"{n}+1={n + 1}")
    ]


def test_phases_count_their_own_steps(folder):
    metrics = [{**line, "phase": 1 + (line["step"] > 1)} for line in METRICS]
    place = folder(metrics, state="done", step=4)
    (place / "config.yaml").write_text("trainer: {phases: [{name: learn}, {name: practise}]}\n")
    lines = shown(place)
    assert lines[0].endswith("done  practise step 2")
    assert lines[2].endswith("best 1 at practise step 2")


@pytest.mark.parametrize("width", [1, 2, 3, 20, 29, 30, 31, 80, 300])
def test_it_never_needs_more_than_the_screen(folder, width):
    samples = [{"step": 1, "prompt": "汉字" * 300, "answer": EVIL * 50, "reward": 0.5}]
    place = folder([{**line, "x" * 500: 1.0} for line in METRICS], samples, error="e" * 5000)
    for height in (None, 1, 2, 5, 10, 40):
        lines = shown(place, width, height)
        assert height is None or len(lines) <= height
        wide = [sum(2 if "\u4e00" <= c <= "\u9fff" else 1 for c in line) for line in lines]
        assert max(wide) <= width


def test_a_narrow_terminal_has_the_state_before_the_name(folder):
    place = folder(METRICS, error="disk", state="failed")
    lines = RunView(place).lines(20)
    assert lines[:3] == ["failed  step 3", "sums/20260101-100000", "disk"]
    assert shown(place)[0] == "sums/20260101-100000-abc  failed  step 3"


@pytest.mark.parametrize(
    ("hours", "told"), [(1.5, r"1:30:\d\d ago"), (47, r"47:00:\d\d ago"), (72, "3 days ago")]
)
def test_it_says_how_long_ago_a_run_ended(folder, hours, told):
    ended = datetime.now(UTC) - timedelta(hours=hours)
    place = folder(METRICS, ended=ended.isoformat())
    assert re.search(told, shown(place)[0])


@pytest.mark.parametrize("levels", [20, 900, 100_000])
def test_a_record_of_many_levels_is_shown_or_left_out(folder, levels):
    place = folder(METRICS, SAMPLES)
    with open(place / "samples" / "rollouts.jsonl", "a", encoding="utf-8") as file:
        nested = "[" * levels + "]" * levels
        file.write(f'{{"step": 9, "reward": {nested}, "x": {nested}, "failure": {nested}}}\n')
    assert ("-- step 9" in "\n".join(shown(place))) == (levels < 1000)


def test_texts_of_a_model_are_text(folder):
    samples = [{"step": 1, "prompt": EVIL, "answer": "a\tb", "failure": EVIL + "\nsecond"}]
    place = folder([{"step": 1, EVIL: 1.0}], samples, state="failed", error=EVIL + "\n" + EVIL)
    lines = shown(place)
    text = "\n".join(lines)
    assert not any(c in text for c in "\x1b\u202e\r\x00\t")
    assert r"[red]a[/red]\x1b[2J\u202eb\r\x00" in text
    assert all("\n" not in line for line in lines)


def test_a_run_without_metrics_and_damaged_files_are_shown_as_what_they_are(folder):
    place = folder()
    assert "it has no metrics" in shown(place)
    add(place / "metrics.jsonl", METRICS)
    with open(place / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 5, "validation/rew')
    (place / "samples" / "rollouts.jsonl").write_text('[1]\nnot json\n{"step": 1}\n{"ste')
    assert newest_samples(place, 4) == [{"step": 1}]
    assert "validation/reward  0 → 1, best 1 at step 4" in shown(place)
    for status in ("", "[]", '{"state": 3}', '{"state": "done", "headline": 3}'):
        (place / "status.json").write_text(status)
        assert "validation/reward  0 → 1, best 1 at step 4" in shown(place)
    shutil.rmtree(place / "samples")
    assert "validation/reward  0 → 1, best 1 at step 4" in shown(place)


def test_a_killed_run_is_one_that_nobody_owns(folder):
    place = folder(METRICS, state="running")
    assert "killed  step 4" in shown(place)[0]
    lock = RunLock(place)
    try:
        assert "running  step 4" in shown(place)[0]
    finally:
        lock.release()


def test_what_is_new_is_read_and_what_a_resume_cut_is_forgotten(folder):
    place = folder(METRICS)
    view = RunView(place)
    view.read()
    add(place / "metrics.jsonl", [{"step": 5, "validation/reward": 2.0}])
    view.read()
    assert "0 → 2, best 2 at step 5" in view.ending()
    os.truncate(place / "metrics.jsonl", 0)
    add(place / "metrics.jsonl", METRICS[:2])
    view.read()
    assert "0 → 0.25, best 0.25 at step 1" in view.ending()


def test_of_a_long_file_only_the_end_is_read(folder):
    place = folder(METRICS, [{"step": n, "prompt": "x" * 9000} for n in range(100)])
    assert [record["step"] for record in newest_samples(place, 3)] == [97, 98, 99]


def test_a_folder_that_is_gone_is_one_line(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    place = folder(METRICS)
    view = RunView(place)
    shutil.rmtree(place)
    with pytest.raises(Exception, match=r"^the run folder .*20260101-100000-abc is gone$"):
        view.read()
    with pytest.raises(SystemExit) as end:
        main(["watch"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: no run 'latest' in runs")


def test_a_curve_is_drawn_in_dots():
    # Two columns of four dots, from the lowest left (0x40) to the highest right (0x08) one; those
    # between are one lower left (0x04) and one upper right (0x10).
    assert picture([0, 1], [0.0, 1.0], 1, 2) == [chr(0x2800 + 0x40 + 0x04 + 0x10 + 0x08), "0"]
    assert picture([0, 3], [1.0, 1.0], 4, 4, unicode=False) == ["", "****", "", "0  3"]
    assert picture([7], [2.5], 40, 3, unicode=False) == ["2.5 *", "", "    7"]
    # What never changes has one label, beside its line, however high the picture is.
    for rows in range(1, 12):
        drawn = picture([0, 9], [0.5, 0.5], 60, rows + 1)
        labelled = [line for line in drawn[:-1] if "0.5" in line]
        assert [line for line in drawn[:-1] if line] == labelled
        assert len(labelled) == 1


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([0, 0, 7, 7], 2, "▁█"),
        ([3, 3, 3], 10, "▄▄▄"),
        ([], 5, ""),
        ([1, 2], 0, ""),
    ],
)
def test_sparklines_are_means_of_parts(values, width, line):
    assert sparkline(values, width) == line


@pytest.mark.integration
def test_it_follows_a_run_in_a_terminal_until_q(folder, tmp_path):
    place = folder(METRICS[:1], SAMPLES[:1], state="running")
    lock = RunLock(place)
    words = ["-m", "plugrl", "watch"]
    with (
        Terminal(words, columns=100, cwd=tmp_path) as one,
        Terminal(words, columns=60, cwd=tmp_path) as two,
    ):
        for terminal in (one, two):
            terminal.until("q ends")
            terminal.until("0+1=1")
        add(place / "metrics.jsonl", METRICS[1:])
        add(place / "samples" / "rollouts.jsonl", SAMPLES[1:])
        for terminal in (one, two):
            terminal.until("best 1 at step 4")
            terminal.until("8+1=9")
        one.resize(30)
        one.until("best")
        status = json.loads((place / "status.json").read_text())
        (place / "status.json").write_text(json.dumps(status | {"state": "done"}))
        lock.release()
        two.until("done; q ends")
        one.press("q")
        two.press("\x03")
        for terminal in (one, two):
            assert terminal.wait() == 0
            assert terminal.cursor == (0, True)
            # The last screen is gone; what stays is a line, folded where it is longer.
            assert "sums/20260101-100000-abc  done" in "".join(terminal.lines[-4:])


@pytest.mark.integration
@pytest.mark.parametrize("end", ["gone", "terminated"])
def test_it_leaves_the_terminal_as_it_was(folder, tmp_path, end):
    place = folder(METRICS, SAMPLES, state="running")
    with Terminal(["-m", "plugrl", "watch"], cwd=tmp_path) as terminal:
        if end == "gone":
            terminal.until("q ends")
            shutil.rmtree(place)
        else:
            # As early as can be: the screen is entered and nothing is drawn yet.
            while b"\x1b[?1049h" not in terminal.raw:
                assert terminal.read()
            os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.wait() == (1 if end == "gone" else 143)
    # The screen from before, which the emulator does not keep, and a visible cursor.
    assert terminal.raw.count(b"\x1b[?1049h") == terminal.raw.count(b"\x1b[?1049l") == 1
    assert terminal.cursor[1]
    if end == "gone":
        assert terminal.lines[-1].startswith("error: the run folder runs/sums/")
        assert terminal.lines[-1].endswith("is gone")


@pytest.mark.integration
@pytest.mark.parametrize("once", [[], ["--once"]])
def test_piped_it_prints_once(folder, tmp_path, once):
    folder(METRICS, SAMPLES)
    done = subprocess.run(
        [sys.executable, "-m", "plugrl", "watch", *once], cwd=tmp_path, text=True,
        capture_output=True, check=True, timeout=DEADLINE,
    )  # fmt: skip
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "validation/reward  0 → 1, best 1 at step 4" in done.stdout.splitlines()
    assert done.stdout.endswith("8+1=9\n")


@pytest.mark.integration
def test_a_terminal_that_cannot_move_its_cursor_gets_it_once(folder, tmp_path):
    folder(METRICS)
    with Terminal(["-m", "plugrl", "watch"], cwd=tmp_path, env={"TERM": "dumb"}) as terminal:
        assert terminal.wait() == 0
    assert b"\x1b" not in terminal.raw
    assert any("best 1" in line for line in terminal.lines)
