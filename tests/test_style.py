"""Style as a rule: linters pass, and they ask for docstrings and annotations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_finds_nothing():
    run("ruff", "check", "--no-cache", ".")


def test_files_are_formatted():
    run("ruff", "format", "--no-cache", "--check", ".")


@pytest.mark.integration
def test_core_is_strictly_typed():
    run("mypy")


BARE = """class Public:
    async def method(self, *values, **more):
        return values

    def __init__(self, value: int):
        self.value = value


def function(value, other: int = 1) -> int:
    def inner():
        return value

    return inner()


def _private(value: int):
    return value
"""


@pytest.mark.parametrize("file", ["cli.py", "core/run/new.py", "plugins/new/new.py"])
def test_public_names_are_documented_and_every_signature_is_annotated(file):
    """Of the package's own files, which the linter checks above."""
    words = ["check", "--no-cache", "--output-format=json", f"--stdin-filename=plugrl/{file}", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *words],
        cwd=ROOT, input=BARE, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = {(fault["location"]["row"], fault["code"]) for fault in json.loads(done.stdout)}
    assert found == {
        (1, "D100"), (1, "D101"), (2, "D102"), (2, "ANN002"), (2, "ANN003"), (2, "ANN201"),
        (5, "ANN204"), (9, "D103"), (9, "ANN001"), (10, "ANN202"), (16, "ANN202"),
    }  # fmt: skip
