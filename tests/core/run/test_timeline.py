"""``timeline.jsonl``: what is written, what is read from it, and how it is shown."""

import builtins
import io
import json
import os
import resource
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

from plugrl.cli import main
from plugrl.commands.runs import app
from plugrl.core.errors import UsageError
from plugrl.core.run.records.timeline import Timeline
from plugrl.core.run.records.timeline_reader import BusyIntervals, read_timeline


def span(lane, name, start, end, **facts):
    return {"lane": lane, "name": name, "start": start, "end": end, **facts}


def begin(at):
    return span("process", "begin", at, at, pid=1)


#: Two steps of 10 s: attempts run for half of the first training and for all of the second.
TWO_STEPS = [
    begin(100),
    span("trainer", "rollout", 100, 104, step=1),
    span("trainer", "train", 104, 108, step=1),
    span("trainer", "sync", 108, 110, step=1),
    span("rollout", "attempts", 106, 111, attempts=4),
    span("trainer", "rollout", 110, 112, step=2),
    span("trainer", "train", 112, 120, step=2),
    span("rollout", "attempts", 111, 120, attempts=4),
    span("trainer", "checkpoint", 120, 121, step=2),
]


def write(folder, records, tail=""):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status.json").write_text('{"state": "done", "step": 2}')
    text = "".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in records)
    (folder / "timeline.jsonl").write_text(text + tail)
    return folder


