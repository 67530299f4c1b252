"""Boxes: what hostile programs can do, with the kernel's help and without."""

import ctypes
import os
import socket
import sys
import tempfile
import time
from dataclasses import replace

import pytest

from plugrl.core.sandbox.box import Box
from plugrl.core.sandbox.jobs import ProgramLimits

LIMITS = ProgramLimits(
    seconds=0.5, wall_seconds=20, memory_mb=256, file_kb=64, files=8, output_kb=16
)
#: For programs without end.
SHORT = replace(LIMITS, seconds=0.2)
KERNEL = Box(LIMITS)
#: As on a system whose kernel refuses nothing.
INTERPRETER = Box(LIMITS, kernel=False)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="limits are POSIX ones")


@pytest.fixture(scope="module", autouse=True)
def boxes(tmp_path_factory):
    """Where boxes are made; nothing is left there."""
    folder = tmp_path_factory.mktemp("boxes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture(params=[KERNEL, INTERPRETER], ids=["kernel", "interpreter"])
def box(request):
    return request.param


def test_this_kernel_confines_files_and_calls():
    if sys.platform != "linux":
        pytest.skip("Linux alone has them")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(444, None, 0, 1) < 0:
        pytest.skip("this kernel has no Landlock")
    assert KERNEL.script("").kernel == ("files", "calls")
    assert INTERPRETER.script("").kernel == ()


def test_a_program_reads_and_prints_and_has_a_folder(box):
    program = (
        "import json, collections, tempfile, threading\n"
        "open('note.txt', 'w').write('kept')\n"
        "with tempfile.TemporaryFile() as f: f.write(b'x')\n"
        "print(int(input()) + 1, input(), open('note.txt').read())"
    )
    outcome = box.script(program, "41\nä\n")
    assert (outcome.verdict, outcome.output) == ("done", "42 ä kept\n"), outcome.errors


def test_threads_are_possible_where_the_kernel_refuses_processes():
    program = "import threading; t = threading.Thread(target=print, args=(1,)); t.start(); t.join()"
    outcome = KERNEL.script(program)
    if "calls" in outcome.kernel:
        assert outcome.output == "1\n"


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        ("while True: pass", "time"),
        ("import os\nos.close(1); os.close(2)\nwhile True: pass", "time"),
        ("import re; re.match('(a+)+$', 'a' * 60 + 'b')", "time"),
        ("x = bytearray(1 << 30)", "memory"),
        ("x = []\nwhile True: x.append(bytes(1 << 20))", "memory"),
        ("while True: print('x' * 1000)", "output"),
        ("open('big', 'wb').write(bytes(1 << 22))", "raised"),
        ("while True:\n try: open(str(id(object())) + str(__import__('time').time()), 'w')\n"
         " except OSError: pass", "files"),
        ("raise SystemExit(3)", "raised"),
        ("1 / 0", "raised"),
        ("def f(): return f()\nf()", "raised"),
        ("syntax error", "raised"),
    ],
)  # fmt: skip
def test_verdicts(box, program, verdict):
    if verdict == "time":
        box = Box(SHORT, kernel=box is KERNEL)
    outcome = box.script(program)
    assert outcome.verdict == verdict, outcome.errors
    assert len(outcome.output) <= 16 << 10
    assert len(outcome.errors) <= 16 << 10


def test_a_program_that_sleeps_is_ended_by_the_clock():
    box = Box(ProgramLimits(seconds=1, wall_seconds=1))
    started = time.monotonic()
    assert box.script("import time; time.sleep(600)").verdict == "time"
    assert time.monotonic() - started < 300


ESCAPES = [
    "import os\nos.fork()",
    "import os\nos.forkpty()",
    "import os\nassert os.system('touch escaped') == 0",
    "import os\nos.execv('/bin/sh', ['sh', '-c', 'touch escaped'])",
    "import os\nos.posix_spawn('/bin/true', ['true'], {})",
    "import subprocess\nsubprocess.run(['/bin/true'], check=True)",
    "import multiprocessing as m\np = m.Process(target=print)\np.start(); p.join()",
    "import os\nos.kill(os.getppid(), 9)",
    "import os, signal\nos.killpg(0, 9)",
    "import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)",
    "import socket\nsocket.socket(socket.AF_UNIX).bind('s')",
    "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}', timeout=1)",
    "open('{outside}/made', 'w')",
    "open('../made', 'w')",
    "import os\nos.mkdir('{outside}/made')",
    "import os\nos.symlink('{outside}', 'link'); open('link/made', 'w')",
    "import os\nos.rename('program.py', '{outside}/made')",
    "import os\nos.remove('{outside}/secret')",
    "open('{outside}/secret', 'a')",
    "print(open('{outside}/secret').read())",
    "import os\nprint(os.listdir('{outside}'))",
    "print(open('/etc/passwd').read())",
    "print(open('/proc/self/environ').read())",
    "print(open('/proc/1/environ').read())",
    "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1 << 20, 1 << 20))",
]  # fmt: skip
#: Attempts all of them and prints the numbers of those that raised.
EVERY_ESCAPE = """
refused = []
for number, text in enumerate({programs!r}):
    try:
        exec(text, {{"__name__": "__main__"}})
    except Exception:
        refused.append(number)
print(refused)
"""


