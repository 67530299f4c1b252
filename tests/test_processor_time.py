"""The fast tier is fast: what it costs in all, and that no test of it costs more than a second."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processor_time import LIMIT

ROOT = Path(__file__).parents[1]


@pytest.mark.timing
@pytest.mark.timeout(1200)
def test_the_fast_tier_takes_three_minutes_on_two_cores_and_no_test_a_second(tmp_path):
    file = tmp_path / "times.json"
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal"]
    begun = time.monotonic()
    done = subprocess.run(
        [*command, "--processor-times", file], cwd=ROOT, capture_output=True, text=True
    )
    took = time.monotonic() - begun
    assert done.returncode == 0, done.stdout[-5000:]
    above = {name: s for name, s in json.loads(file.read_text()).items() if s > LIMIT}
    assert not above
    assert took <= 180
