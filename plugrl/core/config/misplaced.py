"""What was meant by a key in a section that does not know it, or by a new name of an entry."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from plugrl.core.config.canonical import MOVES
from plugrl.core.config.sources.origins import (
    COMMAND_LINE,
    MOST_FAULTS,
    Fault,
    KeyPath,
    Origins,
    dotted,
    nearest,
)
from plugrl.core.wording import close_names

if TYPE_CHECKING:
    from plugrl.core.config.report import CheckReport

_AT_MOST = 3
#: A close section is kept as the suggestion when it is at least this similar.
_SURELY = 0.8
#: The keys of a section are listed beside several other places unless there are more than these.
_FEW = 12
#: A free key may be anything, so only one that is this similar to a known one is suspected.
_FREE = 0.75


def with_places(
    faults: Iterable[Fault], filled: Mapping[str, Any], unchecked: Iterable[str]
) -> list[Fault]:
    """Say of each unknown key which sections have a key of this name.

    ``filled`` is the configuration with its defaults, so it has every key that could be written,
    except those of parts with faults; keys that no schema describes (``unchecked``) are none.
    """
    free = tuple(unchecked)
    places: dict[str, list[str]] = {}
    for path in _paths(filled, ()):
        text = dotted(path)
        if not any(text == key or text.startswith((f"{key}.", f"{key}[")) for key in free):
            places.setdefault(str(path[-1]), []).append(text)
    for old, new in MOVES.items():
        first, _, rest = new.partition(".")
        if "." in old and (not rest or first in filled):
            places.setdefault(old.rpartition(".")[2], []).append(new)
    found = list(faults)
    return [_with_place(fault, places) for fault in found[:MOST_FAULTS]] + found[MOST_FAULTS:]


def _paths(value: Any, path: KeyPath) -> list[KeyPath]:
    if isinstance(value, dict):
        return [
            found
            for key, item in value.items()
            for found in ([(*path, key)] if path else []) + _paths(item, (*path, key))
        ]
    if isinstance(value, list):
        return [found for i, item in enumerate(value) for found in _paths(item, (*path, i))]
    return []


def _with_place(fault: Fault, places: Mapping[str, list[str]]) -> Fault:
    if not fault.unknown:
        return fault
    close, section = fault.suggestion, fault.path == fault.unknown
    # What resembles a key of its own section is a slip; a section's name may be a misplaced key.
    if close and (not section or _similarity(fault.unknown, close) >= _SURELY):
        return fault
    known = dict.fromkeys(key for key in places.get(fault.unknown, ()) if key != fault.path)
    found = sorted(known, key=lambda key: key.count("."))
    if not found or len(found) > _AT_MOST:
        return fault
    message = fault.message
    if section or len(found) == 1 or message.count(",") >= _FEW:
        message = message.partition(";")[0]
    return dataclasses.replace(fault, message=message, suggestion=" or ".join(found), unknown=None)


def _similarity(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name, other).ratio()


def near_misses(report: CheckReport, begin: int, section: Any, path: KeyPath) -> None:
    """Note which of the free keys just below ``path`` resemble a key that ``section`` reads.

    ``section`` is the checked section around ``path``; ``begin`` is where its free keys begin in
    ``report.unchecked``.
    """
    free = [key for key in report.unchecked[begin:] if key.startswith(f"{dotted(path)}.")]
    below = section.get(str(path[-1])) if isinstance(section, dict) else None
    if not isinstance(below, dict):
        return
    around: dict[str, str] = {}
    for inner in [*((key,) for key in section), *_paths(section, ())]:
        full = dotted((*path[:-1], *inner))
        if not any(full == key or full.startswith(f"{key}.") for key in free):
            around.setdefault(str(inner[-1]), full)
    own = {name: name for name in below if f"{dotted(path)}.{name}" not in free}
    for key in free:
        name = key.rpartition(".")[2]
        for known in (own, around):
            close = difflib.get_close_matches(name, known, n=1, cutoff=_FREE)
            if close:
                report.meant.setdefault(key, known[close[0]])


def without_slips(report: CheckReport, given: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    """Refuse overrides of entries that nothing else names, but for a close name.

    ``given`` is a mapping whose keys users choose, such as ``models``; gives it without those.
    """
    entries = dict(given)
    for name in given:
        here, meant = (*path, name), _meant(name, given)
        if meant is None or nearest(report.origins, here) != COMMAND_LINE:
            continue
        first = _first_layer(report.origins, here)
        if _first_layer(report.origins, (*path, meant)) < first:
            message = "no file names it; to add it, write it in a file"
            report.fault(here, message, dotted((*path, meant)))
            del entries[name]
    return entries


def say_who_was_meant(faults: list[Fault], begin: int, given: Mapping[str, Any], path: str) -> None:
    """Suggest the close entry of ``given`` in faults, from ``begin`` on, of one that lacks keys."""
    for index, fault in enumerate(faults[begin:], begin):
        name = fault.path.removeprefix(f"{path}.").partition(".")[0]
        meant = _meant(name, given) if name in given else None
        lacks = "is required" in fault.message or "is missing" in fault.message
        if meant is not None and lacks and fault.suggestion is None:
            faults[index] = dataclasses.replace(fault, suggestion=f"{path}.{meant}")


def _meant(name: str, entries: Mapping[str, Any]) -> str | None:
    """Give the other key that ``name`` may be a slip for; ``judge_2`` is none for ``judge``."""
    others = [other for other in entries if other != name and _stem(other) != _stem(name)]
    close = close_names(name, others, 1)
    return close[0] if close else None


def _stem(name: str) -> str:
    return re.split(r"[\d_.-]", name.lower())[0]


def _first_layer(origins: Origins, path: KeyPath) -> int:
    """Give the number of the first layer that wrote something at or below ``path``."""
    size = len(path)
    layers = [origin.layer for known, origin in origins.items() if known[:size] == path]
    return min(layers, default=0)
