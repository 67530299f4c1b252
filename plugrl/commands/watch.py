"""``plugrl watch``: curves and samples of a run while it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from plugrl.commands._run_arguments import Run, RunsFolder

if TYPE_CHECKING:
    from plugrl.commands._watch import RunView

EXAMPLES = """
plugrl watch
plugrl watch quickstart
plugrl watch latest --once
"""


def command(
    run: Run = "latest",
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    runs_folder: RunsFolder = "runs",
) -> None:
    """Show the headline of a run with its curve, other metrics and the newest samples.

    The screen is drawn anew every second, until q or Ctrl-C; where the output is no terminal, it
    is printed once.
    """
    import sys
    from pathlib import Path

    from plugrl.commands._output import can_print
    from plugrl.commands._watch import RunView
    from plugrl.core.run.folder import find

    view = RunView(find(run, Path(runs_folder)), unicode=can_print("⣿▁→"))
    view.read()
    if once or not (sys.stdout.isatty() and sys.stdin is not None and sys.stdin.isatty()):
        from shutil import get_terminal_size

        width = get_terminal_size().columns if sys.stdout.isatty() else 80
        print("\n".join(line.rstrip() for line in view.lines(width)))
        return
    # As good an end as q.
    with suppress(KeyboardInterrupt):
        _watch(view)
    print(view.ending())


def _watch(view: RunView) -> None:
    """Draw the run every second until q is pressed."""
    import select
    import sys

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from plugrl.core.errors import EXIT_TERMINATED

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_interactive:  # it cannot move its cursor
        print("\n".join(view.lines(console.width)))
        return

    def screen() -> Text:
        width, height = console.size
        end = "q ends" if view.state == "running" else f"{view.state}; q ends"
        lines = view.lines(width, max(1, height - 2))
        return Text("\n".join([*lines, "", end[:width]]), no_wrap=True, overflow="crop")

    with (
        _single_keys() as terminated,
        Live(screen(), console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(screen(), refresh=True)
            ready = select.select([sys.stdin, terminated], [], [], 1.0)[0]
            if terminated in ready:
                raise SystemExit(EXIT_TERMINATED)
            if ready and _key() in ("q", "Q", ""):
                return
            view.read()


def _key() -> str:
    """One key; empty: the terminal is gone."""
    import os
    import sys

    try:
        return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace")
    except OSError:
        return ""


@contextmanager
def _single_keys() -> Iterator[int]:
    """Read keys without Enter and unseen; gives a descriptor that can be read once SIGTERM came.

    An exception could come while the screen is entered, and nothing would leave it.
    """
    import os
    import signal
    import sys
    import termios
    import tty

    terminated, told = os.pipe()

    def tell(number: int, frame: object) -> None:
        os.write(told, b"t")

    before, handler = termios.tcgetattr(sys.stdin), signal.signal(signal.SIGTERM, tell)
    try:
        tty.setcbreak(sys.stdin)
        yield terminated
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, handler)
        os.close(terminated)
        os.close(told)
