"""HTML pages that need no other file: their frame and style, escaped text, tables.

What models said may be hostile: every text is escaped, and the policy of a page allows neither
scripts nor anything from elsewhere.
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
        title: as plain text; it is the heading too.
        body: what follows the heading, as HTML.
        style: rules beside those that all pages share.
    """
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{text(title)}</title><style>{_STYLE}{style}</style></head><body>"
        f"<h1>{text(title)}</h1>{body}</body></html>\n"
    )


def text(value: object) -> str:
    """Text as it is read: no mark-up, no control characters, no change of direction."""
    readable = shown(str(value).encode("utf-8", "backslashreplace").decode())
    return html.escape(readable, quote=True)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of cells that are HTML already, or numbers, which stand on the right.

    Args:
        head: of the columns; empty: there is no head.
        rows: as many cells in each.
    """
    top = "".join(f"<th>{name}</th>" for name in head)
    top = f"<tr>{top}</tr>" if head else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table>{top}{body}</table>"


def _cell(cell: Any) -> str:
    numeric = not isinstance(cell, str) or _NUMERIC.fullmatch(cell) is not None
    return f'<td class="n">{cell}</td>' if numeric else f"<td>{cell}</td>"
