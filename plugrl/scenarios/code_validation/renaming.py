"""Gives the local variables of a program other names, which changes nothing that it does."""

from __future__ import annotations

import ast
import builtins

import numpy as np

from plugrl.core.sandbox.inside.syntax import parse_python

#: Names that programs of any subject might use, so that a name tells nothing about its program.
_NAMES = (
    "a", "b", "c", "d", "e", "g", "h", "i", "j", "k", "m", "n", "p", "q", "r", "s", "t", "u", "v",
    "w", "x", "y", "z", "acc", "cur", "data", "item", "items", "left", "part", "res", "rest",
    "right", "seen", "tmp", "total", "val", "value", "values", "out", "prev", "num", "one", "two",
)  # fmt: skip


def rename_variables(program: str, seed: tuple[int, ...]) -> str:
    """``program`` with other names for its local variables, drawn with ``seed``.

    Functions and their arguments, of which a question may speak, stay.

    Raises:
        SyntaxError: it is no Python.
    """
    tree = parse_python(program)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    fixed = {f.name for f in functions} | {a.arg for f in functions for a in f.args.args}
    bound = dict.fromkeys(
        name
        for node in ast.walk(tree)
        for name in _bound(node)
        if name not in fixed and not hasattr(builtins, name)
    )
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(bound)
    free = [name for name in _NAMES if name not in used | fixed]
    if len(bound) > len(free):
        return ast.unparse(tree)
    order = np.random.default_rng(seed).permutation(len(free))
    names = {old: free[place] for old, place in zip(bound, order, strict=False)}
    return ast.unparse(_Renamer(names).visit(tree))


def _bound(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return [node.arg] if isinstance(node, ast.arg) else []


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self._names.get(node.arg, node.arg)
        return node
