"""Ranks for the tests: one in this process, or two that Ray places on this machine."""

import sys
from pathlib import Path

import pytest
import torch.distributed as dist

# So that no test pays for the imports.
from torch import _dynamo  # noqa: F401
from torch.distributed import fsdp, tensor  # noqa: F401

from plugrl.plugins.distributed import train_service  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def process_group():
    """This process is the only rank of a group."""
    from plugrl.plugins.distributed.rank import RankWorker
    from plugrl.plugins.distributed.rank_actor import open_server

    server = open_server()
    host, port = server.getsockname()
    RankWorker(server).join(0, 1, host, port, "cpu", 60.0)
    yield
    dist.destroy_process_group()


@pytest.fixture
def one_rank(process_group, monkeypatch):
    """Makes services whose only rank is in this process."""
    from here import RankHere

    monkeypatch.setattr(train_service, "take_ranks", lambda *key: RankHere())

    def make(model, options):
        service = train_service.FsdpTrainService({"learning_rate": 0.01, **options})
        service.load(model)
        return service

    return make


@pytest.fixture
def cluster():
    """A Ray cluster of this machine, which hands out more CPUs than there are.

    The tests of this folder share it, and the ranks in it.
    """
    ray = pytest.importorskip("ray")
    from here import CLUSTER

    from plugrl.core.run.process import cluster as wanted
    from plugrl.plugins.ray import cluster as own

    before = wanted.settings()
    wanted.configure(CLUSTER)
    own.connect()
    yield ray
    wanted.configure(vars(before))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem):
    """End the cluster after the last test of this folder."""
    last = nextitem is None or Path(__file__).parent not in nextitem.path.parents
    if last and "ray" in sys.modules and sys.modules["ray"].is_initialized():
        from plugrl.plugins.distributed.ranks import end_idle
        from plugrl.plugins.ray import cluster as own

        end_idle()
        own.stop()


@pytest.fixture
def ranks(cluster):
    """Makes services with ranks of Ray; their actors are used again by the next."""
    from plugrl.plugins.distributed.train_service import FsdpTrainService

    made = []

    def make(model, options=None, *, workers=2, timeout=120.0):
        own = {"learning_rate": 0.01, "workers": workers, "timeout": timeout, **(options or {})}
        made.append(FsdpTrainService(own))
        made[-1].load(model)
        return made[-1]

    yield make
    for service in made:
        service.close()
