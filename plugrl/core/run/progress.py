"""Progress of a run: bars on a terminal, a line in a notebook, plain lines elsewhere, or none."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from plugrl.core.wording import shown

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

#: Seconds between two plain lines of one bar.
_LINE_INTERVAL = 10.0
_REDRAWS_PER_SECOND = 4.0


class Bar:
    """A progress bar; this base class shows nothing."""

    def update(self, completed: int, **fields: float | int | str) -> None:
        """Show that ``completed`` units are done, with further numbers."""

    def close(self) -> None:
        """End the bar; calling it again does nothing."""


class _PlainBar(Bar):
    def __init__(self, description: str, total: int | None) -> None:
        self._description = description
        self._total = total
        self._started = time.monotonic()
        # Wait a moment before the first line, so that short tasks print one line only.
        self._due = self._started + 1.0
        self._last = ""

    def update(self, completed: int, **fields: float | int | str) -> None:
        now = time.monotonic()
        last = self._total is not None and completed >= self._total
        if now < self._due and not last:
            self._last = self._line(completed, fields, now) if now > self._started + 0.5 else ""
            return
        self._due = now + _LINE_INTERVAL
        self._print(self._line(completed, fields, now))

    def _line(self, completed: int, fields: dict[str, Any], now: float) -> str:
        of = f"/{self._total}" if self._total is not None else ""
        numbers = "".join(f"  {name} {_short(value)}" for name, value in fields.items())
        return f"{self._description}: {completed}{of}{numbers}  {now - self._started:.0f} s"

    def _print(self, line: str) -> None:
        # Drop the line kept from an earlier update, which is older than this one.
        self._last = ""
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._last:
            self._print(self._last)


class _NotebookBar(_PlainBar):
    """One line below the cell, which is written anew."""

    def __init__(self, description: str, total: int | None) -> None:
        from IPython.display import display

        super().__init__(description, total)
        self._due = self._started
        self._handle: Any = display(  # type: ignore[no-untyped-call]
            self._shown(f"{description} ..."), display_id=True, raw=True
        )

    def update(self, completed: int, **fields: float | int | str) -> None:
        now = time.monotonic()
        self._last = self._line(completed, fields, now)
        if now >= self._due:
            self._due = now + 1 / _REDRAWS_PER_SECOND
            self._print(self._last)

    def _print(self, line: str) -> None:
        self._last = ""
        self._handle.update(self._shown(line), raw=True)

    @staticmethod
    def _shown(line: str) -> dict[str, str]:
        return {"text/plain": line}


class _RichBar(Bar):
    def __init__(self, owner: Progress, bars: RichProgress, text: str, total: int | None) -> None:
        self._owner = owner
        self._bars = bars
        self._task = bars.add_task(text, total=total, numbers="")
        self._closed = False

    def update(self, completed: int, **fields: float | int | str) -> None:
        # Only numbers change here; the bars redraw themselves at their own fixed rate.
        numbers = "  ".join(f"{name} {_short(value)}" for name, value in fields.items())
        self._bars.update(self._task, completed=completed, numbers=numbers)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._bars.stop_task(self._task)
            self._owner.bar_closed()


class Progress:
    """Creates bars in the style of ``settings.progress``; all bars of a run share one display."""

    def __init__(self, style: str) -> None:
        if style == "auto" and _in_notebook():
            style = "notebook"
        elif style == "auto":
            style = "rich" if sys.stderr is not None and sys.stderr.isatty() else "plain"
        self._style = style
        self._bars: RichProgress | None = None
        self._open = 0

    def bar(self, description: str, total: int | None = None) -> Bar:
        """Start a bar; ``total`` None: the length is unknown."""
        description = shown(description)
        if self._style == "none":
            return Bar()
        if self._style != "rich":
            return (_PlainBar if self._style == "plain" else _NotebookBar)(description, total)
        self._open += 1
        return _RichBar(self, self._display(), description, total)

    def _display(self) -> RichProgress:
        if self._bars is None:
            from rich import progress
            from rich.console import Console

            self._bars = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[numbers]}"),
                console=Console(stderr=True),
                refresh_per_second=_REDRAWS_PER_SECOND,
            )
            self._bars.start()
        return self._bars

    def bar_closed(self) -> None:
        """Close the display with its last bar."""
        self._open -= 1
        if self._open == 0:
            self.close()

    def close(self) -> None:
        """Close the display."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def _short(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")
