"""Programs that mean harm: each is refused, counted or ended, and none chooses its verdict."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import hostile
import kills
import pytest

from plugrl.core.sandbox.box import Box
from plugrl.core.sandbox.inside.system_calls import call_numbers
from plugrl.core.sandbox.jobs import ProgramLimits

LIMITS = ProgramLimits(
    seconds=0.3, wall_seconds=1.5, memory_mb=256, file_kb=64, files=8, output_kb=64
)
SUPPORT = Path(hostile.__file__).parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's means are Linux ones")

#: Attempts all of them and prints those that were not refused.
EVERY = """
kept = []
for number, text in enumerate({texts!r}):
    try:
        exec(text)
    except Exception:
        continue
    kept.append(number)
print(kept)
"""
#: What must be as it was: of this process and of files that belong to others.
SEEN = (os.__file__, "/usr", "/etc/passwd")


@pytest.fixture(scope="module")
def box():
    found = Box(LIMITS)
    if len(found.kernel_protections()) < 2:
        pytest.skip("this kernel confines no files or calls")
    return found


def state():
    """What a program must not change."""
    import resource

    limits = [resource.getrlimit(i) for i in range(16)]
    files = [(s.st_mode, s.st_mtime, s.st_size, s.st_uid) for s in map(os.stat, SEEN)]
    return limits, files, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)


@pytest.fixture
def program(tmp_path):
    """Makes a program of a text, and finds after the test that nothing has changed."""
    secret = tmp_path / "secret"
    secret.write_text("hidden", "utf-8")
    before, folder = state(), secret.stat()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])

        def made(text, *, alone=True):
            text = text.replace("{port}", port).replace("{outside}", str(tmp_path))
            return hostile.BEFORE.format(numbers=call_numbers()) + text if alone else text

        yield made
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()
    after = secret.stat()
    assert (after.st_mode, after.st_mtime, after.st_size) == (
        folder.st_mode, folder.st_mtime, folder.st_size
    )  # fmt: skip
    assert os.listdir(tmp_path) == ["secret"]
    assert state() == before


def of_kind(rows):
    """The first row of each kind."""
    return list({row.kind: row for row in reversed(rows)}.values())


def test_whatever_is_not_needed_is_refused(box, program):
    texts = [program(row.text, alone=False) for row in hostile.REFUSED]
    outcome = box.script(program(EVERY.format(texts=texts)))
    assert outcome.output == "[]\n", [texts[n] for n in json.loads(outcome.output or "[]")]
    assert outcome.verdict == "done"


#: One of each kind, which the fast tier runs.
FIRST_OF_KIND = of_kind(hostile.GREEDY)


@pytest.mark.parametrize("row", FIRST_OF_KIND, ids=lambda row: row.kind)
def test_whatever_is_used_up_is_counted(box, program, row):
    check(box.script(program(row.text)), row)


def check(outcome, row):
    assert outcome.verdict in row.verdicts.split(), outcome
    assert "GOT" not in outcome.output
    assert "hidden" not in outcome.output


@pytest.mark.integration
@pytest.mark.parametrize(
    "row", hostile.REFUSED + [row for row in hostile.GREEDY if row not in FIRST_OF_KIND]
)
def test_each_program_alone(box, program, row):
    check(box.script(program(row.text)), row)


def forged(box, program):
    """Whether a program passes by its function's result, or by an assertion."""
    outcome = box.call(program, "add", [1, 2])
    equal = type(outcome.value) in (int, float) and outcome.value == 3
    tested = box.asserts(program, "assert add(1, 2) == 3")
    return outcome.verdict == "done" and equal, tested.verdict == "done"


#: A sample, and whoever looks for the tests in files.
FEW = [text for n, text in enumerate(hostile.FORGERS) if n % 5 == 0 or "os.walk" in text]


@pytest.mark.parametrize("text", FEW)
def test_no_program_chooses_its_verdict(box, text):
    assert forged(box, text) == (False, False)


@pytest.mark.integration
@pytest.mark.parametrize("text", [text for text in hostile.FORGERS if text not in FEW])
def test_no_program_of_all_chooses_its_verdict(box, text):
    assert forged(box, text) == (False, False)


def test_the_right_program_passes(box):
    assert forged(box, "def add(a, b): return a + b") == (True, True)


