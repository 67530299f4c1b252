"""Programs of the tests that run where TRL and Stable-Baselines3 are installed.

What they print or write is compared with numbers of plugrl. CONTRIBUTING.md tells how the
environment is made.
"""

import os
import subprocess
from pathlib import Path

import pytest

#: Names the folder of the environment.
VARIABLE = "PLUGRL_PEERS"


def python() -> str:
    """The Python of the environment; a test that asks without one is skipped."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} names no environment with the peers (CONTRIBUTING.md, Peers)")
    return os.path.abspath(os.path.join(os.path.expanduser(folder), "bin", "python"))


def answer(program: Path, folder: Path, *words: str, given: str = "") -> str:
    """The last line that a program prints; it runs in ``folder`` and reads ``given``."""
    done = subprocess.run(
        [python(), str(program), *words],
        input=given,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return (done.stdout.splitlines() or [""])[-1]
