import json
import logging
import math
import random
import shlex
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from run_driver import StopAt, Toy

from plugrl.core.errors import (
    ConfigError,
    NonFiniteError,
    PluginError,
    RunError,
    RunInterrupted,
    RunTerminated,
    StopRun,
    UsageError,
)
from plugrl.core.plugins.kinds import Record
from plugrl.core.run.folder import find, find_all
from plugrl.core.run.records.records import read_jsonl
from plugrl.core.run.run import Run
from plugrl.core.run.tracking.tracker import Tracker
from plugrl.plugins.jsonl.tracker import JsonlTracker


def train(run, until, *, start=None):
    toy = Toy()
    run.attach(toy)
    run.restore()
    with run:
        for step in range(toy.done + 1, until + 1):
            run.sample("texts", {"text": f"{random.random()} {np.random.rand()}"})
            run.end_step(step, {"value": toy.step()})
    return toy


def numbers(run):
    names = ("step", "value")
    return [tuple(r[n] for n in names) for r in read_jsonl(run.folder / "metrics.jsonl")]


def status(run):
    return json.loads((run.folder / "status.json").read_text())


def seed_all():
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)


def test_a_run_leaves_the_files_of_the_design(make_run):
    run = make_run(project_name="p")
    train(run, 2)
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "config.yaml", "config.input.yaml", "config.origins.json", "overrides.txt",
        "plugins.lock.json", "lock",
        "environment.json", "metrics.jsonl", "samples", "checkpoints", "log.txt", "status.json",
        "report.html", "timeline.jsonl",
    }  # fmt: skip
    assert "project_name: p" in (run.folder / "config.yaml").read_text()
    assert (run.folder / "config.input.yaml").read_text() == "seed: 0\n"
    assert (run.folder / "overrides.txt").read_text() == "seed=1\n"
    assert status(run)["state"] == "done"
    assert status(run)["step"] == 2
    assert "numpy" in json.loads((run.folder / "environment.json").read_text())["packages"]
    assert '"metrics":{"value":' in (run.folder / "report.html").read_text()


@pytest.mark.parametrize("killed_at", [1, 3, 4])
def test_stop_and_resume_equals_the_uninterrupted_run(make_run, killed_at):
    seed_all()
    whole = make_run()
    weights = train(whole, 6).weights
    seed_all()
    first = make_run(settings={"checkpoint_every": 2})
    toy = Toy()
    first.attach(toy)
    with pytest.raises(RuntimeError), first:  # noqa: PT012
        for step in range(1, killed_at + 1):
            first.sample("texts", {"text": f"{random.random()} {np.random.rand()}"})
            first.end_step(step, {"value": toy.step()})
        raise RuntimeError("power cut")
    second = Run.open(first.folder)
    if killed_at == 1:
        seed_all()  # no checkpoint yet: the run starts again, from its seed
    resumed = train(second, 6)
    assert torch.equal(resumed.weights, weights)
    assert numbers(second) == numbers(whole)
    texts = [read_jsonl(run.folder / "samples" / "texts.jsonl") for run in (second, whole)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 6


def test_steps_must_grow_and_metrics_must_be_numbers(make_run):
    run = make_run()
    with run:
        run.end_step(0, {})
        run.end_step(2, {"n": np.float32(0.5), "t": torch.tensor(3), "b": True})
        assert run.last_metrics == {"n": 0.5, "t": 3.0, "b": 1}
        with pytest.raises(UsageError, match=r"end_step\(2\) came after end_step\(2\)"):
            run.end_step(2, {})
        with pytest.raises(UsageError, match="metric 'note' is a str"):
            run.end_step(3, {"note": "text"})
        with pytest.raises(UsageError, match="metric 'v' is a Tensor"):
            run.end_step(3, {"v": torch.zeros(2)})


def test_infinite_metrics_are_null_and_losses_end_the_run(make_run):
    run = make_run()
    with pytest.raises(NonFiniteError, match="actor_loss is not finite in step 2"), run:  # noqa: PT012
        run.end_step(1, {"ratio": math.inf})
        run.end_step(2, {"actor_loss": math.nan})
    records = read_jsonl(run.folder / "metrics.jsonl")
    assert [record.get("ratio", 0) for record in records] == [None, 0]
    assert records[1]["actor_loss"] is None
    assert run.step == 1
    assert status(run)["error"].startswith("NonFiniteError: metric actor_loss")


def test_stop_run_from_a_hook_saves_and_is_done(make_run):
    run = make_run(hooks=StopAt(2))
    toy = train(run, 5)
    assert toy.done == 2
    assert status(run)["state"] == "done"
    assert [p.name for p in (run.folder / "checkpoints").iterdir()] == ["step-00000002"]


def test_stop_run_from_the_trainer_saves_and_is_done(make_run):
    run = make_run(settings={"checkpoint_every": 100})
    toy = Toy()
    run.attach(toy)
    with run:
        run.end_step(1, {"value": toy.step()})
        raise StopRun("good enough")
    assert status(run)["state"] == "done"
    assert [p.name for p in (run.folder / "checkpoints").iterdir()] == ["step-00000001"]


def test_a_first_hook_that_raises_is_a_failed_run(make_run):
    def call(name, **arguments):
        if name == "plugrl_run_start":
            raise PluginError("strict")

    run = make_run(hooks=SimpleNamespace(call=call))
    with pytest.raises(PluginError), run:
        pytest.fail("the run began")
    assert status(run)["state"] == "failed"


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_not_finite_is_never_the_best(make_run, score):
    run = make_run()
    assert not run.report_score(score)
    assert run.report_score(0.1)
    assert not run.report_score(score)
    assert run.best_score == 0.1


def test_stop_run_from_the_first_hook_ends_before_anything_runs(make_run):
    def call(name, **arguments):
        if name == "plugrl_run_start":
            raise StopRun("no budget")

    run = make_run(hooks=SimpleNamespace(call=call))
    reached = []
    with run:
        with run.phase("rollout"):
            reached.append("rollout")
        reached.append("end")
    assert reached == []
    assert status(run)["state"] == "done"


def test_hooks_are_called_in_order(make_run):
    calls = []
    run = make_run(hooks=SimpleNamespace(call=lambda name, **arguments: calls.append(name)))
    train(run, 1)
    assert calls == [
        "plugrl_run_start", "plugrl_step_end", "plugrl_checkpoint_saved", "plugrl_run_end",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "error", "state"),
    [
        (signal.SIGTERM, RunTerminated, "terminated"),
        (signal.SIGINT, RunInterrupted, "interrupted"),
    ],
)
def test_one_signal_ends_at_the_next_step_with_a_checkpoint(make_run, number, error, state):
    before = signal.getsignal(number)
    run = make_run()
    toy = Toy()
    run.attach(toy)
    with pytest.raises(error) as caught, run:  # noqa: PT012
        run.end_step(1, {})
        signal.raise_signal(number)
        assert run.stop_requested
        run.end_step(2, {})
    assert caught.value.__notes__ == [f"plugrl resume {shlex.quote(str(run.folder))}"]
    assert status(run)["state"] == state
    assert [p.name for p in (run.folder / "checkpoints").iterdir()] == ["step-00000002"]
    assert signal.getsignal(number) is before


