"""Gives a session of tests a home of its own: nothing is found in the user's, nothing left there.

Libraries keep caches, logs and settings below the home (matplotlib, wandb, pip, Hugging Face), and
read accounts from it. Workers and processes that tests start inherit it.
"""

import os
import shutil
import site
import tempfile
from pathlib import Path

import pytest

#: Where programs look instead of the home.
ELSEWHERE = (
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "HF_HOME", "HF_TOKEN",
    "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN_PATH",
    "MPLCONFIGDIR", "NETRC",
)  # fmt: skip
_FOLDER = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # That of the session is in its environment.
        return
    for name in ELSEWHERE:
        os.environ.pop(name, None)
    # Packages of the user stay importable, and the settings of pip are those of the user, for the
    # tests that install what they need below a folder of the caller.
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())
    settings = Path.home() / ".config" / "pip" / "pip.conf"
    if settings.exists():
        os.environ.setdefault("PIP_CONFIG_FILE", str(settings))
    # Nothing is asked of the hub but where a test starts one.
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_HUB_DISABLE_XET"] = "1"
    config.stash[_FOLDER] = os.environ["HOME"] = tempfile.mkdtemp(prefix="plugrl-home-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _FOLDER in config.stash:
        shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)
