import json
import threading

from plugrl.core.run.records.records import read_jsonl
from plugrl.plugins.jsonl.tracker import JsonlTracker


def lines(path, event, *keys):
    return [tuple(r.get(k) for k in keys) for r in read_jsonl(path) if r["event"] == event]


def test_everything_of_a_run_is_there(make_run, train, tmp_path):
    path = tmp_path / "deep" / "all.jsonl"
    run = make_run(JsonlTracker({"path": str(path)}), project_name="p", models={"token": "hf_1"})
    train(run, 2)
    assert [r["event"] for r in read_jsonl(path)] == [
        "start", "sample", "metrics", "metrics", "sample", "metrics", "metrics", "end",
    ]  # fmt: skip
    assert {r["run"] for r in read_jsonl(path)} == {run.id}
    (start,) = [r for r in read_jsonl(path) if r["event"] == "start"]
    assert start["config"]["models"] == {"token": "<hidden>"}
    assert lines(path, "metrics", "step", "train/loss")[1::2] == [(1, 1.0), (2, 0.5)]
    assert lines(path, "sample", "sample", "record")[0] == (
        "answers",
        {"prompt": "1+1=", "answer": "a|1", "reward": 0.5},
    )
    assert lines(path, "end", "outcome") == [("done",)]


def test_samples_and_configuration_can_be_left_out(make_run, train, tmp_path):
    path = tmp_path / "all.jsonl"
    train(make_run(JsonlTracker({"path": str(path), "samples": False, "config": False})), 1)
    assert [r["event"] for r in read_jsonl(path)] == ["start", "metrics", "metrics", "end"]
    assert "config" not in read_jsonl(path)[0]


def test_a_metric_called_as_a_field_does_not_hide_it(make_run, tmp_path):
    path = tmp_path / "all.jsonl"
    run = make_run(JsonlTracker({"path": str(path)}))
    with run:
        run.end_step(7, {"step": 1.5, "event": 2, "run": 3})
    assert lines(path, "metrics", "run", "event", "step") == [(run.id, "metrics", 7)]


def test_a_resume_cuts_its_own_lines_and_no_others(make_run, train, tmp_path):
    path = tmp_path / "all.jsonl"
    run = make_run(JsonlTracker({"path": str(path)}))
    train(run, 5, save_at=(3,), crash=True)
    run._trackers.drain()
    run._shutdown._lock.release()
    with path.open("ab") as file:
        file.write(b'{"run": "other", "event": "metrics", "step": 5, "x": 1}\n{"run": "to')
    again = make_run(JsonlTracker({"path": str(path)}), folder=run.folder)
    train(again, 6)
    own = [r for r in read_jsonl(path) if r["run"] == run.id]
    assert [r["step"] for r in own if r["event"] == "metrics"] == sorted([1, 2, 3, 4, 5, 6] * 2)
    assert [r["record"]["prompt"] for r in own if r["event"] == "sample"] == [
        f"{step}+1=" for step in (1, 2, 3, 4, 5, 6)
    ]
    assert [r["event"] for r in own].count("start") == 1
    assert [r["step"] for r in read_jsonl(path) if r["run"] == "other"] == [5]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_what_a_crash_lost_is_written_again(make_run, train, tmp_path):
    path = tmp_path / "all.jsonl"
    run = make_run(JsonlTracker({"path": str(path)}))
    train(run, 4)
    kept = path.read_bytes().splitlines(keepends=True)[:4]  # start, sample, metrics of step 1
    path.write_bytes(b"".join(kept))
    train(make_run(JsonlTracker({"path": str(path)}), folder=run.folder), 5)
    assert [s for (s,) in lines(path, "metrics", "step")] == sorted([1, 2, 3, 4, 5] * 2)
    # There is no step 0 in these runs, but the first sample belongs to it.
    assert [s for (s,) in lines(path, "sample", "step")] == [0, 2, 3, 4, 5]


def test_several_writers_share_a_file(make_run, tmp_path):
    path = tmp_path / "all.jsonl"
    trackers = [JsonlTracker({"path": str(path)}) for _ in range(4)]
    for tracker in trackers:
        tracker._run = str(id(tracker))
    threads = [
        threading.Thread(target=lambda t=t: [t.log(s, {"x": s}) for s in range(200)])
        for t in trackers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(path.read_text().splitlines()) == len(read_jsonl(path)) == 800


def test_a_path_that_cannot_be_written_switches_it_off(make_run, train, warnings_of, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "below"):
        train(make_run(JsonlTracker({"path": str(path)})), 2)
    first, second = warnings_of("JsonlTracker")
    assert str(tmp_path) in first
    assert str(tmp_path / "file") in second
    assert "`path` of jsonl" in first
