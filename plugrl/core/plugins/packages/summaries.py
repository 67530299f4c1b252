"""Summaries of components, read from the docstrings in their source without importing it."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from plugrl.core.plugins.kinds import Record
from plugrl.core.sandbox.inside.syntax import parse_python

#: How many re-exports are followed from the name in a target to its definition.
_STEPS = 5
#: The end of a sentence; names and abbreviations such as "Dr. GRPO" have a stop within one.
_END = re.compile(r"(?<!\bDr)(?<!\bvs)(?<!\be\.g)(?<!\bi\.e)(?<!\bet al)\. ")


def summary(record: Record) -> str:
    """The first sentence of a component's docstring, or of its module's; "" when unknown."""
    module, _, attribute = record.target.partition(":")
    file = record.file or source_of(module)
    return _summary_in_file(file, module, attribute) if file else ""


def source_of(module: str) -> str | None:
    """The Python file of a module, found without importing it or the packages around it."""
    spec, _ = _find_module(module)
    return spec.origin if spec is not None and spec.has_location else None


def folders_of(package: str) -> list[str]:
    """The folders of a package, found without importing it or the packages around it."""
    return _find_module(package)[1]


def _find_module(module: str) -> tuple[ModuleSpec | None, list[str]]:
    spec: ModuleSpec | None = None
    folders: list[str] | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = next(_specs(name, folders), None)
        if spec is not None:
            folders = list(spec.submodule_search_locations or ())
            continue
        # Finders only see a folder without __init__.py if its parent is imported.
        paths = [os.path.join(folder, part) for folder in folders or ()]
        folders = [path for path in paths if os.path.isdir(path)]
        if not folders:
            return None, []
    return spec, folders or []


def _specs(name: str, path: list[str] | None) -> Iterator[ModuleSpec]:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            found = find(name, path) if find is not None else None
        except Exception:
            continue
        if found is not None:
            yield found


def _summary_in_file(file: str, module: str, attribute: str, steps: int = _STEPS) -> str:
    tree = _parse_file(file)
    if tree is None:
        return ""
    found = _definition(tree, attribute.split("."))
    if found is not None:
        return first_sentence(ast.get_docstring(found) or ast.get_docstring(tree))
    package = module if os.path.basename(file) == "__init__.py" else module.rpartition(".")[0]
    for source, name in _import_sources(tree, attribute, package) if steps else ():
        origin = source_of(source)
        if origin is not None:
            return _summary_in_file(origin, source, name, steps - 1)
    return first_sentence(ast.get_docstring(tree))


@lru_cache(maxsize=256)
def _parse_file(file: str) -> ast.Module | None:
    try:
        return parse_python(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _definition(
    tree: ast.Module, path: list[str]
) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None:
    body, found = tree.body, None
    for name in path:
        nodes = (
            node
            for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        )
        found = next((node for node in nodes if node.name == name), None)
        if found is None:
            return None
        body = found.body
    return found


def _import_sources(tree: ast.Module, name: str, package: str) -> Iterator[tuple[str, str]]:
    """Module and name of what the file imports as ``name``."""
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            if (alias.asname or alias.name) == name:
                above = package.split(".")[: len(package.split(".")) - max(node.level - 1, 0)]
                parts = [*(above if node.level else ()), *filter(None, [node.module])]
                yield ".".join(parts), alias.name


def first_sentence(text: str | None) -> str:
    """The first sentence of a text, on one line."""
    paragraph = " ".join((text or "").strip().partition("\n\n")[0].split())
    return _END.split(paragraph, maxsplit=1)[0].removesuffix(".").replace("``", "`")
