"""Boxes: what hostile programs can do, with the kernel's help and without."""

import ctypes
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_until

from plugrl.core.errors import RunError
from plugrl.core.sandbox import servers
from plugrl.core.sandbox.box import Box
from plugrl.core.sandbox.inside import box_folder
from plugrl.core.sandbox.inside.assertions import fault_of, names_of_program
from plugrl.core.sandbox.inside.value_codec import parse_json
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
    box = Box(ProgramLimits(seconds=1, wall_seconds=0.2))
    started = time.monotonic()
    assert box.script("import time; time.sleep(600)").verdict == "time"
    assert time.monotonic() - started < 300


#: What the interpreter refuses by itself too.
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
    "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)",
    "import socket\nsocket.socket(socket.AF_UNIX).bind('s')",
    "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}', timeout=1)",
    "open('{outside}/made', 'w')",
    "open('../made', 'w')",
    "import os\nos.mkdir('{outside}/made')",
    "import os\nos.symlink('{outside}', 'link'); open('link/made', 'w')",
    "import os\nos.rename('program.py', '{outside}/made')",
    "import os\nos.remove('{outside}/secret')",
    "import os\nos.chmod('{outside}/secret', 0)",
    "import os\nos.utime('{outside}/secret', (1, 1))",
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


@pytest.mark.parametrize(
    "written",
    [
        "b'[' * 9000",
        "b'[' * 999 + b']' * 999",
        "b'9' * 9999",
        "b'\\xff'",
        'b\'{"a":1,"a":1}\'',
        "b''",
    ],
)
def test_what_is_written_in_the_place_of_a_result_is_a_failure_of_the_program(written):
    outcome = KERNEL.call(f"import os\nos.write(3, {written})\nos._exit(0)", "f", [])
    assert (outcome.verdict, outcome.value) == ("raised", None)


def test_a_program_that_is_too_long_is_a_failure_and_no_fault():
    outcome = KERNEL.script("x = 1\n" * (20 << 10))
    assert (outcome.verdict, outcome.errors) == ("files", "the program has 122880 of 65536 bytes")


def test_equal_programs_print_equal_sets():
    program = "print({'a', 'b', 'c', 'd', 'e'})"
    assert KERNEL.script(program).output == KERNEL.script(program).output


def test_installed_packages_are_there_only_when_asked_for():
    program = "import numpy; print(numpy.arange(3).sum())"
    assert KERNEL.script(program).verdict == "raised"
    box = Box(ProgramLimits(seconds=5, packages=True))
    outcome = box.script(program)
    assert outcome.output == "3\n", outcome.errors
    more = (
        "import numpy as np; a = np.eye(200); print((a @ a).sum(), np.linalg.svd(a)[1][0])\n"
        "np.save('a.npy', a[:9, :9]); print(np.load('a.npy', mmap_mode='r').sum())"
    )
    outcome = box.script(more)
    assert (outcome.output, outcome.refused) == ("200.0 1.0\n9.0\n", ()), outcome.errors


def test_numbers_are_drawn_anew_in_each_program():
    program = "import random; print(random.random())"
    assert KERNEL.script(program).output != KERNEL.script(program).output


def test_a_program_has_its_own_descriptors_alone():
    program = (
        "import os\nfound = []\nfor n in range(64):\n"
        " try: os.fstat(n); found.append(n)\n except OSError: pass\nprint(found)"
    )
    # Standard input, output and errors, and where a result is written.
    assert KERNEL.script(program).output == "[0, 1, 2, 3]\n"


def test_what_is_read_is_a_file():
    program = "import os; print(os.read(0, os.fstat(0).st_size).decode())"
    assert KERNEL.script(program, "1 2").output == "1 2\n"


