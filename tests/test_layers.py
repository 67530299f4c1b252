"""The layers of the package: who may import whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINT = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT, "--config", str(config), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_the_contracts_of_the_layers_hold():
    done = lint(ROOT, ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_an_import_against_the_layers_is_found(tmp_path):
    """The contracts would notice: they break when core imports a trainer."""
    for layer in ("cli", "commands", "core", "trainers", "scenarios", "plugins", "testing"):
        package = tmp_path / "plugrl" / layer
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
    (tmp_path / "plugrl" / "__init__.py").write_text("")
    assert lint(tmp_path, ROOT / "pyproject.toml").returncode == 0
    (tmp_path / "plugrl" / "core" / "__init__.py").write_text("import plugrl.trainers\n")
    done = lint(tmp_path, ROOT / "pyproject.toml")
    assert done.returncode == 1
    assert "0 broken" not in done.stdout
