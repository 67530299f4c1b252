"""What the tests beside this one find installed is what pip installs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parent / "packages"


def described(site, name):
    """Name, version, summary, entry points and modules of an installed distribution."""
    [found] = [d for d in distributions(path=[str(site)]) if d.metadata["Name"] == name]
    assert found.metadata["Version"] == found.version
    module = name.replace("-", "_")
    files = [*(site / module).rglob("*.py"), *site.glob(f"{module}.py")]
    return {
        "version": found.version,
        "summary": found.metadata["Summary"],
        "entry points": sorted((e.group, e.name, e.value) for e in found.entry_points),
        "modules": {file.relative_to(site).as_posix(): file.read_text() for file in files},
    }


@pytest.mark.integration
def test_pip_installs_what_the_tests_find(installed, tmp_path):
    """A package with several groups, a single module, and a package with misspelt groups."""
    names = ["good", "functions", "wrong-group"]
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    target = tmp_path / "target"
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in names:  # A build leaves files in its folder.
        shutil.copytree(PACKAGES / name, tmp_path / name, ignore=ignored)
    command = [sys.executable, "-m", "pip", "install", *options, target]
    subprocess.run([*command, *(tmp_path / name for name in names)], check=True)
    for name in names:
        by_pip = described(target, f"plugrl-test-{name}")
        assert by_pip == described(installed, f"plugrl-test-{name}")
        assert by_pip["entry points"]
        assert by_pip["modules"]
