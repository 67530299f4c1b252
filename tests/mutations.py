"""Mutation testing: single changes of plugrl, and whether the tests notice them.

    python tests/mutations.py --number 40 --seed 1 --jobs 2   a sample over the default modules
    python tests/mutations.py plugrl/core/text/schedule/pool.py        all mutants of one module
    python tests/mutations.py --only plugrl/core/text/schedule/pool.py:181
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
import functools
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
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).parent / "support"))
from mutants import ROOT, Mutant, equivalents, mutants_of, named

#: Tests run in forks of a process that has imported these, which takes longer than most tests.
START = multiprocessing.get_context("forkserver")
LARGE = ["pytest", "hypothesis", "torch", "torchrl.objectives", "transformers", "gymnasium"]
DEFAULT = [
    *(f"plugrl/core/{name}" for name in ("config", "run", "tensordict")),
    *(
        f"plugrl/core/text/{name}"
        for name in ("data", "endpoint", "evaluate", "learn", "rollout", "schedule")
    ),
    *(f"plugrl/scenarios/{name}" for name in ("evaluators", "protocols")),
    "plugrl/trainers",
]
TOO_LONG = "(time limit)"
#: Not behaviour: any mutant changes the format of a file.
UNWANTED = ("tests/test_style.py", "tests/test_layers.py", "tests/test_packaging.py")


@functools.cache
def texts_of_tests() -> list[tuple[Path, str]]:
    """The files of tests with what is written in them, and in the helpers that they import."""
    everything = sorted((ROOT / "tests").rglob("*.py"))
    helpers = {f.stem: f.read_text("utf-8") for f in everything if not f.stem.startswith("test_")}
    imported = re.compile(r"^(?:from|import) (?:tests\.(?:\w+\.)*)?(\w+)", re.M)
    found = []
    for file in everything:
        own, text = file.relative_to(ROOT), file.read_text("utf-8")
        if file.stem not in helpers and str(own) not in UNWANTED and "gpu" not in own.parts:
            text += "".join(helpers.get(name, "") for name in imported.findall(text))
            found.append((own, text))
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
    ranked = []
    for own, text in texts_of_tests():
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
    if package not in text or name not in text:  # Faster by ten times than what follows.
        return False
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
    sys.path[:] = [
        place,
        *(entry for entry in sys.path if not entry.startswith(str(ROOT / "tests"))),
    ]
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
        found, gone = named()
        print("".join(f"{line}\n" for line in gone), end="")
        return [m for m in found if not wanted or any(w in f"{m.file}:{m.line}" for w in wanted)]
    if arguments.only:
        file, _, line = arguments.only.partition(":")
        ends = {m: m.line + m.old.count("\n") for m in mutants_of(file)}
        return [m for m in ends if not line or m.line <= int(line) <= ends[m]]
    files: list[str] = []
    for name in arguments.paths or DEFAULT:
        place = ROOT / name
        inside = [place] if place.is_file() else sorted(place.rglob("*.py"))
        if not inside:
            raise SystemExit(f"{name} has no modules")
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
    equal = equivalents()
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
