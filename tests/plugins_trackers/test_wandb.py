import json
import sys

import pytest

pytest.importorskip("wandb")

from plugrl.plugins.wandb.offline import history, history_step, records
from plugrl.plugins.wandb.tracker import WandbTracker


def sessions(folder):
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"))


def logged(folder):
    """Step to values, over all sessions of a run; a step that is there twice fails."""
    found = {}
    for path in sessions(folder):
        for record, _ in records(path):
            step = history_step(record)
            if step is not None:
                assert step not in found
                found[step] = history(record)
    return found


def run_record(folder):
    (first, *_) = [r.run for p in sessions(folder) for r, _ in records(p) if r.HasField("run")]
    return first, {item.key: json.loads(item.value_json) for item in first.config.update}


@pytest.mark.integration
def test_everything_of_a_run_is_there_offline(make_run, train, capfd):
    options = {
        "project": "demo", "name": "first", "group": "g", "tags": ["a", "b"], "notes": "why",
        "entity": "team", "job_type": "train",
    }  # fmt: skip
    run = make_run(WandbTracker(options), models={"judge": {"api_key": "sk-123"}})
    train(run, 3)
    assert run._trackers.failures == []
    values = logged(run.folder)
    assert {s: v["train/loss"] for s, v in values.items()} == {1: 1, 2: 0.5, 3: 1 / 3}
    assert [values[s]["validation/reward"] for s in (1, 2, 3)] == [0.1, 0.2, 0.3]
    record, config = run_record(run.folder)
    assert (record.run_id, record.project, record.display_name, record.run_group) == (
        run.id, "demo", "first", "g",
    )  # fmt: skip
    assert (list(record.tags), record.notes, record.job_type) == (["a", "b"], "why", "train")
    assert record.entity == "team"
    assert config["experiment_name"] == "toy"
    assert config["models"] == {"judge": {"api_key": "<hidden>"}}
    (folder,) = run.folder.glob("wandb/offline-run-*")
    assert len(list(folder.glob("files/media/table/samples/*.json"))) == 3
    # Samples are tables of their step.
    table = json.loads((folder / "files" / values[2]["samples/answers/path"]).read_text())
    assert table["columns"] == ["prompt", "answer", "reward"]
    assert table["data"] == [["2+1=", "a|2", 0.5]]
    (report,) = run.folder.glob("wandb/offline-run-*/files/report.html")
    assert "toy" in report.read_text()
    out, err = capfd.readouterr()
    assert out == err == ""
    everything = b"".join(p.read_bytes() for p in run.folder.glob("wandb/**/*") if p.is_file())
    assert b"sk-123" not in everything


@pytest.mark.integration
def test_a_resume_goes_on_with_no_step_doubled_and_none_lost(make_run, train, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["plugrl", "environment.variables.HF_TOKEN=hf_12345678"])
    run = make_run(WandbTracker())
    train(run, 6, save_at=(3,), crash=True)
    run._trackers.finish("failed")  # All six steps are in its file.
    run._shutdown._lock.release()
    assert list(logged(run.folder)) == [1, 2, 3, 4, 5, 6]
    again = make_run(WandbTracker(), folder=run.folder)
    train(again, 8)
    assert list(logged(run.folder)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(sessions(run.folder)) == 2
    first, second = ({history_step(r) for r, _ in records(p)} for p in sessions(run.folder))
    everything = b"".join(p.read_bytes() for p in run.folder.glob("wandb/**/*") if p.is_file())
    assert b"hf_12345678" not in everything
    assert first - {None} == {1, 2, 3}
    assert second - {None} == {4, 5, 6, 7, 8}
    ids = {r.run.run_id for p in sessions(run.folder) for r, _ in records(p) if r.HasField("run")}
    assert ids == {run.id}


@pytest.mark.integration
def test_what_a_kill_lost_is_sent_again(make_run, train):
    run = make_run(WandbTracker())
    train(run, 6)
    (path,) = sessions(run.folder)
    (start,) = [start for record, start in records(path) if history_step(record) == 4]
    # The end of the file never reached the disk, in the middle of a record.
    path.write_bytes(path.read_bytes()[: start + 20])
    assert list(logged(run.folder)) == [1, 2, 3]
    train(make_run(WandbTracker(), folder=run.folder), 7)
    assert {s: v["train/loss"] for s, v in logged(run.folder).items()} == {
        step: 1 / step for step in range(1, 8)
    }


@pytest.mark.integration
def test_a_run_without_a_checkpoint_begins_anew(make_run, train):
    run = make_run(WandbTracker())
    train(run, 2, crash=True)
    run._trackers.finish("failed")
    run._shutdown._lock.release()
    train(make_run(WandbTracker(), folder=run.folder), 3)
    assert list(logged(run.folder)) == [1, 2, 3]


@pytest.mark.integration
def test_online_without_a_network_is_given_up_with_the_remedy(
    make_run, train, warnings_of, monkeypatch, capfd
):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    options = {"mode": "online", "host": "http://127.0.0.1:9"}
    run = make_run(WandbTracker(options), settings={"tracker_timeout": 2})
    train(run, 2)
    (line,) = warnings_of("WandbTracker")
    assert "`mode: offline`" in line
    assert "0000" not in line
    assert capfd.readouterr() == ("", "")
    assert run._status.fields["state"] == "done"


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({}, "offline"),
        ({"WANDB_API_KEY": "k"}, "online"),
        ({"WANDB_KEY": "k"}, "online"),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, "offline"),
        ({"WANDB_MODE": "online"}, "online"),
    ],
)
def test_auto_is_online_with_an_account(monkeypatch, environment, mode):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert WandbTracker()._mode() == mode


def test_a_login_of_wandb_is_an_account(monkeypatch, tmp_path):
    path = tmp_path / "netrc"
    path.write_text("machine api.wandb.ai\n  login user\n  password key\n")
    path.chmod(0o600)
    assert WandbTracker()._mode() == "online"
    assert WandbTracker({"host": "https://own.example"})._mode() == "offline"
