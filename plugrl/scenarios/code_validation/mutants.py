"""Mutants: programs that differ from another in one place, as bugs of people do."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from plugrl.core.sandbox.inside.syntax import parse_python

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_COMPUTED: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.FloorDiv: (ast.Mod,),
    ast.Mod: (ast.FloorDiv,),
}
_CALLED = {
    "max": "min", "min": "max", "any": "all", "all": "any",
    "append": "extend", "upper": "lower", "lower": "upper", "strip": "lstrip",
    "startswith": "endswith", "endswith": "startswith", "find": "rfind", "isdigit": "isalpha",
}  # fmt: skip
#: What nobody writes, so that it would give a mutant away.
_ODD = re.compile(r"[-+] 0\b(?!\.)|(?:\*|//|%) [01]\b(?!\.)")
#: A change of one node; what it gives takes the node's place. None leaves a statement out.
_Change = Callable[[ast.AST], ast.AST | None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A program with one change.

    Attributes:
        program: its source, laid out by :func:`ast.unparse`.
        line: the number of the changed line in it, from 1.
        change: the line before and after, such as ``i < n  ->  i <= n``.
    """

    program: str
    line: int
    change: str


def normalise(program: str) -> str:
    """``program`` as the mutants of it are laid out, without comments.

    Raises:
        SyntaxError: it is no Python.
    """
    return ast.unparse(parse_python(program))


def mutants(program: str) -> list[Mutant]:
    """All mutants of ``program``, in the order of their places; no two are equal.

    Comparisons are turned round, and get or lose their limit; numbers and bounds of ranges are off
    by one; sums become differences, and ``and`` becomes ``or``; conditions are denied; calls ask
    for the opposite; statements are left out. Nothing is written that people would not write, so
    that the style of a program does not tell whether it is right.

    Raises:
        SyntaxError: it is no Python.
    """
    tree = parse_python(normalise(program))
    source = ast.unparse(tree)
    before, odd = source.splitlines(), len(_ODD.findall(source))
    found: dict[str, Mutant] = {}
    for place, node in enumerate(ast.walk(tree)):
        for change in _changes(node):
            other = copy.deepcopy(tree)
            _replace(other, place, change)
            text = ast.unparse(ast.fix_missing_locations(other))
            if text in found or text == source or len(_ODD.findall(text)) > odd:
                continue
            found[text] = Mutant(text, *_difference(before, text.splitlines()))
    return sorted(found.values(), key=lambda mutant: (mutant.line, mutant.change))


def _difference(before: list[str], after: list[str]) -> tuple[int, str]:
    for number, (old, new) in enumerate(zip(before, after, strict=False)):
        if old != new:
            return number + 1, f"{old.strip()}  ->  {new.strip()}"
    return min(len(before), len(after)), "lines are left out at the end"


def _replace(tree: ast.AST, place: int, change: _Change) -> None:
    """Put what ``change`` makes of node ``place`` of a walk in its place."""
    old = next(node for number, node in enumerate(ast.walk(tree)) if number == place)
    new = change(old)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                return
            if isinstance(value, list):
                for index, child in enumerate(value):
                    if child is old:
                        _put(value, index, new)
                        return


def _put(values: list[ast.AST], index: int, new: ast.AST | None) -> None:
    if new is not None:
        values[index] = new
    elif len(values) > 1:
        # The only statement of a block stays: ``pass`` in its place would give the mutant away.
        del values[index]


def _changes(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.Compare(ops=[operator]):
            for kind in _COMPARED.get(type(operator), ()):
                yield _with(ops=[kind()])
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator):
            for other in _COMPUTED.get(type(operator), ()):
                yield _with(op=other())
            if isinstance(node, ast.BinOp) and isinstance(operator, (ast.Sub, ast.FloorDiv)):
                yield _with(left=node.right, right=node.left)
        case ast.BoolOp(op=ast.And()):
            yield _with(op=ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield _with(op=ast.And())
        case ast.Constant(value=bool() as truth):
            yield _with(value=not truth)
        case ast.Constant(value=int() as number) if abs(number) <= 100:
            yield _with(value=number + 1)
            if number > 0:
                yield _with(value=number - 1)
        case ast.Call():
            yield from _calls(node)
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare):
            yield _with(test=_opposite(test))
        case ast.Continue():
            yield lambda old: ast.Break()
        case ast.Expr(value=ast.Call()):
            yield lambda old: None
        case _:
            pass
    if isinstance(node, ast.AugAssign):
        yield lambda old: None


def _calls(node: ast.Call) -> Iterator[_Change]:
    match node.func:
        case ast.Name(id=name) if name in _CALLED:
            yield _with(func=ast.Name(_CALLED[name], ast.Load()))
        case ast.Attribute(attr=name, value=value) if name in _CALLED:
            yield _with(func=ast.Attribute(value, _CALLED[name], ast.Load()))
        case ast.Name(id="range"):
            last = min(len(node.args), 2) - 1
            if last >= 0:
                for step in (1, -1):
                    moved = list(node.args)
                    moved[last] = _shifted(node.args[last], step)
                    yield _with(args=moved)
        case ast.Name(id="sorted"):
            if not node.keywords:
                backward = ast.keyword("reverse", ast.Constant(value=True))
                yield _with(keywords=[backward])
            yield lambda old: old.args[0]  # type: ignore[attr-defined,no-any-return]
        case ast.Name(id="abs"):
            yield lambda old: old.args[0]  # type: ignore[attr-defined,no-any-return]
        case _:
            pass


def _shifted(bound: ast.expr, step: int) -> ast.expr:
    """``bound`` plus ``step``, simplified: n + 1 becomes n + 2 or n."""
    match bound:
        case ast.Constant(value=int() as number):
            return ast.Constant(number + step)
        case ast.BinOp(
            op=ast.Add() | ast.Sub() as operator, right=ast.Constant(value=int() as number)
        ):
            step += number if isinstance(operator, ast.Add) else -number
            bound = bound.left
        case _:
            pass
    if step == 0:
        return bound
    return ast.BinOp(bound, ast.Add() if step > 0 else ast.Sub(), ast.Constant(abs(step)))


def _opposite(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def _with(**fields: object) -> _Change:
    """The change of a node that gives some of its fields other values."""

    def change(old: ast.AST) -> ast.AST:
        new = copy.copy(old)
        for name, value in fields.items():
            setattr(new, name, value)
        return new

    return change
