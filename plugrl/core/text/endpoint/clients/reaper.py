"""Ends programs whose owner is gone, however it went.

A process that is killed ends nothing. So a small process watches over what its owner starts: it
reads the owner's pipe, and when that closes it kills every program that is still there, with what
those started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

#: The variable by which everything that belongs to a session is known, children of children too.
MARK = "PLUGRL_SESSION"

_PROGRAM = """
import os, signal, sys
there = {}
for line in sys.stdin:
    sign, session, group = line.split()
    if sign == "-": there.pop(session, None)
    else: there[session] = int(group)
for group in there.values():
    try: group and os.killpg(group, signal.SIGKILL)
    except OSError: pass
marks = [("PLUGRL_SESSION=" + session).encode() for session in there]
for name in os.listdir("/proc") if marks and os.path.isdir("/proc") else ():
    if not name.isdigit(): continue
    try:
        with open("/proc/" + name + "/environ", "rb") as file: found = file.read()
        if any(mark in found for mark in marks): os.kill(int(name), signal.SIGKILL)
    except OSError: pass
"""


class Reaper:
    """The process that watches over the programs of this one; it starts with the first of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._changed = threading.Lock()

    def watch(self, session: str, group: int = 0) -> None:
        """If this process ends, kill what has the session in its environment, and a group."""
        with self._changed:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _PROGRAM],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    # Signals of a terminal, or to the group of a worker, are not for it.
                    start_new_session=True,
                )
            self._tell(f"+ {session} {group}\n")

    def forget(self, session: str) -> None:
        """The programs of the session have ended."""
        with self._changed:
            self._tell(f"- {session} 0\n")

    def _tell(self, line: str) -> None:
        if self._process is None:
            return
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def kill_session(session: str) -> None:
    """Kill what has left its group and still belongs to a session; Linux alone can tell."""
    wanted = f"{MARK}={session}".encode()
    own = os.getpid()
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if not name.isdigit() or int(name) == own:
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                found = wanted in file.read()
            if found:
                os.kill(int(name), signal.SIGKILL)


REAPER = Reaper()
