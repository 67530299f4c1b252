"""Trackers through the real command: configurations as the guides write them, and wrong ones."""

import json
import os

import forking
import pytest
import yaml
from tracked_config import CONFIG

from plugrl.core.run.records.records import read_jsonl

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path


def plugrl(folder, *words, **variables):
    environment = {
        **os.environ, "TRACKIO_DIR": str(folder / "trackio"), "NETRC": "/none", **variables,
    }  # fmt: skip
    return forking.run(["-m", "plugrl", *words], cwd=folder, env=environment, timeout=200)


def only_run(folder):
    (run,) = (folder / "runs" / "tracked").iterdir()
    return run


def test_all_at_once_say_where_they_are_and_nothing_more(folder):
    pytest.importorskip("mlflow")
    ended = plugrl(
        folder, "train", "exp.yaml",
        "trackers=[{type: jsonl, path: all.jsonl}, wandb, mlflow, trackio, tensorboard]",
    )  # fmt: skip
    assert ended.returncode == 0
    own = ("info: run ", "info: saved ", "info: step ")
    lines = [line for line in ended.stderr.splitlines() if not line.startswith(own)]
    assert sorted(line[:15] for line in lines) == [
        "info: mlflow: s",
        "info: trackio: ",
        "info: wandb: of",
    ]
    run = only_run(folder)
    assert (run / "mlflow" / "mlflow.db").exists()
    assert list((run / "tensorboard").iterdir())
    assert (folder / "trackio" / "demo.db").exists()
    assert list(run.glob("wandb/offline-run-*"))
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "done"
    assert "trackers_failed" not in status
    samples = [r["record"] for r in read_jsonl(folder / "all.jsonl") if r["event"] == "sample"]
    assert {"prompt", "answer", "ground_truth", "reward"} <= set(samples[0])
    assert samples[0]["ground_truth"].isdigit()
    assert samples[0]["prompt"].endswith("=")


def test_the_spelling_of_the_guides(folder):
    pytest.importorskip("wandb")
    from plugrl.plugins.wandb.offline import records

    logger = {
        "backend": "wandb",
        "wandb": {
            "project": "${project_name}", "name": "${experiment_name}", "group": "g",
            "tags": ["my_task", "grpo"], "entity": "team",
        },
    }  # fmt: skip
    (folder / "exp.yaml").write_text(yaml.safe_dump({**CONFIG, "logger": logger}))
    ended = plugrl(folder, "train", "exp.yaml")
    assert ended.returncode == 0, ended.stderr
    (path,) = only_run(folder).glob("wandb/offline-run-*/*.wandb")
    (record,) = [r.run for r, _ in records(path) if r.HasField("run")][:1]
    assert (record.project, record.display_name, record.run_group, record.entity) == (
        "demo", "tracked", "g", "team",
    )  # fmt: skip
    assert list(record.tags) == ["my_task", "grpo"]


def test_a_missing_package_is_one_line_and_no_run_folder(folder):
    (folder / "hide.py").write_text("import sys\nsys.modules['mlflow'] = None\n")
    ended = plugrl(folder, "-p", "hide.py", "train", "exp.yaml", "trackers=[jsonl, mlflow]")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "trackers[1] (command line): the tracker mlflow needs the package mlflow" in line
    assert line.endswith('pip install "plugrl[mlflow]"')
    assert not (folder / "runs").exists()


def test_values_of_the_environment_and_credentials_stay_here(folder):
    words = [
        "trackers=[{type: jsonl, path: all.jsonl}]",
        "environment.variables.HF_TOKEN=hf_abcdef",
        "environment.variables.PLACE=${oc.env:PLACE}/x",
        "environment.variables.COPY=${environment.variables.PLACE}",
        "environment.variables.ADDRESS=https://user:pass-word@host/x?token=tok-en&a=1",
    ]
    ended = plugrl(folder, "train", "exp.yaml", *words, PLACE="/secret/place")
    assert ended.returncode == 0, ended.stderr
    run = only_run(folder)
    (start,) = [r for r in read_jsonl(folder / "all.jsonl") if r["event"] == "start"]
    assert start["config"]["environment"]["variables"] == {
        "HF_TOKEN": "<hidden>",
        "PLACE": "${oc.env:PLACE}/x",
        "COPY": "${environment.variables.PLACE}",
        "ADDRESS": "https://<hidden>@host/x?token=<hidden>&a=1",
    }
    assert start["config"]["data"]["prompt_key"] == "prompt"
    for secret in ("hf_abcdef", "/secret/place", "pass-word", "tok-en"):
        assert secret not in (folder / "all.jsonl").read_text()
        assert secret not in (run / "report.html").read_text()
        assert secret not in (run / "config.yaml").read_text()
        # The run needs it to resume.
        assert secret in (run / "config.private.json").read_text()
    (folder / "all.jsonl").unlink()
    (run / "status.json").write_text((run / "status.json").read_text().replace("done", "failed"))
    again = plugrl(folder, "resume", str(run))
    assert again.returncode == 0, again.stderr
    assert "start" in (folder / "all.jsonl").read_text()
    assert "/secret/place" not in (folder / "all.jsonl").read_text()


FAILING = """
import time
from plugrl import Tracker, register_tracker

@register_tracker("hanging")
class Hanging(Tracker):
    remedy = "unplug it"
    def log(self, step, metrics):
        time.sleep(10_000)

@register_tracker("leaving")
class Leaving(Tracker):
    def log(self, step, metrics):
        raise SystemExit(7)

@register_tracker("unbuildable")
class Unbuildable(Tracker):
    def __init__(self, config=None):
        raise SystemExit(0)
"""


def test_failing_ones_are_named_once_and_the_run_is_done(folder):
    (folder / "own.py").write_text(FAILING)
    ended = plugrl(
        folder, "-p", "own.py", "train", "exp.yaml", "settings.tracker_timeout=1",
        "trackers=[hanging, leaving, {type: jsonl, path: all.jsonl}]",
    )  # fmt: skip
    assert ended.returncode == 0
    assert ended.stderr.count("the tracker hanging did not come back from log() within 1 s") == 1
    assert "unplug it" in ended.stderr
    assert ended.stderr.count("the tracker leaving failed in log(): SystemExit: 7") == 1
    steps = [r["step"] for r in read_jsonl(folder / "all.jsonl") if r["event"] == "metrics"]
    assert steps[-1] == 2
    status = json.loads((only_run(folder) / "status.json").read_text())
    assert sorted(status["trackers_failed"]) == ["hanging", "leaving"]


def test_one_that_exits_when_it_is_built_is_an_error(folder):
    (folder / "own.py").write_text(FAILING)
    ended = plugrl(folder, "-p", "own.py", "train", "exp.yaml", "trackers=[unbuildable]")
    assert ended.returncode == 3
    assert "trackers[0]" in ended.stderr
    assert "SystemExit" in ended.stderr
    assert not (folder / "runs").exists()
