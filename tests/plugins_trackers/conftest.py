import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch  # noqa: F401  (no test's time)

from plugrl.core.run.run import Run

sys.path.insert(0, str(Path(__file__).parent))  # for tracked_driver


@pytest.fixture(scope="session")
def kept_by_wandb(tmp_path_factory):
    """Where wandb keeps logs and artifacts of a process; otherwise in the home."""
    return tmp_path_factory.mktemp("wandb")


@pytest.fixture(autouse=True)
def no_accounts(monkeypatch, tmp_path, kept_by_wandb):
    """Nobody's account, server or home is used by these tests."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_")) and name != "TRACKIO_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for kind in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{kind}_DIR", str(kept_by_wandb / kind.lower()))
    # Without one its service complains on stderr.
    monkeypatch.setenv("HOME", str(kept_by_wandb))


@pytest.fixture
def make_run(tmp_path):
    """Make runs below a temporary folder; what a test left open is closed after it."""
    made = []

    def make(*trackers, folder=None, settings=None, environment=frozenset(), composed=None, **tree):
        settings = {"runs_folder": str(tmp_path / "runs"), "progress": "none", **(settings or {})}
        tree = {"experiment_name": "toy", "settings": settings, **tree}
        if folder is None:
            config = SimpleNamespace(
                input_text="seed: 0\n",
                overrides=(),
                tree=composed or tree,
                environment=environment,
            )
            run = Run.create(SimpleNamespace(tree=tree), config, trackers=trackers)
        else:
            run = Run.open(folder, trackers=trackers)
        made.append(run)
        return run

    yield make
    for run in made:
        run.finish("failed")


class Counting:
    """Stands for a trainer: its state is how many steps it has done."""

    def __init__(self):
        self.done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


@pytest.fixture
def train():
    """Do steps up to ``until`` in ``run``; a sample at each, and no checkpoint after ``crash``."""

    def steps(run, until, *, save_at=(), crash=False):
        counting = Counting()
        run.attach(counting)
        run.__enter__()
        run.restore()
        for step in range(counting.done + 1, until + 1):
            counting.done = step
            run.sample("answers", {"prompt": f"{step}+1=", "answer": f"a|{step}", "reward": 0.5})
            run.log(step, {"validation/reward": step / 10})
            run.end_step(step, {"train/loss": 1 / step})
            if step in save_at:
                run.save()
        if not crash:
            run.__exit__(None, None, None)

    return steps


@pytest.fixture
def warnings_of(caplog):
    def of(name):
        return [
            r.getMessage()
            for r in caplog.records
            if r.levelno == logging.WARNING and f"the tracker {name} " in r.getMessage()
        ]

    return of
