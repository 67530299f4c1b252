"""Checks for the compilers that ``torch.compile`` needs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path


def compiler_failure(error: Exception) -> str:
    """Type and first line of a compiler error; the rest is about generated code."""
    said = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *said[:1]])


def missing_compiler(device: str) -> str | None:
    """Why nothing can be compiled for ``device``, with the remedy; None if it may work."""
    if device.startswith("cuda"):
        if importlib.util.find_spec("triton") is None:
            return "there is no triton, which torch.compile needs; install it"
        return None
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler {compiler}, which torch.compile needs; install it"
    return None


def cache_folder() -> Path:
    """Where compiled code is kept: ``PLUGRL_COMPILE_CACHE``, or a folder of the user's cache."""
    own = os.environ.get("PLUGRL_COMPILE_CACHE")
    if own:
        return Path(os.path.expanduser(own))
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(home)) / "plugrl" / "compiled"


def use_cache_folder() -> None:
    """Let torch and Triton keep what they compile in one folder; their own variables come first.

    Without it, torch keeps it among temporary files, which do not last. Call it before anything is
    compiled. A folder that cannot be written leaves things as they are.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