def test_best_score_keeps_its_checkpoint(make_run):
    run = make_run(settings={"checkpoint_every": 2, "keep_checkpoints": 1})
    run.attach(Toy())
    with run:
        for step, score in ((1, 0.5), (2, 0.2), (3, 0.9), (4, 0.9), (5, 0.1), (6, 0.2)):
            assert run.report_score(score) == (step in (1, 3))
            run.end_step(step, {})
    kept = sorted(p.name for p in (run.folder / "checkpoints").iterdir())
    assert kept == ["step-00000003", "step-00000006"]
    again = Run.open(run.folder)
    again.attach(Toy())
    assert again.restore() == 6
    assert again.best_score == 0.9
    again.finish("done")


class Broken(Tracker):
    def log(self, step, metrics):
        raise OSError("server away")


def test_a_broken_tracker_is_logged_once_and_the_others_go_on(make_run, caplog, tmp_path):
    path = tmp_path / "all.jsonl"
    run = make_run(trackers=[Broken(), JsonlTracker({"path": str(path)})])
    train(run, 3)
    assert caplog.text.count("the tracker Broken failed in log()") == 1
    metrics = [r for r in read_jsonl(path) if r["event"] == "metrics"]
    assert [(r["run"], r["step"]) for r in metrics] == [(run.id, s) for s in (1, 2, 3)]
    assert status(run)["trackers_failed"] == ["Broken"]
    assert "Broken failed" in (run.folder / "log.txt").read_text()


def test_jsonl_tracker_without_a_path_writes_no_second_copy(make_run):
    run = make_run(trackers=[JsonlTracker()])
    train(run, 2)
    names = {p.name for p in run.folder.rglob("*.jsonl")}
    assert names == {"metrics.jsonl", "texts.jsonl", "timeline.jsonl"}


def record(version):
    return Record(kind="loss", name="a", target="m:f", distribution="plugrl-x", version=version)


def test_changed_plugins_warn_or_are_refused_when_strict(make_run, caplog):
    run = make_run(records=[record("1.0")])
    run.finish("interrupted")
    Run.open(run.folder, records=[record("1.0")]).finish("done")
    assert "resuming with other plugins" not in caplog.text
    Run.open(run.folder, records=[record("1.1")]).finish("done")
    assert "loss a was plugrl-x 1.0 and is now plugrl-x 1.1" in caplog.text
    strict = make_run(records=[record("1.0")], plugins={"strict": True})
    strict.finish("interrupted")
    with pytest.raises(PluginError, match=r"plugrl-x 1\.0 and is now plugrl-x 1\.1"):
        Run.open(strict.folder, records=[record("1.1")])
    Run.open(strict.folder, records=[record("1.0")]).finish("done")


