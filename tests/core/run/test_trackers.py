"""A tracker cannot slow, change or end a run, whatever it does."""

import json
import logging
import threading
import time
from types import SimpleNamespace

import pytest
from run_driver import Toy
from waiting import DEADLINE

from plugrl.core.run.records.records import read_jsonl
from plugrl.core.run.run import Run
from plugrl.core.run.tracking import group as tracking
from plugrl.core.run.tracking import tracker_thread
from plugrl.core.run.tracking.group import TrackerGroup, make_tracked_run, tracker_hangs
from plugrl.core.run.tracking.tables import SampleTable, SampleTables, markdown
from plugrl.core.run.tracking.tracker import TrackedRun, Tracker


class Noted(Tracker):
    """Keeps the calls that it got; subclasses go wrong somewhere."""

    def __init__(self, config=None):
        super().__init__(config)
        self.calls = []
        self.run = None

    def start(self, run):
        self.run = run
        self.calls.append(("start", run.step, run.resumed))

    def log(self, step, metrics):
        self.calls.append(("log", step, dict(metrics)))

    def sample(self, name, record):
        self.calls.append(("sample", name, dict(record)))

    def artifact(self, name, path):
        self.calls.append(("artifact", name, path.exists()))

    def finish(self, outcome):
        self.calls.append(("finish", outcome))

    def steps(self):
        return [call[1] for call in self.calls if call[0] == "log"]


def going_wrong(method, how):
    def wrong(self, *arguments):
        how()

    return type("Wrong", (Noted,), {method: wrong})()


def raises(error):
    def how():
        raise error

    return how


def train(run, until, *, start=1):
    run.attach(Toy())
    with run:
        run.restore()
        for step in range(max(start, run.step + 1), until + 1):
            run.sample("texts", {"text": "a"})
            run.end_step(step, {"value": step})


def warned(caplog):
    return [r.getMessage() for r in caplog.records if "is left out" in r.getMessage()]


ERRORS = [
    ValueError("bad value"), OSError(28, "No space left on device"), SystemExit(0),
    KeyboardInterrupt(), ConnectionError("Name or service not known"), GeneratorExit(),
]  # fmt: skip


@pytest.mark.parametrize("method", ["start", "log", "sample", "flush", "artifact", "finish"])
def test_an_error_anywhere_switches_that_one_off(make_run, caplog, method):
    wrong = [going_wrong(method, raises(error)) for error in ERRORS]
    other = Noted()
    run = make_run(trackers=[*wrong, other])
    train(run, 3)
    assert other.steps() == [1, 2, 3]
    assert other.calls[-1] == ("finish", "done")
    lines = sorted(warned(caplog))
    for index, (line, error) in enumerate(zip(lines, ERRORS, strict=True)):
        what = f"Wrong[{index}] failed in {method}(): {type(error).__name__}"
        assert line.startswith(f"the tracker {what}")
        assert "metrics.jsonl" in line
        assert "\n" not in line
    assert [r["value"] for r in read_jsonl(run.folder / "metrics.jsonl")] == [1, 2, 3]


@pytest.mark.integration
def test_those_that_hang_are_given_up(make_run, caplog):
    """The run ends although none of them ever comes back."""
    released = threading.Event()
    methods = ["start", "log", "flush", "finish"]
    wrong, other = [going_wrong(method, released.wait) for method in methods], Noted()
    run = make_run(trackers=[*wrong, other], settings={"tracker_timeout": 3})
    try:
        train(run, 3)
        for index, (line, method) in enumerate(zip(sorted(warned(caplog)), methods, strict=True)):
            assert line.startswith(f"the tracker Wrong[{index}] did not come back from {method}()")
            assert "within 3 s" in line
        assert other.steps() == [1, 2, 3]
        status = json.loads((run.folder / "status.json").read_text(encoding="utf-8"))
        assert sorted(status["trackers_failed"]) == [f"Wrong[{index}]" for index in range(4)]
        assert tracker_hangs()
    finally:
        released.set()


def test_one_that_was_given_up_is_not_waited_for_at_the_end():
    entered, released = threading.Event(), threading.Event()

    def hang():
        entered.set()
        released.wait()

    hung = tracker_thread.TrackerThread(going_wrong("log", hang), "Wrong", 60, lambda name: None)
    hung.start(SimpleNamespace(step=0, resumed=False), lambda held: [])
    hung.put("log", 1, {})
    assert entered.wait(DEADLINE)
    hung.fail("was given up")
    end = time.monotonic() + DEADLINE
    hung.drain(end)
    hung.close(end)
    # That was while its call still went on, and long before the end.
    assert hung.hangs
    assert time.monotonic() < end
    released.set()


def test_a_slow_one_does_not_hold_up_the_steps(make_run):
    steps_are_over = threading.Event()
    slow = going_wrong("log", steps_are_over.wait)
    run = make_run(trackers=[slow])
    run.attach(Toy())
    with run:
        # It is in its first call until all steps are over, and so would the run be.
        for step in range(1, 5):
            run.end_step(step, {"value": step})
        assert not [call for call in slow.calls if call[0] != "start"]
        steps_are_over.set()
    assert slow.calls[-1] == ("finish", "done")


def test_one_that_is_far_behind_is_waited_for(make_run, caplog, monkeypatch):
    monkeypatch.setattr(tracker_thread, "_WAITING", 1)
    slow = going_wrong("log", lambda: time.sleep(0.05))
    run = make_run(trackers=[slow])
    train(run, 4)
    assert slow.calls[-1] == ("finish", "done")
    assert warned(caplog) == []


