"""Run folders seen from outside, and what killed processes leave behind."""

import json
import os
import shutil
import threading
import time

import pytest
from run_driver import Toy

from plugrl.core.run.folder import create, find, find_all, summarize
from plugrl.core.run.lock import LOCK_FILE, RunLock, is_locked
from plugrl.core.run.records.records import last_step
from plugrl.core.run.run import Run


def copy_as_killed(run):
    """What would be there if the process of ``run`` were killed now."""
    folder = shutil.copytree(run.folder, run.folder.with_name("killed"), symlinks=True)
    assert summarize(folder).state == "killed"
    return folder


def test_a_killed_run_has_the_step_that_it_got_to(make_run):
    run = make_run()
    run.attach(Toy())
    with run:
        for step in range(1, 11):
            run.end_step(step, {"loss": 0.0})
        assert summarize(run.folder).step == 10
        folder = copy_as_killed(run)
        # Half a line, as a process leaves that is killed while it writes.
        with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"step": 11, "lo')
        assert summarize(folder).step == 10
    assert (summarize(run.folder).state, summarize(run.folder).step) == ("done", 10)


@pytest.mark.parametrize(("host", "told"), [("elsewhere", "it ran on elsewhere"), (None, None)])
def test_what_ran_on_another_machine_is_killed_as_far_as_can_be_seen_here(make_run, host, told):
    run = make_run()
    with run:
        run.end_step(1, {})
        folder = copy_as_killed(run)
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"host": host or status["host"]}))
    seen = summarize(folder)
    assert seen.state == "killed"
    assert seen.error == (told and f"{told}, and locks of other machines cannot be seen everywhere")


def test_runs_that_start_within_a_second_are_in_the_order_of_their_starts(make_run, tmp_path):
    runs = []
    for _ in range(6):
        runs.append(make_run().folder)
        assert find("latest", tmp_path / "runs") == runs[-1] == find("toy", tmp_path / "runs")
    assert [run.path for run in find_all(tmp_path / "runs")] == [str(run) for run in runs]


def test_a_resumed_run_has_the_step_of_its_checkpoint_before_its_next(make_run):
    run = make_run(settings={"checkpoint_every": 2})
    run.attach(Toy())
    with run:
        for step in range(1, 6):
            run.end_step(step, {"loss": 0.0})
        folder = copy_as_killed(run)
    again = Run.open(folder)
    again.attach(Toy())
    assert again.restore() == 4
    with again:
        assert summarize(folder).step == 4
        (folder / "metrics.jsonl").unlink()
        assert summarize(folder).step == 4


def test_the_last_step_is_found_at_the_end_of_a_large_file(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert last_step(file) is None
    file.write_text('{"step": 3}\n' * 50_000 + '{"step": 7}\nno json\n{"step": 8')
    assert last_step(file) == 7
    file.write_text("")
    assert last_step(file) is None


@pytest.fixture
def killed_start(tmp_path):
    """Kills a start: leaves its folder as it is at that moment."""

    def make(name="a", *, locked=True, elsewhere=None, age=0.0):
        folder = tmp_path / "toy" / f".tmp-{name}"
        folder.mkdir(parents=True)
        if locked:
            RunLock(folder).release()
        if elsewhere is not None:
            elsewhere.mkdir()
            (folder / "checkpoints").symlink_to(elsewhere)
        os.utime(folder, (time.time() - age,) * 2)
        return folder

    return make


def made(root):
    folder, lock = create(root, "toy", lambda path: None)
    lock.release()
    return folder


def test_the_next_start_removes_what_killed_ones_left(tmp_path, killed_start):
    kept = tmp_path / "kept"
    killed_start("a")
    killed_start("b", locked=False, age=3600)
    killed_start("c", elsewhere=kept)
    folder = made(tmp_path)
    assert list((tmp_path / "toy").iterdir()) == [folder]
    assert not kept.exists()


def test_a_start_that_goes_on_stays(tmp_path, killed_start):
    fresh = killed_start("a", locked=False)
    filled = killed_start("b", locked=False, age=3600)
    lock = RunLock(filled)
    # A folder within the filling of which others start.
    folder, own = create(tmp_path, "toy", lambda path: made(tmp_path))
    own.release()
    lock.release()
    assert fresh.exists()
    assert filled.exists()
    assert folder.exists()


def test_a_resume_removes_what_the_killed_run_left_half_written(make_run):
    run = make_run()
    run.finish("failed")
    left = [".tmp-status.json-1-2", "dumps/.tmp-step-1-2-3/x", "checkpoints/.tmp-step-1-2-3/x"]
    for name in left:
        (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (run.folder / name).write_text("half")
    Run.open(run.folder).finish("failed")
    assert not list(run.folder.rglob(".tmp-*"))


def test_a_look_at_the_lock_never_waits_and_tells_who_has_it(tmp_path):
    assert not is_locked(tmp_path)
    lock = RunLock(tmp_path)
    assert is_locked(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)
    (tmp_path / LOCK_FILE).unlink()
    os.mkfifo(tmp_path / LOCK_FILE)
    # To open such a file waits for a writer, who never comes.
    looking = threading.Thread(target=is_locked, args=(tmp_path,), daemon=True)
    looking.start()
    looking.join(20)
    assert not looking.is_alive()
