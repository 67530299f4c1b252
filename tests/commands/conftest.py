"""What tests of commands share."""

import pytest


@pytest.fixture
def call(call, tmp_path, monkeypatch):
    """Runs a command in an empty folder: its exit code, and what it wrote out and as errors."""
    monkeypatch.chdir(tmp_path)
    return call
