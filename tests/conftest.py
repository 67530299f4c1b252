"""Settings of every test: one thread, because tiny networks are slower on several."""

import os

import pytest

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def _imports_stay_in_their_test(monkeypatch):
    """What ``-p`` imports is put into the environment for child processes: only for this test's."""
    monkeypatch.setenv("PLUGRL_IMPORTS", "")


@pytest.fixture
def registry():
    """The process's registry; what a test registers is gone after it."""
    from plugrl.core.registry import default_registry

    registry = default_registry()
    before = registry.snapshot()
    yield registry
    registry.restore(before)
