"""The report of a run that goes on."""

import json
import os
import re
import subprocess
import sys
import threading

import pytest
from waiting import wait_until

from plugrl.core.errors import RunError
from plugrl.core.run.report import live
from plugrl.core.run.report.page import REPORT_FILE, report_file
from plugrl.core.run.run import Run


def shown(folder):
    """The contents of the page of a run; None: there is no page yet."""
    path = folder / REPORT_FILE
    if not path.exists():
        return None
    page = path.read_text("utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    (run,) = json.loads(found[1])["runs"]
    return run


def test_the_page_is_there_and_grows_while_the_run_goes_on(make_run, monkeypatch):
    monkeypatch.setattr(live, "_FIRST", 0.0)
    monkeypatch.setattr(live, "_INTERVAL", 0.0)
    monkeypatch.setattr(live, "_PAUSE", 0.0)
    run = make_run()
    with run:
        first = wait_until(lambda: shown(run.folder))
        assert (first["state"], first["notes"]) == ("running", ["there are no metrics yet"])
        for step in (1, 2):
            run.end_step(step, {"rollout/reward": step / 2})
            wait_until(lambda step=step: (shown(run.folder)["headline"] or {}).get("last") == [
                step, step / 2,
            ])  # fmt: skip
    last = shown(run.folder)
    assert (last["state"], last["step"]) == ("done", 2)
    assert last["curves"]["metrics"]["rollout/reward"]["y"] == [0.5, 1.0]


@pytest.mark.parametrize(("seconds", "pause"), [(0.0, 10), (0.04, 10), (0.2, 50), (3.0, 750)])
def test_it_works_for_a_250th_of_the_time_at_most(seconds, pause):
    assert live.pause_after(seconds) == pytest.approx(pause)


def test_a_page_that_cannot_be_written_ends_neither_the_run_nor_later_pages(
    make_run, monkeypatch, caplog
):
    for name in ("_FIRST", "_INTERVAL", "_PAUSE"):
        monkeypatch.setattr(live, name, 0.0)
    run = make_run()
    tries = []

    def full(path, text):
        tries.append(path)
        raise OSError(28, "No space left on device")

    write = live.write_text
    monkeypatch.setattr(live, "write_text", full)
    with run:
        wait_until(lambda: len(tries) > 1)
        monkeypatch.setattr(live, "write_text", write)
        wait_until(lambda: shown(run.folder))
        run.end_step(1, {"a": 1})
        monkeypatch.setattr(live, "write_text", full)
    assert "cannot write report.html" in caplog.text
    status = json.loads((run.folder / "status.json").read_text())
    assert status["state"] == "done"


def test_what_a_kill_leaves_of_a_page_is_removed_and_the_old_page_stays(make_run):
    run = make_run()
    with run:
        run.end_step(1, {"a": 1})
    half = run.folder / f".tmp-{REPORT_FILE}-{os.getpid()}-1"
    half.write_text("<!doctype html><html><script>")
    assert shown(run.folder)["step"] == 1
    Run.open(run.folder).finish("done")
    assert not half.exists()


WRITING = """
import sys
from types import SimpleNamespace
from plugrl.core.run.report import live
from plugrl.core.run.run import Run
live._FIRST = live._INTERVAL = live._PAUSE = 0.0
tree = {"experiment_name": "toy", "settings": {"runs_folder": sys.argv[1], "progress": "none"}}
run = Run.create(SimpleNamespace(tree=tree), SimpleNamespace(input_text="", overrides=()))
with run:
    for step in range(1, 10**6):
        run.sample("rollouts", {"step": step, "prompt": "p" * 4000, "answer": str(step)})
        run.end_step(step, {"rollout/reward": step})
"""


@pytest.mark.integration
def test_a_kill_in_the_middle_of_writing_leaves_a_whole_page(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WRITING, str(tmp_path)])
    try:
        wait_until(lambda: list(tmp_path.glob("toy/*/report.html")), process)
        wait_until(lambda: list(tmp_path.glob(f"toy/*/.tmp-{REPORT_FILE}-*")), process)
    finally:
        process.kill()
        process.wait()
    (folder,) = tmp_path.glob("toy/*")
    before = shown(folder)
    assert before["state"] == "running"
    assert (folder / REPORT_FILE).read_text("utf-8").endswith("</html>\n")
    report_file([folder])
    assert shown(folder)["state"] == "killed"
    assert shown(folder)["step"] >= before["step"]


def test_a_resumed_run_shows_no_step_twice(make_run, monkeypatch):
    monkeypatch.setattr(live, "_FIRST", 0.0)
    monkeypatch.setattr(live, "_INTERVAL", 0.0)
    run = make_run()
    with run:
        for step in range(1, 6):
            run.end_step(step, {"a": step})
    again = Run.open(run.folder)
    # Without a checkpoint it starts over.
    with again:
        wait_until(lambda: (shown(run.folder) or {}).get("state") == "running")
        again._records.truncate({})
        for step in range(1, 4):
            again.end_step(step, {"a": 10 * step})
    curve = shown(run.folder)["curves"]
    assert curve["metrics"]["a"]["y"] == [10, 20, 30]
    assert curve["steps"] == [[1, 2, 3]]


def test_a_run_whose_folder_is_gone_ends_its_pages_too(make_run, monkeypatch):
    monkeypatch.setattr(live, "_FIRST", 0.0)
    monkeypatch.setattr(live, "_INTERVAL", 0.0)
    monkeypatch.setattr(live, "_PAUSE", 0.0)
    before = set(threading.enumerate())
    run = make_run()

    def writing():
        mine = set(threading.enumerate()) - before
        return [thread for thread in mine if thread.name == "plugrl-report"]

    def lose_the_folder():
        with run:
            assert writing()
            run.folder.rename(run.folder.with_name("moved"))
            run.end_step(1, {})

    with pytest.raises(RunError, match="is gone"):
        lose_the_folder()
    wait_until(lambda: not writing())
