"""Mutation testing: single changes of plugrl, and whether the tests notice them.

    python tests/mutations.py --number 40 --seed 1 --jobs 2   a sample over the default modules
    python tests/mutations.py plugrl/core/text/pool.py        all mutants of one module
    python tests/mutations.py --only plugrl/core/text/pool.py:181
    python tests/mutations.py --named                         those of tests/mutants.toml

Each mutant is written into a copy of the tree in a temporary folder. First the tests of its own
module run there: its mirror, then the files that import it. What they let pass meets the whole
fast tier, unless ``--own`` is given. ``--results FILE`` keeps the outcomes and goes on from there.

Mutants that make no difference stand in ``tests/mutants.toml`` with the reason. So do named ones:
faults that tests once let pass, each with the test that catches it today, which alone is run.

The usual tools rewrite the package so that it switches mutants in one process, or mutate one tree
with one command for all. Here tests start other processes and read sources, and own tests come
first.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import hashlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
NAMED = ROOT / "tests" / "mutants.toml"
#: Tests run in forks of a process that has imported these, which takes longer than most tests.
START = multiprocessing.get_context("forkserver")
LARGE = ["pytest", "hypothesis", "torch", "torchrl.objectives", "transformers", "gymnasium"]
DEFAULT = [
    *(f"plugrl/trainers/{name}" for name in ("losses", "advantages", "objectives", ".")),
    *(
        f"plugrl/core/text/{name}.py"
        for name in (
            *("pool", "losses", "rewards", "grouping", "lockstep", "streaming", "overlapping"),
            *("curriculum", "weight_sync", "weight_states", "validation", "pass_at_k"),
        )
    ),
    *(f"plugrl/core/{name}" for name in ("text/endpoint", "run", "config", "tensordict")),
    *(f"plugrl/scenarios/{name}" for name in ("protocols", "evaluators")),
]
TOO_LONG = "(time limit)"
#: Not behaviour: any mutant changes the format of a file.
UNWANTED = ("tests/test_style.py", "tests/test_layers.py", "tests/test_packaging.py")

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
        return hashlib.sha1("\0".join([self.file, self.old, self.new]).encode()).hexdigest()[:12]

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
            if not isinstance(left, (ast.JoinedStr, ast.Constant)) or op.__class__ is not ast.Add:
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


def named() -> list[Mutant]:
    """The mutants of the list; those whose lines are not there once are reported."""
    found = []
    for entry in tomllib.loads(NAMED.read_text("utf-8")).get("mutant", []):
        old, new = entry["old"].strip("\n"), entry["new"].strip("\n")
        text = "\n" + (ROOT / entry["file"]).read_text("utf-8")
        if text.count(f"\n{old}\n") != 1:
            sys.exit(f"{NAMED.name}: {entry['file']} does not have these lines once:\n{old}")
        line = text[: text.index(f"\n{old}\n") + 1].count("\n")
        tests = entry.get("caught_by", [])
        found.append(Mutant(entry["file"], line, old, new, "named", tuple(tests)))
    return found


def own_tests(file: str, direct: bool = True) -> list[str]:
    """The tests of a module: its mirror, the files that import it, and those near by that name it.

    Of what no test imports it is the tests of the modules that do.
    """
    path = Path(file)
    module = ".".join(path.with_suffix("").parts)
    folder = Path("tests", *path.parent.parts[1:])
    while not (ROOT / folder).exists():
        folder = folder.parent
    quoted = re.compile(rf"[\"']{re.escape(path.stem)}[\"']")
    everything = sorted((ROOT / "tests").rglob("*.py"))
    helpers = {f.stem: f.read_text("utf-8") for f in everything if f.stem[:5] != "test_"}
    ranked = []
    for test in everything:
        own, text = test.relative_to(ROOT), test.read_text("utf-8")
        if test.stem in helpers:
            continue
        # What helpers import is as good as imported.
        text += "".join(
            helpers.get(n, "")
            for n in re.findall(r"^(?:from|import) (?:tests\.(?:\w+\.)*)?(\w+)", text, re.M)
        )
        if str(own) in UNWANTED or "gpu" in own.parts:
            continue
        near = own.parent == folder
        if imports(text, module) or (near and path.stem == own.stem.removeprefix("test_")):
            ranked.append((path.stem not in (own.stem.removeprefix("test_"), own.parent.name), own))
        elif near and quoted.search(text):
            ranked.append((2, own))
    if not ranked and direct:
        users = [f for f in (ROOT / "plugrl").rglob("*.py") if imports(f.read_text(), module)]
        found = [test for user in users for test in own_tests(str(user.relative_to(ROOT)), False)]
        return list(dict.fromkeys(found))
    return [str(own) for _, own in sorted(ranked)]


def imports(text: str, module: str) -> bool:
    package, _, name = module.rpartition(".")
    own = rf"\b(from|import) {re.escape(module)}\b"
    of_package = rf"from {re.escape(package)} import (\([^)]*|[^\n]*)\b{name}\b"
    return bool(re.search(own, text) or re.search(of_package, text))


class Copies:
    """Copies of the tree, one for each job, and runs of tests in them."""

    def __init__(self, place: Path, jobs: int, limit: float) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._limit = limit
        self._sound: dict[str, bool] = {}
        listed = ["git", "ls-files", "-co", "--exclude-standard"]
        done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
        for number in range(jobs):
            own = place / str(number) / "tree"
            for name in done.stdout.splitlines():
                if (ROOT / name).is_file():
                    (own / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, own / name)
            make_python(own)
            self._free.put(own)

    def judge(self, mutant: Mutant, own_only: bool) -> tuple[str, str]:
        """Who catches a mutant, and the first test that fails."""
        place = self._free.get()
        file = place / mutant.file
        before, stat = file.read_text("utf-8"), file.stat()
        own = mutant.caught_by or tuple(own_tests(mutant.file))
        tier = ("tests", "-n", "2", *(f"--ignore={name}" for name in UNWANTED))
        caught = failed = ""
        try:
            file.write_text(mutant.applied(before), "utf-8")
            if own:
                caught, failed = "own tests", self._fails(place, own, self._limit)
            if not failed and not own_only and not mutant.caught_by:
                caught, failed = "fast tier", self._fails(place, tier, 20 * self._limit)
        finally:
            file.write_text(before, "utf-8")
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        sound = failed in ("", TOO_LONG) or self._passes(place, failed, own)
        self._free.put(place)
        if not failed:
            return "survived" if caught == "fast tier" else "survived own tests", ""
        return (caught if sound else "cannot be told"), failed

    def _passes(self, place: Path, failed: str, own: tuple[str, ...]) -> bool:
        """Whether a test passes in the tree as it is."""
        if failed not in self._sound:
            tests = (failed,) if failed.startswith("tests/") else own
            self._sound[failed] = not self._fails(place, tests, self._limit)
        return self._sound[failed]

    def _fails(self, place: Path, tests: tuple[str, ...], limit: float) -> str:
        """The first test that fails; empty: none."""
        log = place.with_name("log")
        process = START.Process(target=run_pytest, args=(str(place), str(log), tests, int(limit)))
        process.start()
        # Others may use the processors too; what waits for ever ends at last.
        process.join(10 * limit)
        if process.exitcode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        # 5: every test of these files is of another tier.
        if process.exitcode in (0, 5):
            return ""
        if process.exitcode in (-signal.SIGKILL, -signal.SIGXCPU):
            return TOO_LONG
        output = log.read_text("utf-8", "replace")
        failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", output, re.M)
        return failed[0] if failed else output.strip().splitlines()[-1][:100]


def make_python(tree: Path) -> None:
    """An interpreter that finds the copy of plugrl whatever a test makes of PYTHONPATH."""
    folder = tree.with_name("python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/*/site-packages")
    shared = sysconfig.get_path("purelib")
    (site / "copy.pth").write_text(f"{tree}\nimport site; site.addsitedir({shared!r})\n")
    for script in Path(sys.executable).parent.iterdir():
        if not (folder / "bin" / script.name).exists() and script.is_file():
            (folder / "bin" / script.name).symlink_to(script)
    command = folder / "bin" / "plugrl"
    command.unlink(missing_ok=True)
    command.write_text(f"#!{folder}/bin/python\nfrom plugrl.cli import main\n\nmain()\n")
    command.chmod(0o755)


def run_pytest(place: str, log: str, tests: tuple[str, ...], limit: int) -> None:
    """Run tests in a process of their own, which has the large packages already."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
    os.chdir(place)
    os.environ["PATH"] = f"{Path(place).with_name('python')}/bin:{os.environ['PATH']}"
    sys.executable = f"{Path(place).with_name('python')}/bin/python"
    sys.path[:] = [place, *(entry for entry in sys.path if entry != str(ROOT / "tests"))]
    sys.argv[:] = ["pytest", "-x", "-p", "no:cacheprovider", *tests]
    with Path(log).open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import pytest

    code = pytest.main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)


