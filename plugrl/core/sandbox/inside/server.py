"""The server: a small interpreter that forks a process for each program and never sees one.

It reads jobs from standard input and answers on standard output. A message is a length of eight
bytes, then JSON; a job is followed by its payloads. Each job gets a supervisor, a child that is
forked before anything of the job is read, so that nothing of one program is left for the next.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
from typing import NoReturn

from plugrl.core.sandbox.inside import kernel, namespaces, supervisor
from plugrl.core.sandbox.inside.program import DEVICES, read_exactly, readable

#: Modules that most programs import; importing them here does it once.
_COMMON = (
    "bisect", "collections", "copy", "functools", "heapq", "itertools", "json", "math",
    "operator", "random", "re", "string", "threading", "traceback", "typing",
)  # fmt: skip


def main() -> None:
    """Serve, in a root file system of its own if the first argument is ``own``."""
    wants_own = sys.argv[1] == "own"
    for name in _COMMON:
        importlib.import_module(name)
    if wants_own:
        try:
            namespaces.unshare()
        except (OSError, KeyError) as error:
            _refuse(f"{error}")
        _follow_child()
        try:
            namespaces.new_root([*readable(), *DEVICES], supervisor.BOXES)
            # Fails here if Python belongs to a user who is not in the namespace.
            os.stat(os.__file__)
        except OSError as error:
            _refuse(f"{error}")
    _serve(wants_own)


def _refuse(why: str) -> NoReturn:
    supervisor.send({"fault": why})
    sys.exit(1)


def _follow_child() -> None:
    """Continue in a child, the first process of its PID namespace; the parent only waits for it."""
    child = os.fork()
    if child:
        # Only the child keeps the pipes, so that the other end notices when the child ends.
        os.closerange(0, 3)
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    kernel.die_with_parent(signal.SIGKILL)


def _serve(own_root: bool) -> None:
    with contextlib.suppress(OSError, AttributeError):
        kernel.hide_memory()
    supervisor.send({"own_root": own_root})
    gc.collect()
    gc.freeze()
    while len(size := read_exactly(0, 8)) == 8:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                supervisor.main(own_root, int.from_bytes(size, "big"))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            # The supervisor failed, so the position in the stream is unknown.
            sys.exit(1)
