"""Progress of a run: a status line on a terminal or in a notebook, plain lines elsewhere, or none.

On a terminal one console writes the status line and whatever else comes to standard error
meanwhile, so that messages stand above the line and are never glued to it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from plugrl.core.run.process.compiler import is_compiling
from plugrl.core.run.process.signals import mark_status_line
from plugrl.core.run.status_line import Pace, StatusLine, duration, padded, short_number
from plugrl.core.wording import shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

Number = float | int | str

#: Seconds between two plain lines of one bar.
_LINE_INTERVAL = 10.0
_REDRAWS_PER_SECOND = 4.0
#: Columns that stay free at the end of the status line.
_CONTROL_C = 3
#: What a log record has (``extra=DETAIL``) that says what progress shows too: commands print it
#: with ``-v`` alone.
DETAIL: Mapping[str, Any] = MappingProxyType({"plugrl_detail": True})
#: The style of all runs of this process, whatever they are configured to; None: as configured.
_forced: str | None = None


def force_style(style: str | None) -> None:
    """Show the progress of all runs of this process in one style; None: as each configures it."""
    global _forced
    _forced = style


class Bar:
    """A progress bar; this base class shows nothing."""

    def update(self, completed: int, **fields: Number) -> None:
        """Show that ``completed`` units are done, with further numbers."""

    def close(self) -> None:
        """End the bar; calling it again does nothing."""


class _TimedBar(Bar):
    """A bar that knows when it began, and how long it still takes."""

    def __init__(self, owner: Progress, description: str, total: int | None) -> None:
        self._owner = owner
        self._description = description
        self._total = total
        self._started = time.monotonic()
        self._pace = Pace(self._started)

    def _line(self, completed: int, fields: Mapping[str, Number], now: float) -> str:
        """A plain line: how far it is, its numbers, and the time."""
        of = f"/{self._total}" if self._total is not None else ""
        numbers = "".join(f"  {name} {short_number(value)}" for name, value in fields.items())
        left = self._pace.left(self._total, now)
        more = f", {duration(left)} left" if left is not None and completed != self._total else ""
        took = now - self._started
        return f"{self._description}: {completed}{of}{numbers}  {duration(took)}{more}"


class _PlainBar(_TimedBar):
    def __init__(self, owner: Progress, description: str, total: int | None) -> None:
        super().__init__(owner, description, total)
        # Wait a moment before the first line, so that short tasks print one line only.
        self._due = self._started + 1.0
        self._last = ""

    def update(self, completed: int, **fields: Number) -> None:
        now = time.monotonic()
        self._pace.update(completed, now)
        last = self._total is not None and completed >= self._total
        if now < self._due and not last:
            line = self._line(completed, self._owner.ordered(fields), now)
            self._last = line if now > self._started + 0.5 else ""
            return
        self._due = now + _LINE_INTERVAL
        self._print(self._line(completed, self._owner.ordered(fields), now))

    def _print(self, line: str) -> None:
        # Drop the line kept from an earlier update, which is older than this one.
        self._last = ""
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._last:
            self._print(self._last)


class _NotebookBar(_PlainBar):
    """One line below the cell, which is written anew."""

    def __init__(self, owner: Progress, description: str, total: int | None) -> None:
        from IPython.display import display

        super().__init__(owner, description, total)
        self._due = self._started
        self._handle: Any = display(  # type: ignore[no-untyped-call]
            self._shown(f"{description} ..."), display_id=True, raw=True
        )

    def update(self, completed: int, **fields: Number) -> None:
        now = time.monotonic()
        self._pace.update(completed, now)
        self._last = self._line(completed, self._owner.ordered(fields), now)
        if now >= self._due:
            self._due = now + 1 / _REDRAWS_PER_SECOND
            self._print(self._last)

    def _print(self, line: str) -> None:
        self._last = ""
        self._handle.update(self._shown(line), raw=True)

    @staticmethod
    def _shown(line: str) -> dict[str, str]:
        return {"text/plain": line}


class _TerminalBar(_TimedBar):
    """The status line of a terminal, while no bar that began later has it."""

    def __init__(self, owner: Progress, description: str, total: int | None) -> None:
        super().__init__(owner, description, total)
        self._completed = 0
        # What is known of the run before this bar has moved.
        self._fields: Mapping[str, Number] = owner.ordered({})
        self._widths: dict[str, int] = {}
        self._closed = False

    def update(self, completed: int, **fields: Number) -> None:
        # Only numbers change here; the line is redrawn at its own fixed rate.
        self._pace.update(completed, time.monotonic())
        self._completed, self._fields = completed, self._owner.ordered(fields)

    def status(self, activity: str) -> StatusLine:
        """What the status line says now."""
        now = time.monotonic()
        return StatusLine(
            self._description,
            self._completed,
            self._total,
            now - self._started,
            self._pace.left(self._total, now),
            padded(self._fields, self._widths),
            activity,
        )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._owner.end_bar(self)

    @property
    def last_line(self) -> str:
        """What stays on the screen: how far it came, and the two numbers that matter."""
        leading = dict(list(self._fields.items())[:2])
        return self._line(self._completed, leading, time.monotonic())


class Progress:
    """Creates bars in the style of ``settings.progress``; a run has one status line.

    Args:
        style: ``auto``, ``rich``, ``plain`` or ``none``.
        headline: gives the number by which the run is judged, which stands before all others.

    Attributes:
        activity: what the run is at, such as ``rollout``; empty: nothing that has a name.
    """

    def __init__(
        self, style: str, headline: Callable[[], Mapping[str, Number]] | None = None
    ) -> None:
        self._style = _style_of(style if _forced is None else _forced)
        self._headline = headline
        self._terminal: _Terminal | None = None
        self._bars: list[_TerminalBar] = []
        self._started = time.monotonic()
        self.activity = ""

    def start(self) -> None:
        """Show on a terminal that the run is alive, before it has anything to count."""
        if self._style == "rich" and self._terminal is None:
            self._terminal = _Terminal(self._status)

    def bar(self, description: str, total: int | None = None) -> Bar:
        """Start a bar; ``total`` None: the length is unknown."""
        description = shown(description)
        if self._style == "none":
            return Bar()
        if self._style != "rich":
            kind = _PlainBar if self._style == "plain" else _NotebookBar
            return kind(self, description, total)
        bar = _TerminalBar(self, description, total)
        self._bars.append(bar)
        self.start()
        return bar

    def ordered(self, fields: Mapping[str, Number]) -> Mapping[str, Number]:
        """The numbers of an update after the headline of the run."""
        return fields if self._headline is None else {**self._headline(), **fields}

    @contextmanager
    def at(self, activity: str) -> Iterator[None]:
        """Say during the body what the run is at."""
        before, self.activity = self.activity, activity
        try:
            yield
        finally:
            self.activity = before

    def _status(self) -> StatusLine:
        bars = self._bars[-1:]
        # It takes long, and nothing else moves meanwhile.
        activity = "compiling" if is_compiling() else self.activity
        if bars:
            return bars[0].status(activity)
        took = time.monotonic() - self._started
        return StatusLine(activity or "setting up", None, None, took)

    def end_bar(self, bar: _TerminalBar) -> None:
        """Leave one line of the bar on the screen, unless it was part of another one."""
        self._bars.remove(bar)
        if not self._bars and self._terminal is not None:
            self._terminal.print(bar.last_line)

    def close(self) -> None:
        """Take the status line off the screen."""
        for bar in reversed(self._bars[:]):
            bar.close()
        if self._terminal is not None:
            self._terminal.close()
            self._terminal = None


def _style_of(style: str) -> str:
    if style == "auto" and _in_notebook():
        return "notebook"
    if style != "auto" and style != "rich":
        return style
    if sys.stderr is None or (style == "auto" and not sys.stderr.isatty()):
        return "plain"
    # What cannot move its cursor gets lines, as a file does.
    return "rich" if _console().is_interactive else "plain"


def _console() -> Console:
    from rich.console import Console

    class OpenCursorConsole(Console):
        """A console whose cursor stays visible: nobody can show it again after a SIGKILL."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    return OpenCursorConsole(
        stderr=True, soft_wrap=True, markup=False, highlight=False, emoji=False
    )