def test_what_solutions_use_works():
    """Modules of the standard library that make threads, pairs of sockets, copies and locks."""
    program = """
import asyncio, concurrent.futures, os, shutil, signal, sqlite3, tempfile, threading, time
async def wait(n): await asyncio.sleep(0); return n
print(asyncio.run(wait(1)))
with concurrent.futures.ThreadPoolExecutor(3) as e: print(sum(e.map(lambda n: n * n, range(9))))
open('a', 'w').write('x')
shutil.copyfile('a', 'b'); os.rename('b', 'c'); os.makedirs('d/e'); shutil.rmtree('d')
db = sqlite3.connect('s.db'); db.execute('create table t(a)'); db.commit(); db.close()
with tempfile.TemporaryDirectory() as d: pass
signal.signal(signal.SIGALRM, lambda *a: print('late')); signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
signal.signal(signal.SIGUSR1, lambda *a: print('own')); os.kill(os.getpid(), signal.SIGUSR1)
threading.stack_size(1 << 26)
import sys; sys.setrecursionlimit(10 ** 6)
def deep(n): return n and 1 + deep(n - 1)
t = threading.Thread(target=lambda: print(deep(20000))); t.start(); t.join()
"""
    outcome = Box(replace(LIMITS, seconds=5, memory_mb=512)).script(program)
    assert outcome.output == "1\n204\nlate\nown\n20000\n", outcome
    assert outcome.refused == ()


def test_files_outside_keep_their_modes_and_ones_own_can_be_changed():
    program = "import os, shutil\nopen('a', 'w'); shutil.copy2('a', 'b'); os.chmod('a', 0o600)"
    if KERNEL.has_own_root():
        assert KERNEL.script(program).verdict == "done"


def server_ids():
    return [server.pid for server in servers.running_servers()]


def test_servers_that_were_killed_are_replaced():
    with ThreadPoolExecutor(3) as together:
        outcomes = together.map(KERNEL.script, ["import time; time.sleep(0.3); print(1)"] * 3)
        assert [outcome.output for outcome in outcomes] == ["1\n"] * 3
    assert len(server_ids()) >= 3
    for process in server_ids():
        os.kill(process, signal.SIGKILL)
    assert KERNEL.script("print(2)").output == "2\n"


def test_a_server_that_is_killed_each_time_costs_the_program_its_verdict():
    words = [sys.executable, "-c", DYING]
    dying = servers.Servers(words, own_root=False)
    with pytest.raises(servers.ServerGoneError):
        dying.ask({"limits": {"wall_seconds": 1}}, [])
    box = Box(LIMITS, wrap=lambda _: words)
    assert box.script("print(1)").verdict == "killed"


#: Says that it has started, and ends when it is asked.
DYING = (
    "import os; os.write(1, (2).to_bytes(8, 'big') + b'{}'); os.read(0, 9)"
)  # fmt: skip


def test_a_command_that_cannot_be_started_is_named():
    for words, says in (
        (["no-such-command"], "No such file"),
        ([sys.executable, "-c", "raise SystemExit('no room')"], "no room"),
    ):
        with pytest.raises(RunError, match=says):
            Box(LIMITS, wrap=lambda _, words=words: words).script("")


