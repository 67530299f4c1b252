"""What ``torch.compile`` needs, costs and leaves behind, wherever it is used."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

#: Graphs of one function, beyond which torch runs it uncompiled without a word: each model of a run
#: has several of its layers.
_MOST_GRAPHS = 256
#: An entry for each compilation that is under way in this process.
_under_way: list[None] = []
#: Whether it was said that kept code cannot be read.
_unreadable = False


@dataclass(frozen=True)
class Payback:
    """The estimate of whether compiling earns itself back, that every ``compile: auto`` asks.

    Attributes:
        cost: seconds that compiling takes where nothing is kept from an earlier run. Whether
            something is does not count: a run must not differ from the one before it.
        saving: seconds that each step is shorter by.
    """

    cost: float
    saving: float

    def within(self, steps: int | None) -> bool:
        """Whether so many steps save what compiling takes; None: nobody knows how many."""
        return steps is not None and steps * self.saving >= self.cost


def compiler_failure(error: Exception) -> str:
    """Type and first line of a compiler error; the rest is about generated code."""
    said = str(error).strip().splitlines()
    line = ": ".join([type(error).__name__, *said[:1]])
    folder = str(cache_folder())
    # What it wrote itself, now or in an earlier run.
    return f"{line}; delete {folder} if it is damaged" if folder in line else line


def missing_compiler(device: str) -> str | None:
    """Why nothing can be compiled for ``device``, with the remedy; None if it may work."""
    if device.startswith("cuda"):
        if importlib.util.find_spec("triton") is None:
            return "there is no triton, which torch.compile needs; install it"
        # Triton builds what launches its kernels with a compiler of C.
        named = os.environ.get("CC")
        if not any(shutil.which(name) for name in ([named] if named else ("gcc", "clang"))):
            return f"there is no C compiler {named or 'gcc'}, which triton needs; install it"
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


def prepare_compiling() -> None:
    """To be called before anything is compiled: one folder, and a status line that tells of it."""
    _use_cache_folder()
    from torch._dynamo import config
    from torch._dynamo.callback import callback_handler

    config.recompile_limit = max(config.recompile_limit, _MOST_GRAPHS)
    # The default of torch 2.13. Older ones compile conditions on sizes as C++, for which they try
    # in each process what the processor can do, by starting Python ten times.
    if hasattr(config, "enable_cpp_symbolic_shape_guards"):
        config.enable_cpp_symbolic_shape_guards = False

    log = logging.getLogger("torch._inductor.codecache")
    if _say_once not in log.filters:
        log.addFilter(_say_once)
    # A reset of the compiler forgets them.
    if _begin not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_begin)
        callback_handler.register_end_callback(_end)


def constant_floats() -> Any:
    """Within it, floats of a module, such as the epsilon of a norm, are constants of a graph.

    Otherwise they are tensors on the CPU, for which a GPU's graph may call C++: to compile that,
    torch first tries for half a minute what the processor can do.
    """
    from torch._dynamo import config

    return config.patch(specialize_float=True)


def is_compiling() -> bool:
    """Whether something is being compiled in this process, after :func:`prepare_compiling`."""
    return bool(_under_way)


def _say_once(record: logging.LogRecord) -> bool:
    """Let torch tell of kept code that it cannot read in one line, not of each file at length."""
    global _unreadable
    if "unable to load compiled graph" not in str(record.msg):
        return True
    if not _unreadable:
        _unreadable = True
        logger.warning("%s: kept code cannot be read, and is compiled again", cache_folder())
    return False


def _begin(about: Any) -> None:
    _under_way.append(None)


def _end(about: Any) -> None:
    # One may have begun before anybody asked.
    if _under_way:
        _under_way.pop()


def _use_cache_folder() -> None:
    """Let torch and Triton keep what they compile in one folder; their own variables come first.

    Without it, torch keeps it among temporary files, which do not last. A folder that cannot be
    written leaves things as they are.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # Whatever asked torch for its folder before, an import even, had it write down the default.
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") == default_cache_dir():
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
