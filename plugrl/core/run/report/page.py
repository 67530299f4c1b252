"""The page of a report: a frame, the data as JSON, and the program that draws them.

What a model wrote may be hostile. It is in the page only as JSON in which ``<`` is an escape, so
that nothing can end the element that holds it. The program puts it into the page as text, never as
HTML. The policy of the page runs its own two scripts, which it names by their hashes, and loads
nothing.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from plugrl.core.run.atomic_writes import write_text
from plugrl.core.run.records.web_page import text
from plugrl.core.run.report.contents import RunContents, differences

REPORT_FILE = "report.html"
_SCRIPTS = ("uPlot.iife.min.js", "report.js")
_STYLES = ("uPlot.min.css", "report.css")
#: From the page to the values of a curve, or a record of a file of samples.
_DEPTH = 6


def report_file(folders: Sequence[Path], output: Path | None = None) -> Path:
    """Write the page about one run, or about several, and give its path.

    Args:
        folders: of the runs.
        output: the file; None: ``report.html`` in the folder of the run, or of several, here.

    Raises:
        OSError: it could not be written; what was there still is.
    """
    path = output or (folders[0] / REPORT_FILE if len(folders) == 1 else Path(REPORT_FILE))
    runs = [RunContents(folder).read(share=len(folders)) for folder in folders]
    write_text(path, report_page(runs))
    return path


def report_page(runs: Sequence[dict[str, Any]], interval: float | None = None) -> str:
    """The page about one run, or about several beside each other.

    Args:
        runs: their contents; at least one.
        interval: seconds after which the next page is due; None: nobody writes one.
    """
    names = [f"{run['experiment']} / {run['id']}" for run in runs]
    title = names[0] if len(runs) == 1 else f"{len(runs)} runs"
    written = time.time()
    data = {"written": written, "interval": interval, "runs": list(runs)}
    if len(runs) > 1:
        data["differences"] = differences(list(runs))
    scripts, styles, policy = _assets()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)}</title>{styles}</head>\n<body>"
        f"<header><h1>{text(title)}</h1>{''.join(map(_state, runs))}{_age(written, runs)}</header>"
        '<main id="report"><noscript><p>The curves and samples of this page are drawn by its '
        "script, which is switched off here; metrics.jsonl and samples/ hold the same.</p>"
        f'</noscript></main>\n<script type="application/json" id="data">{as_json(data)}</script>\n'
        f"{scripts}</body></html>\n"
    )


def _state(run: dict[str, Any]) -> str:
    """A line that is there without the script, too."""
    # A page cannot know what became of a run after it was written.
    when = " when this page was written" if run["state"] == "running" else ""
    facts = [f"<b>{text(run['state'])}{when}</b>", f"step {text(run['step'])}"]
    facts += [text(f"started {run['started']}")] if run["started"] else []
    facts += [text(f"ended {run['ended']}")] if run["ended"] else []
    who = f"{text(run['experiment'])} / {text(run['id'])}: "
    error = f'<p class="error">{text(run["error"])}</p>' if run["error"] else ""
    return f'<p class="state"><span class="who">{who}</span>{" · ".join(facts)}</p>{error}'


def _age(written: float, runs: Sequence[dict[str, Any]]) -> str:
    """When the page was written, which the script turns into how long ago that is."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(written))
    running = [shlex.quote(run["id"]) for run in runs if run["state"] == "running"]
    command = f"plugrl report {' '.join(running)}"
    rest = (
        " <span>Reload it for what is new. If the process has ended without a word, "
        f"<code>{text(command)}</code> says so.</span>"
    )
    return f'<div id="written">Written {text(stamp)}.{rest if running else ""}</div>'


def as_json(value: Any) -> str:
    """JSON that nothing in it can end the element of, which the text of a model might try.

    Numbers that are not finite are null.
    """
    return b"".join(_json_parts(value, _DEPTH)).replace(b"<", rb"\u003c").decode()


def _json_parts(value: Any, depth: int) -> Iterator[bytes]:
    """JSON in small parts: no other thread runs while the encoder makes one of them."""
    if depth and isinstance(value, dict):
        yield b"{"
        for number, (key, item) in enumerate(value.items()):
            yield b"%b%b:" % (b"," if number else b"", orjson.dumps(key))
            yield from _json_parts(item, depth - 1)
        yield b"}"
    elif depth and isinstance(value, list) and any(isinstance(i, (dict, list)) for i in value[:1]):
        yield b"["
        for number, item in enumerate(value):
            yield b"," if number else b""
            yield from _json_parts(item, depth - 1)
        yield b"]"
    else:
        yield orjson.dumps(value)


@lru_cache(maxsize=1)
def _assets() -> tuple[str, str, str]:
    """Scripts, styles and the policy that allows no others."""
    folder = files("plugrl.core.run.report") / "assets"
    read = {name: (folder / name).read_text("utf-8") for name in (*_SCRIPTS, *_STYLES)}
    scripts = "".join(f"<script>{read[name]}</script>\n" for name in _SCRIPTS)
    styles = "".join(f"<style>{read[name]}</style>" for name in _STYLES)
    policy = (
        "default-src 'none'; "
        f"script-src {' '.join(_hash(read[name]) for name in _SCRIPTS)}; "
        f"style-src {' '.join(_hash(read[name]) for name in _STYLES)}; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )
    return scripts, styles, policy


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
