"""A program in a terminal, and what a person sees on its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import forking
import pyte
from waiting import DEADLINE


class Terminal:
    """Runs a program in a pseudo-terminal whose screen an emulator draws.

    Args:
        words: what follows ``python``.
        columns: the width of the terminal.
        rows: its height.
        echo: show the keys that are pressed.
        env: variables beside those of this process.
        cwd: the program's folder; that of this process by default.
        forked: fork a process that has imported what trains, for a program that would.

    Attributes:
        raw: everything that was written.
        frames: the lines of the screen after each piece that was read.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        columns: int = 80,
        rows: int = 40,
        echo: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        forked: bool = False,
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=1000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self.frames: list[list[str]] = []
        self._fd, child = pty.openpty()
        self.resize(columns, rows, redraw=False)
        flags = termios.tcgetattr(child)
        if not echo:
            flags[3] &= ~termios.ECHO
            termios.tcsetattr(child, termios.TCSANOW, flags)
        inherited = {
            k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        variables = {**inherited, "TERM": "xterm-256color", **(env or {})}
        self.process: subprocess.Popen[bytes] | forking.Process
        if forked:
            # It passes on copies of the two that are written to, and closes them.
            self.process = forking.Process(
                words, cwd=cwd, env=variables, stdin=child, stdout=child, stderr=child,
                start_new_session=True,
            )  # fmt: skip
        else:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                stdin=child,
                stdout=child,
                stderr=child,
                cwd=cwd,
                env=variables,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        os.close(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self._fd)

    @property
    def lines(self) -> list[str]:
        """The lines of the screen and those that left it, without empty ones at the end."""
        history = [
            "".join(row[x].data for x in range(self._screen.columns))
            for row in self._screen.history.top
        ]
        lines = [line.rstrip() for line in [*history, *self._screen.display]]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def cells(self) -> list[list[pyte.screens.Char]]:
        """The characters of the screen with their colours, line by line."""
        rows = self._screen.buffer
        return [
            [rows[y][x] for x in range(self._screen.columns)] for y in range(self._screen.lines)
        ]

    @property
    def cursor(self) -> tuple[int, bool]:
        """The column of the cursor, and whether it is visible."""
        return self._screen.cursor.x, not self._screen.cursor.hidden

    def resize(self, columns: int, rows: int = 40, *, redraw: bool = True) -> None:
        """Give the terminal another size; the program is told, as terminals do."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if redraw:
            self._screen.resize(rows, columns)

    def press(self, keys: str) -> None:
        """Type something; ``\\x03`` is Ctrl-C."""
        os.write(self._fd, keys.encode())

    def until(self, text: str) -> list[str]:
        """Read until a line has ``text``, and give the lines."""
        end = time.monotonic() + DEADLINE
        while not any(text in line for line in self.lines):
            assert self.read(), f"{text!r} did not come; there is:\n" + "\n".join(self.lines)
            assert time.monotonic() < end, f"{text!r} did not come in time"
        return self.lines

    def wait(self) -> int:
        """Read until the program ends, and give its exit code."""
        while self.read():
            pass
        return self.process.wait(DEADLINE)

    def read(self) -> bool:
        """Read what is there; False: the program has closed its terminal."""
        if not select.select([self._fd], [], [], DEADLINE)[0]:
            raise AssertionError("nothing was written in time")
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # how a terminal says that nobody is at its other side
            return False
        self.raw += data
        self._stream.feed(data)
        self.frames.append(self.lines or [""])
        return bool(data)

    def interrupt(self) -> None:
        """Ctrl-C as a signal, whatever the terminal does with keys."""
        os.killpg(self.process.pid, signal.SIGINT)