class _Terminal:
    """The status line of a terminal, and everything that is printed above it meanwhile."""

    def __init__(self, status: Callable[[], StatusLine]) -> None:
        from rich.live import Live

        self._status = status
        self._console = _console()
        self._handlers: list[tuple[logging.StreamHandler[Any], Any]] = []
        before = sys.stderr
        self._live: Live = Live(
            self,
            console=self._console,
            refresh_per_second=_REDRAWS_PER_SECOND,
            transient=True,
            # Whoever sends standard output to a file wants all of it there.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._live.start()
        mark_status_line(True)
        for logger in (logging.getLogger(), logging.getLogger("plugrl")):
            for handler in logger.handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                    handler.setStream(sys.stderr)
                    self._handlers.append((handler, before))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        status = self._status()
        # Room for the ^C that a terminal shows where the line ends: it must not begin another one.
        parts = status.arranged(max(1, options.max_width - _CONTROL_C))
        yield Text(parts.left, end="")
        if parts.bar:
            total, done = status.total or 0, status.completed or 0
            yield ProgressBar(total=max(1, total), completed=done, width=parts.bar)
        yield Text(parts.right, end="")

    def print(self, line: str) -> None:
        """Print a line above the status line."""
        self._console.print(line)

    def close(self) -> None:
        """Erase the status line, and let everybody write to standard error again."""
        for handler, stream in self._handlers:
            handler.setStream(stream)
        mark_status_line(False)
        self._live.stop()


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")
