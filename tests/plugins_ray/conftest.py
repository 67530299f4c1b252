"""One Ray cluster of this machine for all tests of the folder."""

import os
import sys
from pathlib import Path

import pytest

from plugrl.core.run.process import cluster as configured

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "core" / "text")]

#: Small, and with more CPUs than there are: the actors of the tests mostly wait.
CLUSTER = {"cpus": 6, "object_store_memory": 100}


@pytest.fixture(scope="session")
def notes(tmp_path_factory):
    """A folder for what the workers of ``agents.py`` write."""
    return tmp_path_factory.mktemp("notes")


@pytest.fixture(scope="session")
def settings(notes):
    """``settings.cluster`` of the tests."""
    variables = {"AGENTS_NOTES": str(notes), "AGENTS_DRIVER": str(os.getpid())}
    return {**CLUSTER, "variables": variables}


@pytest.fixture(scope="session")
def ray_session(settings):
    """The cluster, which takes seconds to start."""
    from plugrl.plugins.ray import cluster

    configured.configure(settings)
    yield cluster.connect()
    cluster.stop()
    configured.configure({})


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem):
    """End the cluster after the last test of this folder: its processes are never idle."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        from plugrl.plugins.ray import cluster

        cluster.stop()


@pytest.fixture
def ray(ray_session, settings):
    """The package ``ray``, joined to the cluster."""
    from plugrl.plugins.ray import cluster

    configured.configure(settings)
    # Some tests have a cluster of their own, in the place of this one.
    return cluster.connect()
