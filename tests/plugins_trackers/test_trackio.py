import os
from importlib.util import find_spec

import pytest

from plugrl.core.errors import PluginError
from plugrl.plugins.trackio.tracker import TrackioTracker

# Not importorskip: trackio looks up its folder when it is imported.
pytestmark = pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """trackio keeps one folder for a process."""
    before = os.environ.get("TRACKIO_DIR")
    path = tmp_path_factory.mktemp("trackio")
    yield str(path)
    if before is None:
        os.environ.pop("TRACKIO_DIR", None)


def storage():
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage


def logs(project, run, name="toy"):
    return storage().get_logs(project, f"{name}-{run.id}")


def losses(project, run):
    return [(r["step"], r["train/loss"]) for r in logs(project, run) if "train/loss" in r]


def test_everything_of_a_run_is_there(make_run, train, folder, capfd):
    options = {"folder": folder, "project": "demo", "name": "first", "group": "g"}
    run = make_run(TrackioTracker(options), models={"judge": {"api_key": "sk-123"}})
    train(run, 3)
    assert run._trackers.failures == []
    records = logs("demo", run, "first")
    assert [(r["step"], r["train/loss"]) for r in records if "train/loss" in r] == [
        (1, 1), (2, 0.5), (3, pytest.approx(1 / 3)),
    ]  # fmt: skip
    (table,) = [r["samples/answers"] for r in records if r["step"] == 2 and "samples/answers" in r]
    assert table["_value"] == [{"prompt": "2+1=", "answer": "a|2", "reward": 0.5}]
    config = storage().get_run_config("demo", f"first-{run.id}")
    assert config["experiment_name"] == "toy"
    assert config["models"] == {"judge": {"api_key": "<hidden>"}}
    assert config["_Group"] == "g"
    assert capfd.readouterr() == ("", "")


def test_a_resume_goes_on_with_no_step_doubled_and_none_lost(make_run, train, folder):
    run = make_run(TrackioTracker({"folder": folder, "project": "again"}))
    train(run, 6, save_at=(3,), crash=True)
    run._trackers.finish("failed")
    run._shutdown._lock.release()
    assert [step for step, _ in losses("again", run)] == [1, 2, 3, 4, 5, 6]
    train(make_run(TrackioTracker({"folder": folder, "project": "again"}), folder=run.folder), 8)
    assert [step for step, _ in losses("again", run)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [r["step"] for r in logs("again", run) if "validation/reward" in r] == list(range(1, 9))
    assert len(storage().get_runs("again")) == 1


def test_what_a_kill_lost_is_written_again(make_run, train, folder):
    """Nothing of the first attempt reached the database."""
    run = make_run()
    train(run, 3)
    train(make_run(TrackioTracker({"folder": folder, "project": "lost"}), folder=run.folder), 4)
    assert [step for step, _ in losses("lost", run)] == [1, 2, 3, 4]


def test_what_trackio_only_warns_of_switches_it_off(
    make_run, train, folder, warnings_of, monkeypatch
):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    run = make_run(TrackioTracker({"folder": folder, "project": "full"}))
    monkeypatch.setattr(storage(), "bulk_log", full)
    train(run, 3)
    (line,) = warnings_of("TrackioTracker")
    assert "No space left on device" in line


def test_a_server_that_is_not_there_does_not_hold_up_the_run(make_run, train, folder, warnings_of):
    options = {"folder": folder, "project": "far", "server_url": "http://127.0.0.1:9?write_token=x"}
    run = make_run(TrackioTracker(options), settings={"tracker_timeout": 3})
    train(run, 2)
    (line,) = warnings_of("TrackioTracker")
    assert "`space_id` or `server_url`" in line


def test_another_folder_in_one_process_is_refused(folder, tmp_path):
    TrackioTracker({"folder": folder})
    with pytest.raises(PluginError, match="use one folder"):
        TrackioTracker({"folder": str(tmp_path)})
