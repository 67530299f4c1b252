"""Whole processes with all trackers: killed, resumed, and what they leave behind."""

import os
import time
from importlib.util import find_spec
from pathlib import Path

import forking
import pytest
from waiting import DEADLINE

from plugrl.core.run.records.records import read_jsonl

PACKAGES = ("wandb", "mlflow", "trackio", "tensorboard")
MISSING = [name for name in PACKAGES if find_spec(name) is None]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
DRIVER = Path(__file__).parent / "tracked_driver.py"


def drive(place, steps, kill_at=0, folder=None):
    words = [str(word) for word in (place, steps, kill_at, folder) if word is not None]
    ended = forking.run([DRIVER, *words], timeout=DEADLINE)
    return ended, Path(ended.stdout.splitlines()[0])


READ_TRACKIO = """
import sys
from trackio.sqlite_storage import SQLiteStorage
for run in SQLiteStorage.get_runs("p"):
    for record in SQLiteStorage.get_logs("p", run):
        if "train/loss" in record:
            print(record["step"])
"""


def steps_of(place, folder):
    """The steps with a loss that each tracker holds, in its order."""
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from plugrl.plugins.wandb.offline import history, records

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    client = MlflowClient(tracking_uri=f"sqlite:///{place / 'mlflow' / 'mlflow.db'}")
    experiments = [e.experiment_id for e in client.search_experiments()]
    (record,) = client.search_runs(experiments)
    environment = {**os.environ, "TRACKIO_DIR": str(place / "trackio")}
    trackio = forking.run(["-c", READ_TRACKIO], env=environment)
    assert trackio.returncode == 0, trackio.stderr
    logged = [
        history(r)
        for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))
        for r, _ in records(path)
    ]
    lines = read_jsonl(place / "all.jsonl")
    return {
        "jsonl": [r["step"] for r in lines if "train/loss" in r],
        "mlflow": [m.step for m in client.get_metric_history(record.info.run_id, "train/loss")],
        "tensorboard": [e.step for e in events.Scalars("train/loss")],
        "trackio": [int(line) for line in trackio.stdout.split()],
        "wandb": [h["_step"] for h in logged if h and "train/loss" in h],
    }


def test_killed_and_resumed_all_hold_every_step_once(tmp_path, own_processes):
    ended, folder = drive(tmp_path, 12, kill_at=10)
    assert ended.returncode == -9
    assert ended.stderr == ""
    give_up = time.monotonic() + DEADLINE
    while own_processes() and time.monotonic() < give_up:
        time.sleep(0.1)
    assert own_processes() == {}
    ended, _ = drive(tmp_path, 12, folder=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{folder}\n"
    assert own_processes() == {}
    expected = list(range(1, 13))
    assert steps_of(tmp_path, folder) == dict.fromkeys(
        ("jsonl", "mlflow", "tensorboard", "trackio", "wandb"), expected
    )