def chosen(arguments: argparse.Namespace) -> list[Mutant]:
    """The mutants that are asked for; a sample takes its files in turn."""
    if arguments.named is not None:
        wanted = arguments.named
        return [m for m in named() if not wanted or any(w in f"{m.file}:{m.line}" for w in wanted)]
    if arguments.only:
        file, _, line = arguments.only.partition(":")
        return [m for m in mutants_of(file) if not line or m.line == int(line)]
    files: list[str] = []
    for name in arguments.paths or DEFAULT:
        place = ROOT / name
        inside = [place] if place.is_file() else sorted(place.glob("*.py"))
        files += [str(f.resolve().relative_to(ROOT)) for f in inside if f.name != "__init__.py"]
    drawn = random.Random(arguments.seed)
    by_file = {file: mutants_of(file) for file in dict.fromkeys(files)}
    number = arguments.number if arguments.number or arguments.paths else 50
    if number is None:
        return [mutant for mutants in by_file.values() for mutant in mutants]
    for mutants in by_file.values():
        drawn.shuffle(mutants)
    turns = drawn.sample(sorted(by_file), len(by_file))
    longest = max(map(len, by_file.values()))
    mixed = [by_file[f][i] for i in range(longest) for f in turns if i < len(by_file[f])]
    return mixed[:number]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", help="modules or folders of plugrl")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, help="mutants; by default 50, or all of given paths")
    parser.add_argument("--only", metavar="FILE[:LINE]", help="all mutants of one line")
    parser.add_argument("--named", nargs="*", metavar="PART", help="those of tests/mutants.toml")
    parser.add_argument("--own", action="store_true", help="never run the whole fast tier")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument(
        "--limit", type=float, default=120.0, help="processor seconds of the own tests"
    )
    parser.add_argument("--results", type=Path, help="file of outcomes, to go on with")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    arguments = parser.parse_args()
    mutants = chosen(arguments)
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.file}:{mutant.line}: {mutant.what}\n{mutant.diff()}")
        return
    same = tomllib.loads(NAMED.read_text("utf-8")).get("equivalent", [])
    equal = {(e["file"], e["old"].strip("\n"), e["new"].strip("\n")) for e in same}
    known: dict[str, list[str]] = {}
    if arguments.results and arguments.results.exists():
        known = {k: v for k, *v in map(json.loads, arguments.results.read_text().splitlines())}
    os.environ["OMP_NUM_THREADS"] = "1"
    START.set_forkserver_preload(LARGE)
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copies = Copies(Path(place), arguments.jobs, arguments.limit)
        counted: Counter[str] = Counter()
        lock = threading.Lock()

        def tried(mutant: Mutant) -> None:
            if (mutant.file, mutant.old, mutant.new) in equal:
                outcome, by = "makes no difference", ""
            elif mutant.key in known and known[mutant.key][0] != "survived own tests":
                outcome, by = known[mutant.key]
            else:
                outcome, by = copies.judge(mutant, arguments.own)
            with lock:
                counted[outcome] += 1
                print(f"{outcome:20} {mutant.file}:{mutant.line} ({mutant.what}) {by}")
                if outcome.startswith("survived"):
                    print(mutant.diff(), flush=True)
                sys.stdout.flush()
                if arguments.results:
                    with arguments.results.open("a") as file:
                        file.write(json.dumps([mutant.key, outcome, by]) + "\n")

        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(tried, mutants))
    print(f"\n{sum(counted.values())} mutants")
    for outcome, count in counted.most_common():
        print(f"{count:6} {outcome}")
    raise SystemExit(any(outcome.startswith("survived") for outcome in counted))


if __name__ == "__main__":
    main()
