"""Checks for the compilers that ``torch.compile`` needs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys


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