def test_a_command_is_looked_up_where_the_caller_looks(tmp_path, monkeypatch):
    # A program is told no PATH, so that a server that is started by a name alone has none either.
    command = tmp_path / "run-there"
    command.write_text('#!/bin/sh\nexec "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    box = Box(LIMITS, wrap=lambda words: ["run-there", *words])
    outcome = box.script("import os; print(os.environ.get('PATH', ''))")
    assert (outcome.verdict, outcome.output) == ("done", "\n"), outcome.errors


def test_a_process_that_was_forked_has_servers_of_its_own():
    KERNEL.script("")
    ours = server_ids()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fine = KERNEL.script("print(1)").output == "1\n" and not set(server_ids()) & set(ours)
            servers.close_servers()
            code = 0 if fine else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert KERNEL.script("print(2)").output == "2\n"
    assert server_ids() == ours


def test_a_folder_for_temporary_files_that_is_gone_is_told_as_any_fault(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    none = servers.Servers(servers.server_command(packages=False), own_root=False)
    with pytest.raises(RunError, match="no process can be started for programs: .*gone"):
        none.ask({}, [])


@pytest.mark.integration
@pytest.mark.parametrize("kernel", [True, False])
def test_nothing_is_left_when_this_process_is_killed(tmp_path, kernel):
    code = (
        "import sys, threading\nfrom plugrl.core.sandbox import box, servers\n"
        "from plugrl.core.sandbox.jobs import ProgramLimits\n"
        f"b = box.Box(ProgramLimits(seconds=500, wall_seconds=500), kernel={kernel})\n"
        "b.script('')\nprint(*[s.pid for s in servers.running_servers()], flush=True)\n"
        "b.script('import os\\nos.mkdir(str(os.getpid()))\\nwhile True: pass')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    ids = [int(word) for word in process.stdout.readline().split()]
    if not kernel:
        # In no root of its own: where the test can see it.
        (made,) = wait_until(lambda: [*tmp_path.glob("*/[0-9]*")])
        ids.append(int(made.name))
    process.kill()
    process.wait()
    process.stdout.close()
    assert ids
    wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in ids))
    wait_until(lambda: list(tmp_path.iterdir()) == [])


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("def f(x): return x", "assert f(1) == 1 and f('a') == 'a' and f(None) is None"),
        ("def f(x): return x", "assert f((1, [2])) == (1, [2]) and f({1, 2}) == {2, 1}"),
        ("def f(x): return x", "assert f({1: (2,)}) == {1: (2,)} and f(b'a') == b'a'"),
        ("def f(x): return x", "assert f(1j) == 1j and f(2 ** 99) == 2 ** 99"),
        ("def f(x): return x", "import math\nassert math.isnan(f(math.nan)) and f(1e300) == 1e300"),
        ("def f(x): return x / 3", "assert abs(f(1) - 0.3333) < 1e-3"),
        ("def f(x): return x / 3", "assert math.isclose(f(1), 0.3333, rel_tol=1e-3)"),
        ("def f(x): return x", "def check(candidate):\n assert candidate(1) == 1\ncheck(f)"),
        ("def f(x): return x", "for n in range(5):\n assert f(n) == n"),
        ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(x): x.sort()", "x = [2, 1]\nassert f(x) is None\nassert x == [1, 2]"),
        ("def f(x): raise ValueError('a')", "try:\n f(1)\n assert False\nexcept ValueError: pass"),
        ("def g(x): return x + 1\ndef f(h, x): return h(h(x))", "assert f(g, 1) == 3"),
        ("class Solution:\n def f(self, x): return x", "assert Solution().f(1) == 1"),
        ("MOD = 7", "assert MOD == 7"),
        ("def sum(a, b): return a + b", "assert sum(10, 15) == 25"),
        ("def f(x): return x", "assert sum([f(1), f(2)]) == 3 and Counter(f('aa')) == {'a': 2}"),
        ("import collections as c\ndef f(x): return c.Counter(x)", "assert f('a') == {'a': 1}"),
        ("from fractions import Fraction as F\ndef f(): return F(1, 3)", "assert f() * 3 == 1"),
        ("import datetime as d\ndef f(): return d.date(2020, 1, 2)", "assert f().year == 2020"),
    ],
)  # fmt: skip
def test_assertions_of_every_form_hold(program, code):
    outcome = KERNEL.asserts(program, code)
    assert outcome.verdict == "done", outcome.errors
    # They run: the same code with a program that has nothing of it fails.
    assert KERNEL.asserts("x = 1", code).verdict == "raised"


@pytest.mark.parametrize(
    "program",
    [
        "def f(x): return (x,)",
        "def f(x): return [x, 1]",
        "def f(x): return '[1]'",
        "1 / 0",
        "f = 1",
    ],
)
def test_assertions_fail_for_values_of_other_types(program):
    assert KERNEL.asserts(program, "assert f(1) == [1]").verdict == "raised"


def test_a_program_that_fails_passes_no_tests():
    assert KERNEL.asserts("def f(): return 1\nraise ValueError", "assert True").verdict == "raised"


def test_a_program_ends_no_loop_of_its_tests():
    program = "def f(x): raise StopIteration"
    for code in ("assert all(map(f, [1, 2]))", "for x in map(f, [1]): assert False"):
        assert KERNEL.asserts(program, code).verdict == "raised"


def test_a_program_recurses_as_deep_as_in_an_interpreter_of_its_own():
    program = "def f(n): return n and 1 + f(n - 1)\nprint(f(990))\nprint(f(1100))"
    outcome = KERNEL.script(program)
    assert (outcome.output, outcome.verdict) == ("990\n", "raised")


def test_trusted_assertions_use_objects_of_the_program():
    program = "class Stack(list):\n def push(self, x): self.append(x)"
    code = "s = Stack(); s.push(1); assert s.pop() == 1"
    assert KERNEL.asserts(program, code, trusted=True).verdict == "done"
    assert KERNEL.asserts(program, code).verdict == "raised"


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("assert f(g(1)) == 2", ["f", "g"]),
        ("import math\nassert math.floor(f(1.5)) == 1", ["f"]),
        ("def check(c):\n x = [i for i in range(3)]\n assert c(x) == len(x)\ncheck(f)", ["f"]),
        ("assert sum(10, 15) == 25", ["sum"]),
        ("assert max(f(1), 2) == 2", ["f"]),
        ("assert math.isclose(f(1), 1)", ["f"]),
        ("assert calendar(1) == 1", ["calendar"]),
    ],
)
def test_what_test_code_takes_from_a_program(code, names):
    assert names_of_program(code) == names


