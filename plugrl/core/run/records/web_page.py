"""Self-contained HTML pages: frame and style, escaped text, tables.

The output of models may be hostile: all text is escaped, and the content security policy of a page
allows neither scripts nor external resources.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

from plugrl.core.wording import shown

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;text-align:left;"
    "border-bottom:1px solid #8884;vertical-align:top}td.n,th.n{text-align:right;"
    "font-variant-numeric:tabular-nums}"
)
_NUMERIC = re.compile(r"-?[\d.]+(?:e[-+]?\d+)?(?: %)?|-")


def page(title: str, body: str, *, style: str = "") -> str:
    """A whole page.

    Args:
        title: title and heading, as plain text.
        body: the content below the heading, as HTML.
        style: CSS rules besides those that all pages share.
    """
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{text(title)}</title><style>{_STYLE}{style}</style></head><body>"
        f"<h1>{text(title)}</h1>{body}</body></html>\n"
    )


def text(value: object) -> str:
    """Escaped text, without control characters and changes of direction."""
    readable = shown(str(value).encode("utf-8", "backslashreplace").decode())
    return html.escape(readable, quote=True)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of cells that are HTML, or numbers, which are aligned right.

    Args:
        head: the column headings; empty for none.
        rows: the cells of each row.
    """
    top = "".join(f"<th>{name}</th>" for name in head)
    top = f"<tr>{top}</tr>" if head else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table>{top}{body}</table>"


def _cell(cell: Any) -> str:
    numeric = not isinstance(cell, str) or _NUMERIC.fullmatch(cell) is not None
    return f'<td class="n">{cell}</td>' if numeric else f"<td>{cell}</td>"
