"""Lets all processes of a session of pytest share the servers of ``forking``.

What these import takes seconds of processor time, and is the same for each worker of the session.
"""

import os
import shutil
import tempfile
import threading
from pathlib import Path

import forking
import pytest

_LIFELINE = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    if forking.FOLDER in os.environ:  # That of the session.
        return
    folder = os.environ[forking.FOLDER] = tempfile.mkdtemp(prefix="forking-")
    lifeline = Path(folder, forking.LIFELINE)
    os.mkfifo(lifeline)
    # For reading too, so that it opens before anybody reads.
    config.stash[_LIFELINE] = os.open(lifeline, os.O_RDWR)


def pytest_collection_finish(session) -> None:
    """Have the server import while the first tests run: later, all workers would wait for it."""
    if len(session.items) > forking.MANY and not session.config.option.collectonly:
        threading.Thread(target=forking.server, daemon=True).start()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _LIFELINE in config.stash:
        os.close(config.stash[_LIFELINE])
        shutil.rmtree(os.environ.pop(forking.FOLDER), ignore_errors=True)