def test_classes_of_the_program_are_told_from_functions():
    assert fault_of("assert f(1) == 1") is None
    assert fault_of("assert Solution().f(1) == MAX_SIZE") is None
    assert "of Stack, a class" in fault_of("s = Stack()\nassert s.pop() == 1")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("assert f(lambda x: x, 1) == 1", True),
        ("assert f(1, key=lambda x: x) == 1", True),
        ("def own(x): return x\nassert f(own, 1) == 1", True),
        ("def check(candidate): assert candidate(1) == 1\ncheck(f)", False),
        ("assert f(g, 1) == 1", False),
        ("assert sorted(f(1), key=lambda x: -x) == [1]", False),
    ],
)
def test_functions_of_tests_are_not_handed_to_a_program(code, told):
    """No program could be right: it is a fault of the test, told before any is judged."""
    assert fault_of(code) == ("hands f a function of its own" if told else None)


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("[1, null]", True),
        ('{"a": 1, "a": 2}', False),
        ("[" * 700 + "]" * 700, False),
        ("[" * 200 + "]" * 200, True),
        ("1" * 5000, False),
        ("nothing", False),
        ("", False),
        ('"\\ud800"', True),
        ('"' + "[" * 5000 + '"', True),
        ("NaN", True),
    ],
)
def test_what_programs_write_is_read_with_bounds(text, fine):
    if fine:
        parse_json(text)
    else:
        with pytest.raises(ValueError):
            parse_json(text)


@pytest.mark.parametrize("text", ['"\\', '"', '["\\"', "[]", '"]"['])
def test_what_programs_write_is_looked_through_once(text):
    """Its time is that of the thread which asks, without what other tests have left to collect."""
    gc.disable()
    try:
        before = time.thread_time()
        with pytest.raises(ValueError):
            parse_json("[" * 600 + text * (1 << 17))
        assert time.thread_time() - before < 1
    finally:
        gc.enable()


def test_folders_are_measured_and_removed_however_deep(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.mkdir("closed", 0o300, dir_fd=here)
    os.mkdir("fixed", 0o700, dir_fd=here)
    os.mkdir("fixed/inner", 0o700, dir_fd=here)
    os.chmod("fixed", 0o500, dir_fd=here)
    os.close(here)
    assert box_folder.measure(str(top), 1000)[0] == 64
    assert box_folder.measure(str(top), 10)[0] <= 12
    box_folder.remove(str(top))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_memory_stays_as_it_is_over_many_programs():
    programs = [
        "print('y' * 10000)",
        "x = [0] * 100000",
        "raise ValueError",
        "import os; os.mkdir('d')",
    ]
    sizes = []
    for _ in range(4):
        for number in range(100):
            KERNEL.script(programs[number % 4], "1 2")
        sizes.append([resident("self"), *map(resident, server_ids())])
    first, last = sizes[1], sizes[-1]
    assert len(first) == len(last)
    assert all(after - before < 512 for before, after in zip(first, last, strict=True)), sizes


def resident(process):
    """KiB of memory that a process has."""
    lines = Path(f"/proc/{process}/status").read_text("utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


@pytest.mark.timing
def test_a_hundred_small_programs_a_second_on_two_cores():
    box = Box(ProgramLimits())
    count = 400
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(box.script, ["pass"] * 10))
        before, started = processor_time(), time.monotonic()
        found = list(
            threads.map(box.script, ["print(int(input()) + 1)"] * count, map(str, range(count)))
        )
        wall = time.monotonic() - started
    assert [outcome.output for outcome in found] == [f"{n + 1}\n" for n in range(count)]
    servers.close_servers()
    # Of two cores, what all processes took, of which each is waited for by now.
    taken = processor_time() - before
    assert count / taken > 50, f"{1000 * taken / count:.1f} ms of processor time a program"
    assert count / wall > 100, f"{count / wall:.0f} programs a second"


def processor_time():
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
