import json
from importlib.util import find_spec

import pytest

from plugrl.plugins.mlflow.tracker import MlflowTracker

#: Making the tables of a new store takes seconds.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A local store that the tests share: making its tables takes seconds."""
    return tmp_path_factory.mktemp("store")


def found(store, run):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{store / 'mlflow.db'}")
    experiments = [e.experiment_id for e in client.search_experiments()]
    (record,) = client.search_runs(experiments, f"tags.`plugrl.run` = '{run.id}'")
    return client, record


def steps(client, record, key):
    return [(m.step, m.value) for m in client.get_metric_history(record.info.run_id, key)]


def test_everything_of_a_run_is_there(make_run, train, store, capfd):
    options = {"folder": str(store), "experiment": "demo", "run_name": "first", "tags": {"a": "b"}}
    run = make_run(MlflowTracker(options), models={"judge": {"api_key": "sk-123", "url": "u"}})
    train(run, 3)
    assert run._trackers.failures == []
    client, record = found(store, run)
    assert client.get_experiment(record.info.experiment_id).name == "demo"
    assert (record.info.run_name, record.info.status) == ("first", "FINISHED")
    assert record.data.tags["a"] == "b"
    assert steps(client, record, "train/loss") == [(1, 1), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert steps(client, record, "validation/reward") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    params = record.data.params
    assert (params["experiment_name"], params["models.judge.url"]) == ("toy", "u")
    assert params["models.judge.api_key"] == "<hidden>"
    artifacts = store / "artifacts" / record.info.run_id / "artifacts"
    assert "sk-123" not in (artifacts / "config.yaml").read_text()
    assert "toy" in (artifacts / "report.html").read_text()
    table = json.loads((artifacts / "samples/answers/step-00000002.json").read_text())
    assert table == {
        "columns": ["prompt", "answer", "reward"],
        "data": [["2+1=", "a|2", 0.5]],
    }
    assert capfd.readouterr() == ("", "")


def test_a_resume_goes_on_with_no_step_doubled_and_none_lost(make_run, train, store):
    options = {"folder": str(store)}
    run = make_run(MlflowTracker(options), experiment_name="again")
    train(run, 6, save_at=(3,), crash=True)
    run._trackers.drain()
    run._shutdown._lock.release()
    client, record = found(store, run)
    assert len(steps(client, record, "train/loss")) == 6
    assert record.info.status == "RUNNING"
    train(make_run(MlflowTracker(options), folder=run.folder), 8)
    client, record = found(store, run)
    assert [step for step, _ in steps(client, record, "train/loss")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [step for step, _ in steps(client, record, "validation/reward")] == list(range(1, 9))
    assert record.info.status == "FINISHED"


def test_how_a_run_ended_is_its_status(make_run, train, store):
    for outcome, status in (("failed", "FAILED"), ("terminated", "KILLED")):
        run = make_run(MlflowTracker({"folder": str(store)}))
        train(run, 1, crash=True)
        run.finish(outcome)
        assert found(store, run)[1].info.status == status


def test_names_that_mlflow_refuses_and_long_values(make_run, store):
    run = make_run(MlflowTracker({"folder": str(store)}), notes="x" * 20_000)
    with run:
        run.end_step(1, {"a@b(c)": 1, "nan": float("nan"), "inf": float("inf")})
    client, record = found(store, run)
    assert run._trackers.failures == []
    assert steps(client, record, "a_b_c_") == [(1, 1)]
    assert len(record.data.params["notes"]) == 6000


def test_the_default_is_a_database_in_the_run_folder(make_run, train):
    run = make_run(MlflowTracker(), project_name="demo")
    train(run, 1)
    assert run._trackers.failures == []
    client, record = found(run.folder / "mlflow", run)
    assert client.get_experiment(record.info.experiment_id).name == "demo"


def test_a_server_that_is_not_there_is_named(make_run, train, warnings_of, capfd):
    run = make_run(
        MlflowTracker({"tracking_uri": "http://127.0.0.1:9"}), settings={"tracker_timeout": 15}
    )
    train(run, 2)
    (line,) = warnings_of("MlflowTracker")
    assert "127.0.0.1" in line or "did not come back from start()" in line
    assert "check `tracking_uri`" in line
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_cannot_be_written(make_run, train, warnings_of, tmp_path):
    (tmp_path / "file").write_text("")
    run = make_run(MlflowTracker({"folder": str(tmp_path / "file" / "below")}))
    train(run, 1)
    (line,) = warnings_of("MlflowTracker")
    assert "start()" in line
