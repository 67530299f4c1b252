"""The code blocks of a Markdown page, and running them as a reader would."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import forking
import kills
from waiting import DEADLINE

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Output and formulas.
SHOWN_ONLY = {"text"}
RUN = {"bash", "python"}

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_IN_BACKGROUND = re.compile(r"^(plugrl .* &)$", re.MULTILINE)
_COMMENT = re.compile(r"<!-- (file|skip): (.+?) -->\n\Z")


@dataclass(frozen=True)
class Block:
    """One fenced block; ``file`` and ``skip`` are what the comment before it says.

    ``follows``: nothing but white space stands between it and the block before.
    """

    language: str
    text: str
    line: int
    follows: bool = False
    file: str | None = None
    skip: str | None = None


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(page):
        before = page[: match.start()]
        comment = _COMMENT.search(before)
        said = {comment[1]: comment[2]} if comment else {}
        follows = bool(found) and not before[end:].strip()
        found.append(Block(match[1], match[2], before.count("\n") + 1, follows, **said))
        end = match.end()
    return found


def run_page(page: str, folder: Path, *, forked: bool = True) -> None:
    """Write and run the blocks of a page in ``folder``; ``forked``: in forked processes.

    Raises:
        AssertionError: a command failed, or did not print the lines of the ``text`` block that
            follows; the message has the line of the block and the output.
    """
    output = ""
    for block in blocks_of(page):
        if block.language == "text" and block.follows:
            missing = [line for line in block.text.splitlines() if line not in output]
            assert not missing, f"block at line {block.line}: not printed: {missing}\n{output}"
        if block.skip is not None or block.language in SHOWN_ONLY:
            continue
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            continue
        done = _run(block, folder, _environment(forked))
        output = done.stdout
        assert done.returncode == 0, f"block at line {block.line}:\n{done.stdout[-3000:]}"


def _run(block: Block, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a block; its ``stdout`` has both kinds of output.

    A stand-in that is killed takes no process with it, so that what is killed is a real one.
    """
    text = block.text
    if "kill -9" in text:
        text = _IN_BACKGROUND.sub(r'PATH="$REAL_PATH" \1', text)
    bash = ["bash", "-e", "-u", "-o", "pipefail", "-c", text]
    return subprocess.run(
        ["python", "-c", text] if block.language == "python" else bash,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@functools.cache
def _environment(forked: bool) -> dict[str, str]:
    """What a reader's shell has; its ``plugrl`` and ``python`` may fork, as of ``forking``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PLUGRL_")}
    kept.pop("PYTHONPATH", None)
    places = [str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]
    real = os.pathsep.join(places)
    if not forked:
        return {**kept, "PATH": real, "REAL_PATH": real}
    programs = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, programs)
    return {**kept, **forking.stand_ins(Path(programs), kills.LIBRARIES), "REAL_PATH": real}
