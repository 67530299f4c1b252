"""Agent frameworks that tests start against the endpoint, installed below a folder of their own.

They want versions of packages of their own, so that they are no part of the extra ``test``: ``pip``
installs them once below the folder that ``PLUGRL_TEST_SERVERS`` names. Tests of them have the
marker ``server``.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: The folder below which what tests need is installed.
VARIABLE = "PLUGRL_TEST_SERVERS"
#: What is installed together.
PACKAGES = {
    "frameworks": (
        "openai-agents==0.24.0",
        "pydantic-ai-slim[openai]==2.68.0",
        "langchain-openai==1.7.4",
        "langchain==1.5.2",
        "smolagents[openai]==1.26.0",
        "mcp==2.3.0",
    ),
    # It starts its programs by uv, which fetches what they need.
    "verifiers": ("verifiers==0.4.0", "uv"),
}


def installed(name: str = "frameworks") -> Path:
    """A folder for ``PYTHONPATH`` that has the packages, filled if it is not there.

    Raises:
        UsageError: no folder is named for it.
        AssertionError: pip failed, for example without a network.
    """
    if VARIABLE not in os.environ:
        raise pytest.UsageError(
            f"tests of the marker server install clients below the folder that {VARIABLE} names, "
            "and it is not set"
        )
    folder = Path(os.environ[VARIABLE]).absolute() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{name}.lock"), "w", encoding="utf-8") as lock:
        # Several test processes may want it at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".ready").exists():
            pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            done = subprocess.run(
                [*pip, "--target", folder, *PACKAGES[name]], check=False, capture_output=True
            )
            assert done.returncode == 0, done.stderr.decode()[-2000:]
            (folder / ".ready").touch()
    return folder
