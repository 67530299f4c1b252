"""The end of a run at once: what its log holds."""

import os
import subprocess
import sys

from plugrl.core.run.records.records import read_status

HUNG = """
import sys
from pathlib import Path
from plugrl.core.run.shutdown import Shutdown
from plugrl.core.run.records.records import Status

def hung():
    folder = Path(sys.argv[1])
    Shutdown(folder, None, Status(folder), {}).on_deadline("rollout", 4.0, 2)

hung()
"""


def test_a_phase_that_hangs_is_told_and_then_the_stacks_of_all_threads(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", HUNG, os.fspath(tmp_path)], capture_output=True, text=True
    )
    assert ended.returncode == 1
    said = (
        "error: phase 'rollout' after step 2 passed its deadline of 4 s; the stacks below say "
        "where it hangs (settings.deadlines.rollout allows more)"
    )
    first, *stacks = (tmp_path / "log.txt").read_text("utf-8").splitlines()
    assert first == said
    assert stacks[0].startswith(("Thread ", "Current thread "))
    assert any(line.endswith("in hung") for line in stacks)
    assert ended.stderr.splitlines()[0] == said
    assert read_status(tmp_path)["state"] == "failed"
    assert read_status(tmp_path)["error"] == said.removeprefix("error: ")
