"""Single changes of a module: of operators, comparisons, constants, arguments, statements."""

from __future__ import annotations

import ast
import copy
import difflib
import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Mutants by name, and those that make no difference.
NAMED = ROOT / "tests" / "mutants.toml"

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
#: Functions and methods that are taken for one another.
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin",
         "sum": "mean", "mean": "sum", "minimum": "maximum", "maximum": "minimum"}  # fmt: skip
#: Calls that leave a value as it was when they are dropped.
FUNCTIONS, METHODS = {"abs", "sorted", "list", "dict", "set", "reversed"}, {
    "abs", "clamp", "clip", "copy", "clone", "detach", "square", "sqrt"}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the lines ``old`` of a file, which begin at ``line``, become ``new``."""

    file: str
    line: int
    old: str
    new: str
    what: str
    caught_by: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What it is recognised by in a file of results."""
        return hashlib.sha1(
            "\0".join([self.file, str(self.line), self.old, self.new]).encode()
        ).hexdigest()[:12]

    def applied(self, source: str) -> str:
        lines = source.splitlines(keepends=True)
        first, last = self.line - 1, self.line - 1 + self.old.count("\n") + 1
        return "".join([*lines[:first], self.new + "\n" if self.new else "", *lines[last:]])

    def diff(self) -> str:
        lines = difflib.ndiff(self.old.splitlines(), self.new.splitlines())
        return "\n".join(f"    {line}" for line in lines if line[0] in "-+")


def mutants_of(file: str) -> list[Mutant]:
    """Every single change of a module that is known here, by line."""
    source = (ROOT / file).read_text("utf-8")
    lines = source.splitlines()
    found: dict[str, Mutant] = {}
    for node, new, what in changes(ast.parse(source)):
        first, last = node.lineno - 1, node.end_lineno
        old = "\n".join(lines[first:last])
        # Columns count bytes.
        head = lines[first].encode()[: node.col_offset].decode()
        tail = lines[last - 1].encode()[node.end_col_offset :].decode()
        mutant = Mutant(file, first + 1, old, f"{head}{new}{tail}", what)
        if mutant.new != old:
            found.setdefault(mutant.key, mutant)
    return sorted(found.values(), key=lambda m: (m.line, m.what, m.new))


def changes(tree: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    """Nodes, the text that takes their place, and what kind of change it is."""
    for node in walk(tree):
        if isinstance(node, ast.expr):
            for other, what in expressions(node):
                yield node, f"({ast.unparse(other)})", what
        elif isinstance(node, (ast.If, ast.While)):
            yield node.test, f"(not ({ast.unparse(node.test)}))", "condition turned round"
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.Delete)):
            targets = getattr(node, "targets", [getattr(node, "target", node)])
            # A name that is never set fails everywhere.
            if isinstance(node, ast.AugAssign) or not isinstance(targets[0], (ast.Name, ast.Tuple)):
                yield node, "pass", "statement dropped"
        elif isinstance(node, ast.Return) and not isinstance(node.value, ast.Constant | None):
            yield node, "return None", "nothing returned"


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes, except what only speaks: annotations, messages, decorators and texts."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "exc", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.arg, ast.Assert)):
                continue
            if isinstance(child, ast.Expr) and (speaks(child.value)):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.AST):
                yield child
                yield from walk(child)


def speaks(node: ast.expr) -> bool:
    """Whether it is a docstring or a line of the log."""
    return isinstance(node, ast.Constant) or ast.unparse(node).startswith(("log.", "logger."))


def expressions(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Expressions that may take the place of one."""

    def changed(**fields: object) -> ast.expr:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    match node:
        case ast.Compare(ops=[op, *rest]) if type(op) in COMPARED:
            yield changed(ops=[COMPARED[type(op)](), *rest]), "comparison"
        case ast.BinOp(op=op, left=left) if type(op) in OPERATED:
            text = isinstance(left, ast.Constant) and isinstance(left.value, str)
            if not (isinstance(op, ast.Add) and (text or isinstance(left, ast.JoinedStr))):
                yield changed(op=OPERATED[type(op)]()), "operator"
        case ast.BoolOp(op=op, values=values):
            yield changed(op=ast.Or() if isinstance(op, ast.And) else ast.And()), "and/or"
            for i in range(len(values)):
                rest = [*values[:i], *values[i + 1 :]]
                yield rest[0] if len(rest) == 1 else changed(values=rest), "operand dropped"
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield operand, "sign or not dropped"
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value), "constant"
        case ast.Constant(value=int(value) | float(value)):
            yield (
                ast.Constant(value + 1 if isinstance(value, int) else value * 2 or 1.0),
                "constant",
            )
        case ast.IfExp(body=body, orelse=orelse):
            yield changed(body=orelse, orelse=body), "condition turned round"
        case ast.Dict(keys=keys, values=values) if len(keys) > 1:
            for i in range(len(keys)):
                less = {"keys": keys[:i] + keys[i + 1 :], "values": values[:i] + values[i + 1 :]}
                yield changed(**less), "entry dropped"
        case ast.Call(func=func, args=args):
            yield from calls(changed, func, args)


def calls(changed: object, func: ast.expr, args: list[ast.expr]) -> Iterator[tuple[ast.expr, str]]:
    name = func.id if isinstance(func, ast.Name) else getattr(func, "attr", "")
    if len(args) > 1 and not any(isinstance(a, ast.Starred) for a in args[:2]):
        yield changed(args=[args[1], args[0], *args[2:]]), "arguments swapped"
    if isinstance(func, ast.Name) and name in TWINS:
        yield changed(func=ast.Name(TWINS[name])), "function"
    elif isinstance(func, ast.Attribute) and name in TWINS:
        yield changed(func=ast.Attribute(func.value, TWINS[name])), "function"
    elif isinstance(func, ast.Name) and name in FUNCTIONS and len(args) == 1:
        yield args[0], "call dropped"
    elif isinstance(func, ast.Attribute) and name in METHODS:
        module = isinstance(func.value, ast.Name) and func.value.id in ("torch", "np", "math")
        if not module or args:
            yield args[0] if module else func.value, "call dropped"


def named() -> tuple[list[Mutant], list[str]]:
    """The mutants of the list, and a line about each whose lines do not stand once in its file."""
    found, gone = [], []
    for entry in tomllib.loads(NAMED.read_text("utf-8")).get("mutant", []):
        old, new = entry["old"].strip("\n"), entry["new"].strip("\n")
        file = ROOT / entry["file"]
        text = "\n" + (file.read_text("utf-8") if file.exists() else "")
        if text.count(f"\n{old}\n") != 1:
            gone.append(f"{entry['file']} does not have these lines once:\n{old}")
            continue
        line = text[: text.index(f"\n{old}\n") + 1].count("\n")
        caught_by = tuple(entry.get("caught_by", []))
        found.append(Mutant(entry["file"], line, old, new, "named", caught_by))
    return found, gone


def equivalents() -> set[tuple[str, str, str]]:
    """File, old and new lines of mutants that make no difference."""
    entries = tomllib.loads(NAMED.read_text("utf-8")).get("equivalent", [])
    return {(e["file"], e["old"].strip("\n"), e["new"].strip("\n")) for e in entries}
