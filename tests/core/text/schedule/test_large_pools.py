"""Pools, checkpoints and batches of many long trajectories grow with them, and no faster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from machine_memory import kilobytes

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "large_pool.py"
#: Kilobytes that 100,000 trajectories need.
NEEDED = 18 * 2**20


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "count",
    [
        32_000,
        pytest.param(
            100_000,
            marks=pytest.mark.skipif(
                kilobytes("MemAvailable") < NEEDED, reason="needs 18 GiB of memory"
            ),
        ),
    ],
)
def test_time_and_memory_are_linear(count):
    counts = [str(count // part) for part in (4, 2, 1)]
    command = [sys.executable, str(SCRIPT), "--counts", *counts]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    least, middle, most = json.loads(done.stdout)["rows"]
    for part in least["processor_seconds"]:
        own = [row["processor_seconds"][part] for row in (least, middle, most)]
        # Four times as many take four times as long; the square of it would be sixteen.
        assert own[2] < 7 * own[0], part
        assert own[2] < 3.5 * own[1], part
    for part in least["peak_megabytes"]:
        own = [row["peak_megabytes"][part] for row in (least, middle, most)]
        assert own[2] < 4.4 * own[0], part
    # A checkpoint takes a part of what waits, and no second copy.
    assert most["peak_megabytes"]["save"] < 1.3 * most["peak_megabytes"]["pool"]
