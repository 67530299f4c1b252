"""A tiny run of a trainer, as a mapping."""

import itertools
import shutil

import pytest

from plugrl.testing import tiny


@pytest.fixture
def config(tmp_path):
    def make(name="self_hosted_grpo", /, **sections):
        return tiny.config(name, tmp_path, sections)

    return make


@pytest.fixture
def copied(tmp_path):
    """A copy of a run's folder, for what would change a run that several tests share."""
    numbers = itertools.count()

    def copy(folder):
        return shutil.copytree(folder, tmp_path / f"copy-{next(numbers)}" / folder.name)

    return copy