def test_an_edited_user_file_counts_as_a_change(make_run, tmp_path, caplog):
    file = tmp_path / "mine.py"
    file.write_text("a = 1\n")
    mine = Record(kind="loss", name="m", target="mine:f", file=str(file), source="path")
    run = make_run(records=[mine])
    run.finish("interrupted")
    file.write_text("a = 2\n")
    Run.open(run.folder, records=[mine]).finish("done")
    assert "which was edited since" in caplog.text


def test_a_second_owner_is_refused_until_the_first_ends(make_run):
    run = make_run()
    with pytest.raises(UsageError, match=r"is in use by process \d+ on "):
        Run.open(run.folder)
    run.finish("interrupted")
    Run.open(run.folder).finish("done")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a run that can be resumed"):
        Run.open(tmp_path)
    (tmp_path / "config.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="is not a run that can be resumed"):
        Run.open(tmp_path)
    assert not (tmp_path / "lock").exists()


def test_a_run_is_found_by_path_id_beginning_experiment_and_latest(make_run, tmp_path):
    run = make_run()
    root = tmp_path / "runs"
    for reference in (str(run.folder), run.id, run.id[:-1], "toy", "latest"):
        assert find(reference, root) == run.folder
    with pytest.raises(UsageError, match="no run 'tyo'"):
        find("tyo", root)
    assert [r.state for r in find_all(root)] == ["running"]
    make_run(experiment_name="../up/x")
    assert sorted(p.name for p in root.iterdir()) == ["_up_x", "toy"]
    assert find("../up/x", root).parent.name == "_up_x"
    with pytest.raises(UsageError, match="no run"):
        find("a" * 5000, root)


def test_a_run_whose_status_cannot_be_written_does_not_begin(make_run):
    run = make_run()
    (run.folder / "status.json").unlink(missing_ok=True)
    (run.folder / "status.json").mkdir()
    handlers = list(logging.getLogger("plugrl").handlers)
    with pytest.raises(RunError, match="cannot write the status of the run: .*status.json"), run:
        raise AssertionError("it began")
    assert logging.getLogger("plugrl").handlers == handlers
    Run.open(run.folder).finish("failed")


def test_a_long_name_makes_a_folder_that_is_found(make_run, tmp_path):
    name = "é" * 50 + "x" * 1000
    run = make_run(experiment_name=name)
    assert find(name, tmp_path / "runs") == run.folder


def test_one_entry_that_cannot_be_read_hides_no_run(make_run, tmp_path, monkeypatch):
    run = make_run()
    (tmp_path / "runs" / "locked").mkdir()
    is_dir = Path.is_dir

    def refuse(path):
        if path.name == "locked":
            raise PermissionError(13, "Permission denied")
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert [r.id for r in find_all(tmp_path / "runs")] == [run.id]


def test_a_trainer_without_resume_points_starts_again(make_run):
    toy = Toy()
    toy.capabilities = SimpleNamespace(resume=False)
    run = make_run(settings={"checkpoint_every": 1})
    run.attach(toy)
    with run:
        run.end_step(1, {"value": 1})
    assert list((run.folder / "checkpoints").iterdir()) == []
    again = Run.open(run.folder)
    again.attach(toy)
    assert again.restore() is None
    assert numbers(again) == []
    again.finish("done")


def test_a_failing_state_dict_is_a_failed_run(make_run):
    toy = Toy()
    toy.weights = object()
    run = make_run()
    run.attach(toy)
    with pytest.raises(RunError, match=r"trainer\.weights is a object"), run:
        run.end_step(1, {})
    assert status(run)["state"] == "failed"


def test_the_log_handler_is_gone_after_the_run(make_run):
    before = list(logging.getLogger("plugrl").handlers)
    train(make_run(), 1)
    assert logging.getLogger("plugrl").handlers == before


@pytest.mark.parametrize(("writable", "pointed"), [(True, True), (False, False)])
def test_an_error_points_at_the_log_that_has_its_traceback(make_run, writable, pointed):
    run = make_run()
    log = run.folder / "log.txt"
    if not writable:
        log.unlink(missing_ok=True)
        log.mkdir()
    with pytest.raises(RunError) as caught, run:
        raise RunError("too hot")
    pointer = f"; the full traceback is in {log}"
    assert str(caught.value) == "too hot" + (pointer if pointed else "")
    if writable:
        assert "Traceback (most recent call last)" in log.read_text()
    assert status(run)["error"] == "RunError: too hot"


@pytest.mark.parametrize("error", [KeyError("x"), RunInterrupted("stopped")])
def test_other_endings_point_at_no_traceback(make_run, error):
    run = make_run()
    said = str(error)
    with pytest.raises(type(error)) as caught, run:
        raise error
    assert str(caught.value) == said


def test_the_headline_is_kept_through_a_resume(make_run):
    run = make_run()
    with run:
        run.report_score(-0.5, "validation/length", mode="min")
        run.end_step(1, {"validation/length": 0.5})
    again = Run.open(run.folder)
    with again:
        again.end_step(2, {})
    assert status(again)["headline"] == {"metric": "validation/length", "mode": "min"}