@pytest.fixture
def outside(tmp_path, boxes):
    """Makes a program of a text, and finds nothing changed or asked for after the test."""
    secret = tmp_path / "secret"
    secret.write_text("hidden", "utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        yield lambda text: text.replace("{port}", port).replace("{outside}", str(tmp_path))
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()
    assert secret.read_text("utf-8") == "hidden"
    assert os.listdir(tmp_path) == ["secret"]
    assert os.listdir(boxes) == []


def can_be_refused(program, box):
    """Root keeps its power over limits where the kernel is not asked."""
    return not ("setrlimit" in program and box is INTERPRETER and os.geteuid() == 0)


def test_escapes_are_refused(box, outside):
    programs = [outside(text) for text in ESCAPES if can_be_refused(text, box)]
    outcome = box.script(EVERY_ESCAPE.format(programs=programs))
    assert outcome.output == f"{list(range(len(programs)))}\n", outcome
    assert outcome.verdict == "done"


@pytest.mark.integration
@pytest.mark.parametrize("program", ESCAPES)
def test_each_escape_alone_is_refused(box, program, outside):
    if not can_be_refused(program, box):
        pytest.skip("root keeps its power over limits where the kernel is not asked")
    outcome = box.script(outside(program))
    assert outcome.verdict == "raised", outcome
    assert "hidden" not in outcome.output


def test_a_fork_bomb_in_native_code_starts_nothing():
    program = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "made = [libc.fork() for _ in range(100)]\n"
        "libc.kill(-1, 0)\n"
        "print(set(made))"
    )
    outcome = KERNEL.script(program)
    if "calls" in outcome.kernel:
        assert (outcome.verdict, outcome.output) == ("done", "{-1}\n")


def test_the_environment_and_descriptors_of_this_process_are_not_handed_on(monkeypatch):
    monkeypatch.setenv("PLUGRL_SECRET", "hidden")
    outcome = KERNEL.script("import os; print(dict(os.environ), os.getcwd())")
    assert "hidden" not in outcome.output
    kept = open(__file__, encoding="utf-8")  # noqa: SIM115
    os.set_inheritable(kept.fileno(), True)
    program = f"import os\nprint(os.fstat({kept.fileno()}).st_size)"
    assert KERNEL.script(program).verdict == "raised" or kept.fileno() < 8
    kept.close()


def test_tests_pass_only_when_they_came_to_their_end():
    program = "def f(x): return x + 1"
    assert KERNEL.asserts(program, "assert f(1) == 2").verdict == "done"
    assert KERNEL.asserts(program, "assert f(1) == 3").verdict == "raised"
    assert KERNEL.asserts(program, "assert g(1) == 3").verdict == "raised"
    for leave in ("import os; os._exit(0)", "raise SystemExit", "import sys; sys.exit(0)"):
        assert KERNEL.asserts(leave, "assert f(1) == 2").verdict == "raised"
    wrong = "def f(x):\n import os; os._exit(0)"
    assert KERNEL.asserts(wrong, "assert f(1) == 2").verdict == "raised"


def test_functions_are_called_and_their_results_come_back():
    assert KERNEL.call("def f(x): return (x, {3, 1})", "f", [[1]]).value == [[1], [1, 3]]
    method = "class Solution:\n def f(self, x): return {'a': x}"
    assert KERNEL.call(method, "f", ["b"]).value == {"a": "b"}
    assert KERNEL.call("x = 1", "f", []).verdict == "raised"
    assert KERNEL.call("def f(): return f", "f", []).verdict == "raised"
    large = KERNEL.call("def f(x): return len(x)", "f", ["x" * 300_000])
    assert large.value == 300_000


def test_equal_programs_print_equal_sets():
    program = "print({'a', 'b', 'c', 'd', 'e'})"
    assert KERNEL.script(program).output == KERNEL.script(program).output


def test_installed_packages_are_there_only_when_asked_for():
    program = "import numpy; print(numpy.arange(3).sum())"
    assert KERNEL.script(program).verdict == "raised"
    box = Box(ProgramLimits(seconds=5, packages=True))
    outcome = box.script(program)
    assert outcome.output == "3\n", outcome.errors
