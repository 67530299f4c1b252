"""Take the picture of a terminal of docs/runs.md.

``python docs/terminal_picture.py``

The recipe ``quickstart`` is trained in a pseudo-terminal, which is made narrower on the way.
Chromium draws what was on its screen (``pip install playwright pyte``, ``apt-get install
chromium``).
"""

from __future__ import annotations

import html
import io
import itertools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from terminal import Terminal  # noqa: E402

OUTPUT = Path(__file__).parent / "pictures" / "terminal.png"
WIDTHS = (120, 100, 80)
WORDS = [
    *("-m", "plugrl", "train", "quickstart"),
    *(f"trainer.phases.{n}.trainer.total_train_steps={steps}" for n, steps in ((0, 200), (1, 300))),
]
#: The second phase, a third of which is done.
_MIDDLE = re.compile(r"grpo +[1-9]\d\d/")
#: As many colours as the picture has shades.
COLOURS = 48
_NAMED = {"default": "#d6dde4", "brown": "#d9b44a", "black": "#5b6672", "white": "#f2f5f8"}
_STYLE = (
    "body{margin:4px 8px;background:#fff}"
    "pre{display:inline-block;margin:0 0 10px;padding:10px 14px;"
    "border-radius:8px;background:#161b21;font:13px/1.45 'DejaVu Sans Mono',monospace}"
    "div{font:13px system-ui,sans-serif;color:#586675;margin:2px 0}"
)


def as_html(rows: Sequence[Sequence[Any]]) -> str:
    """Lines of a terminal with their colours."""
    lines = []
    for row in rows:
        parts = []
        for (colour, bold), cells in itertools.groupby(row, lambda cell: (cell.fg, cell.bold)):
            known = f"#{colour}" if len(colour) == 6 and colour not in _NAMED else colour
            style = f"color:{_NAMED.get(colour, known)};font-weight:{700 if bold else 400}"
            text = html.escape("".join(cell.data for cell in cells))
            parts.append(f'<span style="{style}">{text}</span>')
        lines.append("".join(parts))
    return f"<pre>{chr(10).join(lines)}</pre>"


def written(terminal: Terminal) -> list[list[Any]]:
    """The lines of the screen that hold something."""
    return [row for row in terminal.cells if any(cell.data.strip() for cell in row)]


def status_line(terminal: Terminal, columns: int) -> list[list[Any]]:
    """The status line of the second phase at a width, some steps on."""
    if columns != WIDTHS[0]:
        terminal.resize(columns)
    for _ in range(8):
        terminal.read()
    while not _MIDDLE.match(terminal.lines[-1]) or len(terminal.lines[-1]) > columns:
        terminal.read()
    return written(terminal)[-1:]


def main() -> None:
    """Train, look at three widths and at the end, and draw it."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.fspath(ROOT)}
        with Terminal(WORDS, columns=WIDTHS[0], env=env, cwd=Path(folder)) as terminal:
            terminal.until("grpo ")
            parts = [(f"{w} columns", status_line(terminal, w)) for w in WIDTHS]
            terminal.wait()
            parts.append(("at the end", written(terminal)))
    body = "".join(f"<div>{title}</div>{as_html(rows)}<br>" for title, rows in parts)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1040, "height": 100})
        page.set_content(f"<style>{_STYLE}</style>{body}")
        picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    picture.convert("RGB").quantize(COLOURS).save(OUTPUT, optimize=True)
    print(OUTPUT, OUTPUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