def test_what_is_expected_is_not_in_the_memory_of_a_program(box):
    """Nor in that of one that ran before, whose tests and output are other people's."""
    word = "0123456789abcdef" * 2
    box.asserts("def f(): return 1", f"assert f() != {word!r}")
    box.script(f"print({word[::-1]!r}[::-1])")
    # The word is never put together here, so that what is found is not the search's own.
    search = f"""
import ctypes, gc
half = {word[:16]!r}
def has(text, half):
    place = text.find(half)
    while place >= 0:
        if text.find(half, place + 16) == place + 16: return True
        place = text.find(half, place + 1)
    return False
def spoken(found):
    return isinstance(found, str) and has(found, half)
def f():
    kept = [o for o in gc.get_objects() if isinstance(o, dict) and any(map(spoken, o.values()))]
    return len(kept), has(ctypes.string_at(id(kept) & ~0xfffff, 1 << 16), half.encode())
"""
    outcome = box.asserts(search, f"kept = {word!r}\nassert f() == (0, False)")
    assert outcome.verdict == "done", outcome


def test_refused_calls_are_named(box):
    program = (
        "import socket, os\nfor f in (socket.socket, os.fork):\n try: f()\n except OSError: pass"
    )
    assert box.script(program).refused == ("socket", "clone")


WEAKER = {
    "no namespaces": ["unshare"],
    "no mounts": ["mount"],
    "a profile of the year 2019": ["unshare", "mount_setattr", "pidfd_open", "memfd_create"],
}


@pytest.mark.parametrize(
    ("lacks", "of"),
    kills.tiers([(WEAKER["no namespaces"], 3)], [(lacks, 1) for lacks in WEAKER.values()]),
)
def test_what_holds_without_namespaces(lacks, of, box, program, tmp_path_factory):
    """With one in three programs in the integration tier, and all of them in ``slow``."""
    folder = tmp_path_factory.mktemp("boxes")
    programs = (hostile.REFUSED + hostile.GREEDY)[::of]
    rows = [(row.verdicts, program(row.text)) for row in programs]
    wrong = elsewhere(lacks, {"rows": rows, "forgers": hostile.FORGERS[::of]}, folder)
    assert wrong == {"own root": False, "kernel": ["files", "calls"], "wrong": []}
    assert list(folder.iterdir()) == []


RUN = """
import json, sys
from plugrl.core.sandbox.box import Box
from plugrl.core.sandbox.jobs import ProgramLimits
given = json.load(open(sys.argv[1]))
box = Box(ProgramLimits(**given["limits"]))
wrong = []
for verdicts, text in given["rows"]:
    outcome = box.script(text)
    if outcome.verdict not in verdicts.split() or "GOT" in outcome.output:
        wrong.append([text[-100:], outcome.verdict, outcome.output[-100:], outcome.errors[-300:]])
for text in given["forgers"]:
    outcome = box.asserts(text, "assert add(1, 2) == 3")
    if outcome.verdict == "done":
        wrong.append(text)
made = box.script(given.get("counted", "")).output
found = {"own root": box.has_own_root(), "kernel": box.kernel_protections(), "wrong": wrong}
if made:
    found["made"] = len(made)
print(json.dumps(found))
"""


def elsewhere(lacks, given, folder):
    """What :data:`RUN` finds where the kernel lacks some calls."""
    file = folder / "given.json"
    limits = {"seconds": 0.3, "wall_seconds": 1.5, "memory_mb": 256, "file_kb": 64, "files": 8}
    file.write_text(json.dumps({**given, "limits": {**limits, "output_kb": 64}}), "utf-8")
    command = [sys.executable, str(SUPPORT / "lacking.py"), *lacks, "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", RUN, str(file)],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    file.unlink()
    return json.loads(done.stdout)


def test_one_of_each_kind_without_namespaces(box, program, tmp_path_factory):
    """In the fast tier the refused ones run in one process there too."""
    folder = tmp_path_factory.mktemp("boxes")
    texts = [program(row.text, alone=False) for row in hostile.REFUSED]
    rows = [["done", program(EVERY.format(texts=texts) + "assert not kept, kept")]]
    rows += [
        (row.verdicts, program(row.text))
        for row in of_kind(hostile.GREEDY)
        if row.kind in ("files", "size of a file", "output")
    ]
    # Each making is counted before it is done, and the program itself is a file too.
    counted = program("while True: os.mkdir(os.urandom(8).hex()); os.write(1, b'x')")
    given = {"rows": rows, "forgers": hostile.FORGERS[:2], "counted": counted}
    found = elsewhere(["unshare"], given, folder)
    assert found == {"own root": False, "kernel": ["files", "calls"], "wrong": [], "made": 8}
    assert list(folder.iterdir()) == []
