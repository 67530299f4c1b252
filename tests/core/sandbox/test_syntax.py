"""Python's parser, asked by several threads at a time."""

import re
import subprocess
import sys
from pathlib import Path

import plugrl

THREADS = """
import gc, sys, threading, time
from plugrl.core.sandbox.inside.syntax import parse_python

class Finalized:
    def __del__(self):
        for _ in range(50): pass

def parse(depth):
    if depth: return parse(depth - 1)
    end = time.process_time() + 0.5
    while time.process_time() < end and not faults:
        # Collected while nodes are made, so that another thread goes on meanwhile.
        for _ in range(20):
            one = Finalized()
            one.itself = one
        try:
            parse_python("def f(a):\\n    while a:\\n        a = [b for b in range(a)][0]\\n" * 3)
        except SystemError as error:
            faults.append(error)

faults = []
gc.set_threshold(30)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=parse, args=(depth,)) for depth in (3, 12, 30)]
for each in threads: each.start()
for each in threads: each.join()
assert not faults, faults
"""


def test_threads_that_parse_at_the_same_time_do_not_disturb_one_another():
    subprocess.run([sys.executable, "-c", THREADS], check=True, timeout=60)


def test_nobody_parses_otherwise():
    root = Path(plugrl.__file__).parent
    calls = [p.name for p in root.rglob("*.py") if re.search(r"\bast\.parse\(", p.read_text())]
    assert calls == ["syntax.py"]
