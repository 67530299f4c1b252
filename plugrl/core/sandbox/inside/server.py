"""Makes a process for each program: a small interpreter that is forked, and never sees one.

It reads jobs from its standard input and answers on its standard output; both carry a length of
eight bytes, then JSON, and after a job its payloads. Each job has a supervisor of its own, a child
that is forked before anything of the job is read, so that nothing of one program is left for the
next one.
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

#: What most programs import, so that it is done once.
_COMMON = (
    "bisect", "collections", "copy", "functools", "heapq", "itertools", "json", "math",
    "operator", "random", "re", "string", "threading", "traceback", "typing",
)  # fmt: skip


def main() -> None:
    """Serve in a root of its own where the first argument is ``own``, else among all files."""
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
            # Root of a namespace has no rights over files of users that are not in it.
            os.stat(os.__file__)
        except OSError as error:
            _refuse(f"{error}")
    _serve(wants_own)


def _refuse(why: str) -> NoReturn:
    supervisor.send({"fault": why})
    sys.exit(1)


def _follow_child() -> None:
    """Go on in a child, the first process of its namespace; the parent ends as it does."""
    child = os.fork()
    if child:
        # Descriptors are the child's alone: who holds the other ends sees when it is gone.
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
            # The stream is not where it should be.
            sys.exit(1)