@pytest.fixture
def show(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(folder, *words, columns=60):
        monkeypatch.setenv("COLUMNS", str(columns))
        result = CliRunner().invoke(app, ["show", str(folder), "--timeline", *words])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    return invoke


def test_the_numbers_are_those_of_the_spans(tmp_path, show):
    facts = json.loads(show(write(tmp_path / "runs/x/one", TWO_STEPS), "--json").stdout)
    assert facts["seconds"] == 21
    # Open: 0-4 and 6-20 of 21 s; trained: 4-8 and 12-20; both: 6-8 and 12-20.
    assert facts["lanes"] == pytest.approx(
        {"rollout": 18 / 21, "train": 12 / 21, "sync": 2 / 21, "validate": 0, "checkpoint": 1 / 21},
        abs=1e-5,
    )
    assert facts["both"] == pytest.approx(10 / 21, abs=1e-5)
    first, second = facts["steps"]
    assert (first["step"], first["seconds"], first["both"]) == (1, 10, 0.2)
    assert (second["step"], second["seconds"], second["both"]) == (2, 10, 0.8)
    assert (facts["processes"], facts["skipped_lines"], facts["left_out"]) == (1, 0, False)


def test_the_drawing_fills_the_terminal_and_zooms_into_the_last_steps(tmp_path, show):
    folder = write(tmp_path / "runs/x/one", TWO_STEPS)
    # 39 columns: 12 for names, 6 for shares, 21 for 21 s.
    lines = show(folder, columns=39).stdout.splitlines()
    assert lines[:6] == [
        "            0.0 s          21.0 s",
        "rollout     ████  ██████████████    86%",
        "train           ████    ████████    57%",
        "sync                ██              10%",
        "checkpoint                      █    5%",
        "both              ██    ████████    48%",
    ]
    # 22 columns for the 11 s from 10 s on: rollout 0-10, train 2-10, checkpoint 10-11.
    zoomed = show(folder, "--last", "1", columns=40).stdout.splitlines()
    assert zoomed[:6] == [
        "            10.0 s          21.0 s",
        "rollout     ████████████████████     91%",
        "train           ████████████████     73%",
        "sync                                  0%",
        "checkpoint                      ██    9%",
        "both            ████████████████     73%",
    ]
    assert [line.split() for line in zoomed[-2:]] == [
        ["STEP", "SECONDS", "ROLLOUT", "TRAIN", "SYNC", "CHECKPOINT", "BOTH"],
        ["2", "10", "100%", "80%", "0%", "0%", "80%"],
    ]


def test_time_without_a_process_is_left_out_and_steps_made_again_count_once(tmp_path, show):
    again = [
        begin(100_000),
        span("trainer", "rollout", 100_000, 100_003, step=2),
        span("trainer", "train", 100_003, 100_009, step=2),
    ]
    folder = write(tmp_path / "runs/x/one", [*TWO_STEPS, *again])
    facts = json.loads(show(folder, "--json").stdout)
    assert (facts["processes"], facts["seconds"]) == (2, 30)
    assert [(s["step"], s["seconds"], s["both"]) for s in facts["steps"]] == [
        (1, 10, 0.2),
        (2, 9, 0.0),
    ]
    drawn = show(folder, columns=48).stdout.splitlines()
    # 30 columns for 30 s: the second process is in column 21.
    assert next(line for line in drawn if "began again" in line).index("^") == 12 + 21


@pytest.mark.parametrize(
    ("broken", "skipped"),
    [
        ("no json\n", 1),
        ("[1, 2]\n", 1),
        ('{"lane": "trainer", "name": "train", "start": NaN, "end": 5}\n', 1),
        ('{"lane": "trainer", "name": "train", "start": 9, "end": 5}\n', 1),
        ('{"lane": "trainer", "name": "train", "start": 1, "end": 1e300}\n', 1),
        ('{"lane": 5, "name": "train", "start": 1, "end": 2}\n', 1),
        ("\0\0\0\n", 1),
        ("[" * 100_000 + "\n", 1),
        ("\n", 0),
    ],
)
def test_broken_lines_are_counted_and_the_rest_is_shown(tmp_path, show, broken, skipped):
    folder = write(tmp_path / "runs/x/one", [*TWO_STEPS[:4], broken, *TWO_STEPS[4:]])
    facts = json.loads(show(folder, "--json").stdout)
    assert (facts["skipped_lines"], facts["seconds"], len(facts["steps"])) == (skipped, 21, 2)
    assert ("cannot be read" in show(folder).stderr) == bool(skipped)


def test_half_a_last_line_is_no_fault_and_does_not_spoil_the_next_process(tmp_path, show):
    folder = write(tmp_path / "runs/x/one", TWO_STEPS, tail='{"lane": "trai')
    assert json.loads(show(folder, "--json").stdout)["skipped_lines"] == 0
    timeline = Timeline(folder)
    with timeline.span("trainer", "train", step=3):
        pass
    timeline.close()
    facts = json.loads(show(folder, "--json").stdout)
    assert (facts["skipped_lines"], facts["processes"]) == (1, 2)
    assert [step["step"] for step in facts["steps"]] == [1, 2, 3]


@pytest.mark.parametrize("text", ["", "\n", None])
def test_a_run_without_spans_says_so(tmp_path, show, text):
    folder = write(tmp_path / "runs/x/one", [])
    path = folder / "timeline.jsonl"
    path.unlink() if text is None else path.write_text(text)
    assert "has no timeline yet (state done)" in show(folder).stderr
    assert json.loads(show(folder, "--json").stdout)["steps"] == []


def test_what_cannot_be_read_or_asked_is_one_line(tmp_path, show):
    folder = write(tmp_path / "runs/x/one", [])
    (folder / "timeline.jsonl").unlink()
    (folder / "timeline.jsonl").mkdir()
    with pytest.raises(UsageError, match="cannot read the timeline of .*directory"):
        show(folder)
    result = CliRunner().invoke(app, ["show", str(folder), "--last", "2"])
    assert "add --timeline" in str(result.exception)


def test_names_of_plugins_neither_break_the_lines_nor_grow_without_bound(tmp_path, show):
    odd = [span(f"lane{i}", "x", 100, 121) for i in range(50)]
    folder = write(tmp_path / "runs/x/one", [*TWO_STEPS, span("\x1b[2J", "x", 100, 121), *odd])
    shown = show(folder).stdout
    assert "\x1b" not in shown
    assert len(json.loads(show(folder, "--json").stdout)["lanes"]) <= 13


def test_a_terminal_without_blocks_gets_letters(tmp_path, monkeypatch):
    folder = write(tmp_path / "runs/x/one", TWO_STEPS)
    words = ["runs", "show", str(folder), "--timeline"]
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "50")
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert not caught.value.code
    screen.flush()
    assert b"rollout     ####" in screen.buffer.getvalue()


