"""Runs of self-hosted trainers: what reaches the gradient, guards, early stop, validation."""

import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml

import plugrl
from plugrl import SelfHostedTrainer
from plugrl.core.errors import ConfigError, NonFiniteError, RunError, UsageError
from plugrl.core.experiment import load_run, prepare, resume, start
from plugrl.testing import tiny


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run of two steps; what changes its folder takes a copy."""
    return start(prepare(tiny.config("self_hosted_grpo", tmp_path_factory.mktemp("plain"))))


def register(registry, prepare_batch, name="custom"):
    class Custom(SelfHostedTrainer):
        """A trainer under test."""

        def _prepare_batch(self, batch):
            return prepare_batch(self, batch)

    registry.register("trainer", name, Custom)
    return Custom


@pytest.mark.integration
@pytest.mark.parametrize("minutes", [0, 1e-9])
def test_checkpoints_by_time_change_no_number(plain, config, monkeypatch, minutes):
    """Runs that save at no step but the last, and at each: equal to one that counts steps."""
    monkeypatch.setattr("plugrl.core.run.checkpoints.schedule.SHARE", math.inf)
    run = start(prepare(config(settings={"checkpoint_every": 0, "checkpoint_minutes": minutes})))
    saved = [int(path.name[5:]) for path in sorted((run.folder / "checkpoints").glob("step-*"))]
    assert saved == ([0, 1, 2] if minutes else [2])
    learned = [
        [{k: v for k, v in line.items() if not k.startswith("time/")} for line in each.metrics]
        for each in (plain, run)
    ]
    assert learned[0] == learned[1]


@pytest.mark.integration
def test_code_that_changes_the_working_folder_moves_no_run(registry, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def prepare_batch(trainer, batch):
        os.chdir(tmp_path / "elsewhere")
        batch.metadata["advantages"] = [1.0] * len(batch)
        return batch, {}

    register(registry, prepare_batch)
    # Two runs, as of several seeds: the second begins where the first did.
    runs = [start(prepare(config("custom", settings={"runs_folder": "here"}))) for _ in range(2)]
    assert sorted(tmp_path.glob("here/*/*")) == sorted(run.folder for run in runs)
    assert all(list((run.folder / "checkpoints").iterdir()) for run in runs)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.integration
def test_advantages_in_metadata_are_mirrored_and_trained(registry, config):
    def prepare_batch(trainer, batch):
        batch.metadata["advantages"] = [float(i + 1) for i in range(len(batch))]
        return batch, {}

    register(registry, prepare_batch)
    run = start(prepare(config("custom")))
    assert run.last_metrics["train/grad_norm"] > 0


@pytest.mark.integration
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda b: b.metadata.update(advantages=[1.0]),
            r"metadata\['advantages'\] of shape \(1,\); one number a row, shape \(8,\)",
        ),
        (
            lambda b: b.values.update(advantages=torch.zeros(8, 1)),
            r"values\['advantages'\] of shape \(8, 1\)",
        ),
    ],
)
def test_wrong_shapes_are_named(registry, config, change, complaint):
    def prepare_batch(trainer, batch):
        change(batch)
        return batch, {}

    register(registry, prepare_batch)
    with pytest.raises(RunError, match=complaint):
        start(prepare(config("custom")))


def poisoned(trainer, batch):
    batch.metadata["advantages"] = torch.full((len(batch),), math.nan)
    return batch, {}


@pytest.mark.integration
def test_a_gradient_that_is_not_finite_stops_the_run_and_dumps_the_batch(registry, config):
    register(registry, poisoned)
    tree = config("custom")
    with pytest.raises(NonFiniteError, match="gradient norm"):
        start(prepare(tree))
    (folder,) = (tmp for tmp in _runs(tree))
    assert list((folder / "dumps").iterdir())
    assert load_run(folder).status["state"] == "failed"


@pytest.mark.integration
def test_or_is_skipped_and_counted(registry, config):
    register(registry, poisoned)
    run = start(prepare(config("custom", runtime_monitor={"non_finite": "skip"})))
    assert run.status["state"] == "done"
    assert run.last_metrics["train/skipped"] == 1.0


def _runs(tree):
    return list(Path(tree["settings"]["runs_folder"]).glob("*/*"))


@pytest.mark.integration
def test_all_invalid_ends_the_run_with_the_reason(registry, config):
    class Failing(plugrl.Evaluator):
        """Raises."""

        def evaluate(self, data, evaluation_target):
            raise LookupError("no such problem")

    registry.register("evaluator", "failing", Failing)
    tree = config(
        rollout_worker={"evaluator": "failing"},
        validate={"enabled": False, "data": None, "every": 0},
        trainer={"total_train_steps": 10},
    )
    with pytest.raises(RunError, match=r"3 steps in a row.*Failing raised LookupError"):
        start(prepare(tree))


@pytest.mark.integration
def test_stop_at_ends_early(config):
    tree = config(trainer={"total_train_steps": 50, "stop_at": {"rollout/reward": 0.0}})
    assert start(prepare(tree)).status["step"] == 1


@pytest.mark.integration
def test_validation_metrics_come_before_during_and_after(config):
    run = start(prepare(config(trainer={"total_train_steps": 4}, validate={"every": 2})))
    assert [m["step"] for m in run.metrics if "validation/exact_match" in m] == [0, 2, 4]


@pytest.mark.integration
def test_the_parity_probe_reports(plain):
    assert 0 <= plain.last_metrics["sync/parity"] <= 1e-4


@pytest.mark.integration
def test_the_best_validation_reward_keeps_its_checkpoint(config, monkeypatch):
    from plugrl.core.text.evaluate.validation import Validation

    rewards = {0: 0.1, 1: 0.9, 2: 0.5, 3: 0.4}

    def judged(self, step):
        return {"validation/reward": rewards[step], "validation/reward_min": float(step)}, []

    monkeypatch.setattr(Validation, "__call__", judged)
    settings = {"keep_checkpoints": 1}
    run = start(prepare(config(trainer={"total_train_steps": 3}, settings=settings)))
    assert _checkpoints(run) == ["step-00000001", "step-00000003"]
    validate = {"score": "validation/reward_min"}
    tree = config(trainer={"total_train_steps": 3}, settings=settings, validate=validate)
    assert _checkpoints(start(prepare(tree))) == ["step-00000003"]


@pytest.mark.integration
def test_a_score_that_is_no_metric_is_named(config):
    with pytest.raises(ConfigError, match=r"validate.score .*reports no metric 'x'"):
        prepare(config(validate={"score": "x"}))


def _checkpoints(run):
    return sorted(path.name for path in (run.folder / "checkpoints").iterdir())


@pytest.mark.integration
def test_resuming_a_finished_run_changes_nothing(plain):
    before = {p: p.read_bytes() for p in plain.folder.rglob("*") if p.is_file()}
    again = resume(plain.folder)
    assert again.status["state"] == "done"
    assert {p: p.read_bytes() for p in plain.folder.rglob("*") if p.is_file()} == before


@pytest.mark.integration
def test_load_run_takes_what_the_commands_take(config, tmp_path, monkeypatch):
    run = start(prepare(config()))
    monkeypatch.chdir(tmp_path)
    for name in ("latest", run.folder.name, run.folder.name[:-2], run.folder, "conformance"):
        assert load_run(name).folder.resolve() == run.folder.resolve()
    monkeypatch.chdir("/")
    assert load_run("latest", tmp_path / "runs").folder == run.folder
    with pytest.raises(UsageError, match="no run 'gone'") as caught:
        load_run("gone", tmp_path / "runs")
    assert "resume" not in str(caught.value)
    (run.folder / "status.json").write_text("{")
    with pytest.raises(ConfigError, match=r"status.json is damaged"):
        load_run(run.folder)
    (run.folder / "config.yaml").write_text("[")
    with pytest.raises(ConfigError, match="is not a run that can be loaded"):
        load_run(run.folder)


@pytest.mark.integration
def test_the_page_on_runs_names_every_file(plain):
    page = Path(__file__, "../../../docs/runs.md").resolve().read_text()
    table = page.partition("## What is in the folder")[2].partition("`plugrl runs list`")[0]
    named = set(re.findall(r"`([^`]+)`", table))
    for path in plain.folder.iterdir():
        names = (path.name, f"{path.name}/", f"{path.name}/*.jsonl")
        assert named & set(names), path.name


@pytest.fixture
def unfinished(plain, copied):
    """A run that is not marked as done and lost its last checkpoint."""
    folder = copied(plain.folder)
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "state": "failed"}))
    shutil.rmtree(folder / "checkpoints" / "step-00000002")
    return folder


@pytest.mark.integration
def test_a_configuration_that_was_cut_short_is_not_taken_for_another(unfinished, caplog):
    folder = unfinished
    file = folder / "config.yaml"
    tree = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({k: v for k, v in tree.items() if k != "settings"}))
    with pytest.raises(ConfigError, match=r"config.yaml was cut short or edited.* no settings"):
        resume(folder)
    file.write_text(yaml.safe_dump({**tree, "data": {**tree["data"], "prompt_key": "x"}}))
    with pytest.raises(ConfigError, match=r"config.yaml cannot be used: data.prompt_key"):
        resume(folder)
    tree["validate"].pop("every")
    file.write_text(yaml.safe_dump(tree))
    resume(folder)
    assert any("has no validate.every: the defaults" in m for m in caplog.messages)


@pytest.mark.integration
def test_a_log_that_cannot_be_written_does_not_end_a_run(unfinished):
    (unfinished / "log.txt").unlink()
    (unfinished / "log.txt").mkdir()
    assert resume(unfinished).status["state"] == "done"
