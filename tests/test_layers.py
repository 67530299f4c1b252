"""The layers of the package: who may import whom."""

from __future__ import annotations

import graphlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    for file in (ROOT / "plugrl").glob("[!_]*.py"):
        (tmp_path / "plugrl" / file.name).touch()
    (tmp_path / "plugrl" / "__init__.py").write_text("")
    for room in (ROOT / "plugrl" / "core").glob("[a-z]*"):
        (tmp_path / "plugrl" / "core" / f"{room.stem}.py").touch()
    assert lint(tmp_path, ROOT / "pyproject.toml").returncode == 0
    (tmp_path / "plugrl" / "core" / "__init__.py").write_text("import plugrl.trainers\n")
    done = lint(tmp_path, ROOT / "pyproject.toml")
    assert done.returncode == 1
    assert "0 broken" not in done.stdout


IMPORT = re.compile(
    r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|.*)|import ([\w., ]+))", re.MULTILINE
)


def imports_of(folder: Path, package: str) -> dict[str, set[str]]:
    """The modules that each file of a package imports, in functions and for annotations too."""
    files = {}
    for file in (folder / package).rglob("*.py"):
        parts = file.relative_to(folder).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        found: set[str] = set()
        for source, names, plain in IMPORT.findall(file.read_text("utf-8")):
            found |= set(re.findall(r"[\w.]+", plain))
            whole = {f"{source}.{name}" for name in re.findall(r"\w+", names)}
            found |= {name if name in files else source for name in whole}
        # The package itself is the table of public names, which are imported when they are used.
        graph[module] = (found & files.keys()) - {module, package} if module != package else set()
    return graph


def test_no_file_imports_itself_by_way_of_others():
    graphlib.TopologicalSorter(imports_of(ROOT, "plugrl")).prepare()


def test_a_ring_of_files_is_found_where_only_an_annotation_closes_it(tmp_path):
    package = tmp_path / "rings"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("def f():\n    from rings.b import g\n    return g\n")
    (package / "b.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from rings import a\n"
    )
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(imports_of(tmp_path, "rings")).prepare()
    (package / "b.py").write_text("import ast\n")
    graphlib.TopologicalSorter(imports_of(tmp_path, "rings")).prepare()
