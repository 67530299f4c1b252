"""A tiny run of a trainer, as a mapping."""

import pytest

from plugrl.core.registry import default_registry
from plugrl.testing import tiny


@pytest.fixture
def config(tmp_path):
    def make(name="self_hosted_grpo", /, **sections):
        return tiny.config(name, tmp_path, sections)

    return make


@pytest.fixture
def registry():
    """The process's registry; what a test registers is gone after it."""
    registry = default_registry()
    before = registry.snapshot()
    yield registry
    registry.restore(before)
