"""Installs the packages beside this file once, and runs the command line against them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import DEADLINE

PACKAGES = Path(__file__).parent / "packages"
Completed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all the packages installed by pip, to be put on PYTHONPATH."""
    sources = tmp_path_factory.mktemp("sources") / "packages"
    target = tmp_path_factory.mktemp("installed")
    shutil.copytree(PACKAGES, sources, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    folders = sorted(str(folder) for folder in sources.iterdir())
    subprocess.run([sys.executable, "-m", "pip", "install", *options, target, *folders], check=True)
    return target


@pytest.fixture
def python(installed: Path, tmp_path: Path) -> Callable[..., Completed]:
    """Runs Python in an empty folder; ``only`` names the plugins that may be used."""

    def run(*arguments: str, only: str | None = None, **environment: str) -> Completed:
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PLUGRL_")}
        variables |= {"PYTHONPATH": str(installed), "COLUMNS": "200", **environment}
        if only is not None:
            variables["PLUGRL_PLUGINS"] = only
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    return run


@pytest.fixture
def plugrl(python: Callable[..., Completed]) -> Callable[..., Completed]:
    """Runs the command line."""

    def run(*arguments: str, **options: str) -> Completed:
        return python("-m", "plugrl", *arguments, **options)

    return run
