"""The contract of sandboxes.

Run it with ``--plugrl-sandbox NAME``, or subclass :class:`SandboxContract` with an attribute
``plugrl_sandbox``. A sandbox gives its section as ``conformance["config"]``.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from plugrl.core.sandbox.jobs import ProgramLimits
from plugrl.core.sandboxes import Programs, Sandbox
from plugrl.testing.contract import ComponentContract

LIMITS = ProgramLimits(
    seconds=0.5, wall_seconds=60, memory_mb=256, file_kb=64, files=8, output_kb=16
)
#: Programs that end in different ways, with the accepted verdicts.
ENDS = {
    "pass": ("done",),
    "raise SystemExit(3)": ("raised",),
    "no python": ("raised",),
    "import os; os.abort()": ("killed", "raised"),
    # Far above the limit, and no endless loop: a sandbox without limits must not hold up the kit.
    "import time\nwhile time.process_time() < 2: pass": ("time",),
    "x = bytearray(1 << 30)": ("memory",),
    "for _ in range(10_000): print('x' * 1000)": ("output",),
    "import sys\nfor _ in range(10_000): sys.stderr.write('x' * 1000)": ("done", "output"),
    "for i in range(1000): open(str(i), 'w')": ("files", "raised"),
    "for i in range(1000): __import__('os').mkdir(str(i))": ("files", "raised"),
}
#: Programs whose function ``add`` does not add but that try to pass anyway.
CHEATS = (
    "class A:\n def __eq__(self, other): return True\ndef add(a, b): return A()",
    "import os; os._exit(0)",
    "def add(a, b):\n import os; os._exit(0)",
    "import os\nfor f in range(3, 30):\n try: os.write(f, b'true')\n except OSError: pass\n"
    "os._exit(0)",
    "import os\nfor f in range(3, 30):\n try: os.write(f, b'{no json')\n except OSError: pass",
    "def add(a, b): return 10 ** 100000",
    "def add(a, b): return add",
)


class SandboxContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_sandbox``."""

    kind = "sandbox"

    @pytest.fixture
    def programs(self, make: Callable[[], Sandbox]) -> Programs:
        sandbox = make()
        fault = sandbox.fault()
        if fault is not None:
            pytest.skip(fault)
        return Programs(sandbox, LIMITS)

    def test_a_script_reads_and_prints(self, programs: Programs) -> None:
        outcome = programs.script("print(int(input()) + 1, input())", "41\nä\n")
        assert (outcome.verdict, outcome.output) == ("done", "42 ä\n"), outcome.errors

    def test_a_function_is_called_and_gives_data(self, programs: Programs) -> None:
        program = "def f(x, y): return {'sum': x + y, 'pair': (x, None), 'yes': True}"
        outcome = programs.call(program, "f", [1, 2.5])
        assert outcome.verdict == "done", outcome.errors
        assert outcome.value == {"sum": 3.5, "pair": [1, None], "yes": True}
        assert programs.call(program, "g", []).verdict == "raised"

    def test_assertions_pass_only_when_they_hold(self, programs: Programs) -> None:
        program = "def add(a, b): return a + b"
        assert programs.asserts(program, "assert add(1, 2) == 3").verdict == "done"
        assert programs.asserts(program, "assert add(1, 2) == 4").verdict == "raised"

    @pytest.mark.parametrize("program", ENDS)
    def test_every_end_has_its_verdict(self, programs: Programs, program: str) -> None:
        outcome = programs.script(program)
        assert outcome.verdict in ENDS[program], outcome
        assert len(outcome.output) <= LIMITS.output_kb << 10
        assert len(outcome.errors) <= LIMITS.output_kb << 10

    def test_a_program_that_sleeps_is_ended_too(self, programs: Programs) -> None:
        programs.limits = replace(LIMITS, wall_seconds=1)
        outcome = programs.script("import time; time.sleep(3); print('late')")
        assert (outcome.verdict, outcome.output) == ("time", "")

    def test_results_are_as_bounded_as_what_is_printed(self, programs: Programs) -> None:
        outcome = programs.call("def f(): return 'x' * (1 << 20)", "f", [])
        assert (outcome.verdict, outcome.value) == ("output", None)

    @pytest.mark.parametrize("program", CHEATS)
    def test_no_program_chooses_its_verdict(self, programs: Programs, program: str) -> None:
        outcome = programs.call(program, "add", [1, 2])
        assert outcome.verdict != "done" or outcome.value != 3
        assert programs.asserts(program, "assert add(1, 2) == 3").verdict != "done"

    @pytest.fixture
    def listener(self) -> Iterator[socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.05)
            yield server

    def test_a_program_reaches_no_other(
        self, programs: Programs, listener: socket.socket, tmp_path: Any
    ) -> None:
        (tmp_path / "secret").write_text("hidden", encoding="utf-8")
        port = listener.getsockname()[1]
        for text in (
            f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)",
            f"print(open({str(tmp_path / 'secret')!r}).read())",
            f"open({str(tmp_path / 'made')!r}, 'w')",
            "import os; os.kill(os.getppid(), 9)",
        ):
            outcome = programs.script(text)
            assert outcome.verdict == "raised", outcome
            assert "hidden" not in outcome.output
        with pytest.raises(TimeoutError):
            listener.accept()
        assert [path.name for path in tmp_path.iterdir()] == ["secret"]

    def test_a_program_is_told_no_variables_of_the_caller(self, programs: Programs) -> None:
        # pytest sets one, whenever the process of a sandbox began.
        assert "PYTEST_CURRENT_TEST" in os.environ
        assert "PYTEST" not in programs.script("import os; print(*os.environ)").output

    def test_programs_leave_nothing_for_the_next_one(self, programs: Programs) -> None:
        programs.script("import os, builtins; builtins.left = 1; open('left', 'w')")
        text = "import os, builtins; print(hasattr(builtins, 'left'), os.path.exists('left'))"
        assert programs.script(text).output == "False False\n"

    def test_threads_share_it(self, programs: Programs) -> None:
        barrier = threading.Barrier(3)

        def run(number: int) -> str:
            barrier.wait()
            return programs.script("print(int(input()) + 1)", str(number)).output

        with ThreadPoolExecutor(3) as threads:
            assert list(threads.map(run, range(3))) == ["1\n", "2\n", "3\n"]


class TestSandbox(SandboxContract):
    """The contract for every ``--plugrl-sandbox``."""

    __test__ = True
