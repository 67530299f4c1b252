"""The page of a report: a frame, the data as JSON, and the program that draws them.

What a model wrote may be hostile. It is in the page only as JSON in which ``<`` is an escape, so
that nothing can end the element that holds it. The program puts it into the page as text, never as
HTML. The policy of the page runs its own two scripts, which it names by their hashes, and loads
nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from plugrl.core.run.atomic_writes import write_text
from plugrl.core.run.records.web_page import text
from plugrl.core.run.report.contents import RunContents, differences, now

REPORT_FILE = "report.html"
_SCRIPTS = ("uPlot.iife.min.js", "report.js")
_STYLES = ("uPlot.min.css", "report.css")
#: From the page to the values of a curve, or a record of a file of samples.
_DEPTH = 7


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


def report_page(runs: Sequence[dict[str, Any]]) -> str:
    """The page about one run, or about several beside each other.

    Args:
        runs: their contents; at least one.
    """
    names = [f"{run['experiment']} / {run['id']}" for run in runs]
    title = names[0] if len(runs) == 1 else f"{len(runs)} runs"
    data = {"written": now(), "runs": list(runs)}
    if len(runs) > 1:
        data["differences"] = differences(list(runs))
    scripts, styles, policy = _assets()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)}</title>{styles}</head>\n<body>"
        f"<header><h1>{text(title)}</h1>{''.join(map(_state, runs))}</header>"
        '<main id="report"><noscript><p>The curves and samples of this page are drawn by its '
        "script, which is switched off here; metrics.jsonl and samples/ hold the same.</p>"
        f'</noscript></main>\n<script type="application/json" id="data">{as_json(data)}</script>\n'
        f"{scripts}</body></html>\n"
    )


def _state(run: dict[str, Any]) -> str:
    """A line that is there without the script, too."""
    facts = [f"<b>{text(run['state'])}</b>", f"step {text(run['step'])}"]
    facts += [text(f"started {run['started']}")] if run["started"] else []
    facts += [text(f"ended {run['ended']}")] if run["ended"] else []
    who = f"{text(run['experiment'])} / {text(run['id'])}: "
    error = f'<p class="error">{text(run["error"])}</p>' if run["error"] else ""
    return f'<p class="state"><span class="who">{who}</span>{" · ".join(facts)}</p>{error}'


def as_json(value: Any) -> str:
    """JSON that nothing in it can end the element of, which the text of a model might try."""
    made = "".join(_json_parts(value, _DEPTH)).replace("<", "\\u003c")
    return made.encode("utf-8", "backslashreplace").decode()


def _json_parts(value: Any, depth: int) -> Iterator[str]:
    """JSON in small parts: no other thread runs while the encoder makes one of them."""
    if depth and isinstance(value, dict):
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield f"{',' if number else ''}{_dump(str(key))}:"
            yield from _json_parts(item, depth - 1)
        yield "}"
    elif depth and isinstance(value, list) and any(isinstance(i, (dict, list)) for i in value[:1]):
        yield "["
        for number, item in enumerate(value):
            yield "," if number else ""
            yield from _json_parts(item, depth - 1)
        yield "]"
    else:
        yield _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


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
