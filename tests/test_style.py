"""Style as a rule: linters pass, files and functions stay small, public names are documented."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "plugrl").rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


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


def public_definitions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Definition]]:
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body, f"{prefix}{node.name}.")


def undocumented(file: Path) -> list[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    missing = [] if ast.get_docstring(tree) else [str(file.relative_to(ROOT))]
    for name, node in public_definitions(tree.body, f"{file.relative_to(ROOT)}: "):
        decorators = {ast.unparse(word).rpartition(".")[2] for word in node.decorator_list}
        if not ast.get_docstring(node) and not decorators & {"overload", "override", "setter"}:
            missing.append(name)
    return missing


def test_public_names_are_documented():
    # Of a test, the name says what it is about; the kit's are no exception.
    files = [file for file in FILES if not file.name.startswith("test_")]
    assert [name for file in files for name in undocumented(file)] == []


def unannotated(file: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, Function):
            continue
        spec = node.args
        named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
        bare = [a for a in named if a and a.annotation is None and a.arg not in ("self", "cls")]
        if bare or node.returns is None:
            found.append(f"{file.relative_to(ROOT)}: {node.name}")
    return found


def test_every_signature_is_annotated():
    assert [name for file in FILES for name in unannotated(file)] == []
