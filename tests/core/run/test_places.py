"""A run stays in one folder wherever code of users goes, and says so when the folder is gone."""

import os
import shutil

import pytest
from run_driver import Toy

from plugrl.core.errors import RunError, RunInterrupted
from plugrl.core.plugins.user_code.working_folder import (
    absolute_path,
    display_path,
    preserve_working_folder,
)
from plugrl.core.run.run import Run
from plugrl.plugins.jsonl.tracker import JsonlTracker


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working folder of the test, and another one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


def train(run, *, meanwhile=lambda: None, error=None, steps=2):
    """Train some steps; ``meanwhile`` is done before the last."""
    run.attach(Toy())
    run.restore()
    with run:
        for step in range(run.step + 1, run.step + steps):
            run.end_step(step, {"loss": 0.0})
        meanwhile()
        if error is not None:
            raise error
        run.sample("texts", {"text": "a"})
        run.end_step(run.step + 1, {"loss": 0.0})


def test_a_run_stays_in_one_folder_and_messages_name_it_as_the_configuration_does(make_run, here):
    tracker = JsonlTracker({"path": "all.jsonl"})
    settings = {"runs_folder": "my runs", "checkpoint_every": 1, "keep_checkpoints": 9}
    run = make_run(settings=settings, trackers=[tracker])
    shown = display_path(run.folder)
    assert run.folder == here / shown
    train(run, meanwhile=lambda: os.chdir("elsewhere"))
    os.chdir(here)
    run = Run.open(shown)
    with pytest.raises(RunError) as caught:
        train(run, error=RunError("wrong"))
    assert str(caught.value) == f"wrong; the full traceback is in {shown}/log.txt"
    assert caught.value.__notes__ == [f"plugrl resume '{shown}'"]
    assert sorted(path.name for path in here.iterdir()) == ["all.jsonl", "elsewhere", "my runs"]
    assert not list((here / "elsewhere").iterdir())
    kept = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert kept == ["step-00000001", "step-00000002", "step-00000003"]
    assert (run.folder / "report.html").exists()


def test_a_resumed_run_is_named_as_the_command_did(make_run, here):
    run = make_run(settings={"runs_folder": str(here / "runs")})
    assert display_path(run.folder) == run.folder
    train(run)
    again = Run.open(run.folder.relative_to(here))
    assert again.folder == run.folder
    assert again.resume_command == f"plugrl resume {run.folder.relative_to(here)}"
    again.finish("done")


def test_a_path_below_a_settled_one_is_named_after_it(here):
    assert display_path(here / "a") == here / "a"
    assert absolute_path("a/b") == here / "a" / "b"
    assert str(display_path(here / "a" / "b" / "c")) == "a/b/c"
    assert display_path(here / "a" / "bc") == here / "a" / "bc"


@pytest.mark.parametrize("way", ["deleted", "moved", "replaced"])
@pytest.mark.parametrize("error", [None, OSError("no such file")])
def test_a_folder_that_is_gone_ends_the_run_in_a_line_of_its_own(
    make_run, here, caplog, way, error
):
    run = make_run(settings={"runs_folder": "runs", "checkpoint_every": 1})

    def vanish():
        if way == "moved":
            run.folder.rename(here / "moved")
        else:
            shutil.rmtree(run.folder)
        if way == "replaced":
            run.folder.mkdir()

    with pytest.raises(RunError) as caught:
        train(run, meanwhile=vanish, error=error)
    assert str(caught.value) == (
        f"the run folder {display_path(run.folder)} is gone: it was deleted, moved or replaced "
        "after step 1; put it back and resume it, or start a new run"
    )
    assert caught.value.exit_code == 1
    assert not hasattr(caught.value, "__notes__")  # There is nothing to resume.
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    # Nothing that looks like a run comes back.
    assert way == "replaced" or not list((here / "runs" / "toy").iterdir())


def test_a_stop_that_was_asked_for_stays_one(make_run, here):
    run = make_run(settings={"runs_folder": "runs"})
    with pytest.raises(RunInterrupted) as caught:
        train(run, meanwhile=lambda: shutil.rmtree(run.folder), error=RunInterrupted("now"))
    assert not hasattr(caught.value, "__notes__")


def test_what_runs_in_between_leaves_the_working_folder_as_it_was(here):
    with pytest.raises(FileNotFoundError), preserve_working_folder():
        os.chdir(os.chdir("elsewhere") or "not there")
    assert os.getcwd() == str(here)
    (here / "gone").mkdir()
    os.chdir("gone")
    (here / "gone").rmdir()
    with preserve_working_folder():
        os.chdir(here)
