"""What tests of commands share."""

import contextlib
import io

import pytest

from plugrl.cli import main


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Runs a command in an empty folder: its exit code, and what it wrote out and as errors."""
    monkeypatch.chdir(tmp_path)

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
