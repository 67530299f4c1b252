import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from plugrl.core.run.run import Run

sys.path.insert(0, str(Path(__file__).parent))  # for run_driver


@pytest.fixture
def make_run(tmp_path):
    """Make runs below a temporary folder; what a test left open is closed after it."""
    made = []

    def make(*, settings=None, hooks=None, trackers=(), records=(), **tree):
        settings = {"runs_folder": str(tmp_path / "runs"), "progress": "none", **(settings or {})}
        tree = {"experiment_name": "toy", "settings": settings, **tree}
        composed = SimpleNamespace(input_text="seed: 0\n", overrides=("seed=1",))
        validated = SimpleNamespace(tree=tree)
        run = Run.create(validated, composed, hooks=hooks, trackers=trackers, records=records)
        made.append(run)
        return run

    yield make
    for run in made:
        run.finish("failed")