def test_the_file_stays_bounded_and_keeps_the_newest(tmp_path):
    timeline = Timeline(tmp_path, limit=20_000)
    for step in range(1000):
        timeline.note("trainer", "train", timeline.now(), step=step)
        assert (tmp_path / "timeline.jsonl").stat().st_size <= 20_000
    timeline.close()
    lanes = read_timeline(tmp_path)
    assert lanes.left_out
    assert lanes.skipped == 0
    assert sorted(lanes.steps)[-1] == 999
    # At least half of the bound is kept, at less than 110 bytes a line.
    assert sorted(lanes.steps) == list(range(1000 - len(lanes.steps), 1000))
    assert len(lanes.steps) > 80
    assert [path.name for path in tmp_path.iterdir()] == ["timeline.jsonl"]


def test_threads_write_whole_lines_also_while_the_file_is_cut(tmp_path):
    timeline = Timeline(tmp_path, limit=60_000)

    def work(number):
        for step in range(500):
            timeline.note("trainer", f"lane{number}", timeline.now(), step=step)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.close()
    lanes = read_timeline(tmp_path)
    assert lanes.skipped == 0
    assert lanes.left_out
    text = (tmp_path / "timeline.jsonl").read_text()
    assert text.count('"step"') == text.count("\n") - 1
    assert 499 in lanes.steps


def test_a_file_of_any_size_is_read_in_bounded_memory(tmp_path):
    path = tmp_path / "timeline.jsonl"
    with open(path, "wb") as file:
        file.truncate(20 * 2**30)  # a hole: no disk is used
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
        for record in TWO_STEPS:
            file.write(json.dumps(record).encode() + b"\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lanes = read_timeline(tmp_path, limit=2**20)
    assert (lanes.left_out, sorted(lanes.steps), lanes.end) == (True, [1, 2], 21)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_a_span_opens_and_syncs_no_file(tmp_path, monkeypatch):
    timeline = Timeline(tmp_path)
    timeline.note("trainer", "begin", timeline.now())
    for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "fsync")):
        monkeypatch.setattr(module, name, lambda *_, what=name: pytest.fail(f"a span calls {what}"))
    for step in range(10):
        with timeline.span("trainer", "train", step=step):
            pass
    monkeypatch.undo()
    timeline.close()
    assert sorted(read_timeline(tmp_path).steps) == list(range(10))


@pytest.mark.timing
def test_a_span_costs_little(tmp_path):
    timeline = Timeline(tmp_path)
    began = time.process_time()
    for step in range(5000):
        with timeline.span("trainer", "train", step=step):
            pass
    # Measured at 10 to 20 microseconds; a step of the quickstart takes some milliseconds.
    assert (time.process_time() - began) / 5000 < 200e-6
    timeline.close()


def test_a_step_lasts_from_the_first_begin_of_its_phases_to_their_last_end(tmp_path):
    # Times count from the first begin of a phase.
    rows = [("rollout", 1.0, 3.0), ("train", 2.0, 4.0), ("sync", 5.0, 6.0)]
    spans = [span("trainer", name, start, end, step=7) for name, start, end in rows]
    write(tmp_path, [begin(0.0), *spans])
    assert read_timeline(tmp_path).steps == {7: (0.0, 5.0)}


def test_a_run_notes_its_phases_with_their_steps(make_run):
    run = make_run()
    with run:
        for step in (1, 2):
            with run.phase("train"):
                pass
            run.end_step(step, {"value": 0.5})
    lanes = read_timeline(run.folder)
    assert sorted(lanes.steps) == [1, 2]
    assert len(lanes.lanes["train"].spans) == 2
    assert '"lanes":[{"name":"train","seconds":' in (run.folder / "report.html").read_text()


def test_a_union_answers_for_any_part_of_the_time():
    busy = BusyIntervals([(5, 7), (0, 2), (1, 3)])
    assert busy.spans == [(0, 3), (5, 7)]
    assert [busy.seconds(a, b) for a, b in ((0, 10), (2, 6), (3, 5), (6, 6.5))] == [5, 2, 0, 0.5]
    assert busy.intersection(BusyIntervals([(2, 6), (6.5, 9)])).spans == [(2, 3), (5, 6), (6.5, 7)]
    assert BusyIntervals([]).seconds(0, 1) == 0