@pytest.mark.integration
def test_one_with_much_left_to_do_at_the_end_is_given_up(make_run, caplog):
    handled = []

    def log():
        handled.append(1)
        time.sleep(0.5)  # Less than it may take for one call.

    run = make_run(trackers=[going_wrong("log", log)], settings={"tracker_timeout": 1})
    train(run, 9)
    assert len(handled) < 9  # All of them need 4.5 s.
    (line,) = warned(caplog)
    assert "the tracker Wrong was not done 1 s after the end of the run" in line


def test_what_it_gets(make_run, tmp_path):
    tracker = Noted()
    run = make_run(trackers=[tracker], project_name="demo", models={"p": {"api_key": "sk-1"}})
    train(run, 1)
    told = tracker.run
    assert (told.id, told.folder, told.experiment, told.project) == (
        run.id, run.folder, "toy", "demo",
    )  # fmt: skip
    assert told.config["models"] == {"p": {"api_key": "<hidden>"}}
    assert tracker.calls == [
        ("start", -1, False),
        ("sample", "texts", {"text": "a", "step": 0}),
        ("log", 1, {"value": 1}),
        ("artifact", "report.html", True),
        ("finish", "done"),
    ]
    assert "sk-1" not in (run.folder / "report.html").read_text()


def test_a_run_that_fails_says_so(make_run):
    tracker = Noted()
    run = make_run(trackers=[tracker])
    run.attach(Toy())

    def fail():
        run.end_step(1, {"value": 1})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), run:
        fail()
    assert tracker.calls[-1] == ("finish", "failed")
    assert "ZeroDivisionError" in (run.folder / "report.html").read_text()


class Forgetful(Noted):
    """Has lost everything after step 1."""

    def start(self, run):
        super().start(run)
        return 1


def test_a_resumed_one_gets_again_what_it_lost(make_run):
    run = make_run(trackers=[Noted()])
    train(run, 3)
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "value": 99}\n')
    tracker = Forgetful()
    again = Run.open(run.folder, trackers=[tracker])
    train(again, 5, start=4)
    assert tracker.calls[0] == ("start", 3, True)
    assert tracker.steps() == [2, 3, 4, 5]
    assert [c[2] for c in tracker.calls if c[0] == "log"][:2] == [{"value": 2}, {"value": 3}]
    # Toy begins without a step 0, which the first sample belongs to.
    assert [c[2]["step"] for c in tracker.calls if c[0] == "sample"] == [2, 3, 4, 5]


def test_a_checkpoint_waits_until_trackers_have_what_came_before(make_run):
    tracker = going_wrong("log", lambda: time.sleep(0.2))
    order = []
    tracker.flush = lambda: order.append("flush")
    run = make_run(trackers=[tracker])
    run.attach(Toy())
    with run:
        run.end_step(1, {"value": 1})
        order.clear()
        run.save()
        assert order


@pytest.mark.parametrize(("timeout", "seconds"), [(60.0, 5.0), (3.0, 3.0)])
def test_a_checkpoint_waits_5_seconds_or_as_long_as_a_call_may_take(
    monkeypatch, tmp_path, timeout, seconds
):
    until = []
    monkeypatch.setattr(tracker_thread.TrackerThread, "drain", lambda self, end: until.append(end))
    monkeypatch.setattr(tracking, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    group = TrackerGroup([Noted(), Noted()], timeout)
    group.drain()
    assert until == []
    group.start(make_tracked_run(tmp_path, {}, -1, resumed=False))
    group.drain()
    assert until == [1000.0 + seconds] * 2
    monkeypatch.undo()
    group.finish("done")


def test_a_new_run_of_which_nothing_is_set_is_what_a_tracker_may_be_tried_with(tmp_path):
    said = make_tracked_run(tmp_path, {}, -1, resumed=False)
    assert said == TrackedRun(id=tmp_path.name, folder=tmp_path, config={})
    tree = {"experiment_name": "e", "project_name": "p"}
    said = make_tracked_run(tmp_path, tree, 4, resumed=True)
    assert (said.step, said.resumed, said.experiment, said.project) == (4, True, "e", "p")
    assert said.config == tree


def test_two_of_a_kind_are_told_apart(make_run, caplog):
    broken = raises(ValueError("x"))
    run = make_run(trackers=[going_wrong("log", broken), going_wrong("log", broken)])
    train(run, 2)
    assert sorted(line.split()[2] for line in warned(caplog)) == ["Wrong[0]", "Wrong[1]"]


def test_the_traceback_is_a_debug_message(make_run, caplog):
    caplog.set_level(logging.DEBUG, "plugrl.run")
    train(make_run(trackers=[going_wrong("log", raises(ValueError("x")))]), 1)
    (record,) = [r for r in caplog.records if r.getMessage() == "traceback of the tracker Wrong"]
    assert record.exc_info[0] is ValueError


def test_tables_collect_a_step_and_fill_what_is_missing():
    tables = SampleTables()
    tables.add("a", {"step": 1, "prompt": "x", "reward": 1.0})
    tables.add("a", {"step": 1, "prompt": "y", "extra": {"k": [1]}})
    tables.add("a", {"step": 2, "prompt": "z"})
    (first,) = tables.take(1)
    assert (first.columns, first.data) == (
        ["prompt", "reward", "extra"],
        [["x", 1.0, None], ["y", None, '{"k": [1]}']],
    )
    assert [table.data for table in tables.take()] == [[["z"]]]
    assert list(tables.take()) == []


def test_markdown_keeps_what_means_something_to_it():
    table = SampleTable("a", 1)
    table.add({"answer": "1|2\n3", "reward": None})
    assert markdown(table) == "| answer | reward |\n| --- | --- |\n| 1\\|2<br>3 |  |"
