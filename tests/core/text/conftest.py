"""What tests of worker processes share: processes among them."""

import sys
from pathlib import Path

import pytest

from plugrl.core.text.rollout.processes.pool import WorkerPool

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def shared_workers(tmp_path_factory, forked_workers):
    """A folder for notes, and a pool whose processes serve all tests of a file that end none."""
    from collector import environment

    notes = tmp_path_factory.mktemp("notes")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(notes).items():
            patch.setenv(name, value)
        pool = WorkerPool(max_restarts=0)
        yield notes, pool
        pool.close()


@pytest.fixture
def collect(shared_workers):
    """Collects rollouts of a worker of ``agents.py``."""
    from collector import Collector

    notes, pool = shared_workers
    collector = Collector(notes, pool)
    yield collector
    if collector.pool is not pool:
        collector.pool.close()
