"""The lock that gives one process a run folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import weakref
from pathlib import Path

from plugrl.core.errors import UsageError
from plugrl.core.plugins.user_code.working_folder import display_path
from plugrl.core.run.atomic_writes import disk_error

LOCK_FILE = "lock"
#: A process that only lists runs holds a shared lock for microseconds; wait that out.
_PATIENCE = 0.25

_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """An exclusive ``flock`` on ``<folder>/lock``; the kernel drops it when the process dies.

    Raises:
        UsageError: another process owns the run, or the folder is not writable.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK_FILE
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise disk_error(error, "take the lock of the run", folder) from error
        try:
            self._acquire(folder)
            os.ftruncate(self._descriptor, 0)
            owner = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
            os.pwrite(self._descriptor, owner.encode() + b"\n", 0)
        except OSError as error:
            os.close(self._descriptor)
            raise disk_error(error, "take the lock of the run", folder) from error
        except UsageError:
            os.close(self._descriptor)
            raise
        _held.add(self)

    def _acquire(self, folder: Path) -> None:
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                if time.monotonic() >= give_up:
                    raise UsageError(
                        f"the run {display_path(folder)} is in use by {owner_of(folder)}; "
                        "wait until it ends or stop it first"
                    ) from None
                time.sleep(0.01)

    def release(self) -> None:
        """Release the lock; calling it again has no effect."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        _held.discard(self)


def _forget_after_fork() -> None:
    # A forked worker inherits the lock and would hold it after its owner was killed.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_after_fork)


def owner_of(folder: Path) -> str:
    """The process that the lock file of ``folder`` names."""
    try:
        owner = json.loads((folder / LOCK_FILE).read_text(encoding="utf-8"))
        return f"process {owner['pid']} on {owner['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def is_locked(folder: Path) -> bool:
    """Whether a process owns the run now; never blocks and changes nothing."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False
