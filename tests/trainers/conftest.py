"""A tiny run of a trainer, as a mapping."""

import contextlib
import io
import itertools
import shutil

import pytest

from plugrl.cli import main
from plugrl.testing import tiny


@pytest.fixture
def config(tmp_path):
    def make(name="self_hosted_grpo", /, **sections):
        return tiny.config(name, tmp_path, sections)

    return make


@pytest.fixture
def call():
    """Runs a command in this process: its exit code, and what it wrote out and as errors."""

    def run(*words):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(list(map(str, words)))
                code = 0
            except SystemExit as end:
                code = end.code or 0
        return code, out.getvalue(), err.getvalue()

    return run


@pytest.fixture
def copied(tmp_path):
    """A copy of a run's folder, for what would change a run that several tests share."""
    numbers = itertools.count()

    def copy(folder):
        return shutil.copytree(folder, tmp_path / f"copy-{next(numbers)}" / folder.name)

    return copy
