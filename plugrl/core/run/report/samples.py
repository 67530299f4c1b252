"""What a page shows of ``samples/``: as many records as fit, spread over the steps."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plugrl.core.wording import bounded, shown

#: Bytes of a file that are read; of a longer one, parts the same distance apart.
_READ = 2**22
_PARTS = 32
#: Characters of a text, tokens of a record and items of another list that are shown.
_LONGEST, _TOKENS, _ITEMS = 4000, 600, 64
#: Bytes of a film that goes into the page.
LONGEST_FILM = 900_000
_FILM = re.compile(r"film-(\d+)\.(gif|mp4)")
_MEDIA = {"gif": "image/gif", "mp4": "video/mp4"}


def readable(value: Any, longest: int = _LONGEST) -> Any:
    """Plain values with bounded texts in which no character steers the direction of writing."""
    if isinstance(value, str):
        return shown(bounded(value, longest).encode("utf-8", "backslashreplace").decode())
    if isinstance(value, Mapping):
        return {readable(str(k), 200): readable(v, longest) for k, v in list(value.items())[:200]}
    if isinstance(value, list):
        return [readable(item, longest) for item in value[:_ITEMS]]
    return value


def read_samples(folder: Path, budget: int) -> dict[str, Any]:
    """The records of ``samples/*.jsonl`` that a page shows.

    All records of a step are shown or none, so that attempts of a group stay together; first and
    last step come first, then steps halfway between those that are there.

    Args:
        folder: the run folder.
        budget: bytes of JSON, shared by the files.
    """
    files = sorted((folder / "samples").glob("*.jsonl"))[:12]
    shows: dict[str, Any] = {}
    for path in files:
        records, whole = _read(path)
        chosen = _choose(records, budget // len(files))
        shows[path.stem] = {"records": chosen, "read": len(records), "whole": whole}
    return shows


def _read(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """Complete records of a file, and whether they are all."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            if size <= _READ:
                return [*_records(file.read())], True
            records: list[dict[str, Any]] = []
            part = _READ // _PARTS
            for number in range(_PARTS):
                file.seek(number * (size - part) // (_PARTS - 1))
                # The ends of lines with which a part begins and ends are no JSON.
                records += _records(file.read(part))
            return records, False
    except OSError:
        return [], True


def _records(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def _choose(records: list[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    by_step: dict[float, list[dict[str, Any]]] = {}
    for record in records:
        step = record.get("step")
        at = step if isinstance(step, (int, float)) and math.isfinite(step) else 0
        by_step.setdefault(at, []).append(record)
    steps = sorted(by_step)
    chosen: dict[float, list[dict[str, Any]]] = {}
    for index in _spread(len(steps)):
        made = [_for_page(record) for record in by_step[steps[index]]]
        written = json.dumps(made, ensure_ascii=False)
        # The page writes `<` as an escape of six characters.
        size = len(written.encode("utf-8", "replace")) + 5 * written.count("<")
        if size > budget and chosen:
            break
        budget -= size
        chosen[steps[index]] = made
    return [record for step in sorted(chosen) for record in chosen[step]]


def _spread(count: int) -> Iterator[int]:
    """All numbers below ``count``: the ends, then the middles of what lies between."""
    told: set[int] = set()
    parts = 1
    while len(told) < count:
        for number in range(parts + 1):
            index = round(number * (count - 1) / parts)
            if index not in told:
                told.add(index)
                yield index
        parts *= 2


def _for_page(record: Mapping[str, Any]) -> dict[str, Any]:
    tokens = record.get("tokens")
    made: dict[str, Any] = readable({k: v for k, v in record.items() if k != "tokens"})
    if isinstance(tokens, Mapping):
        lists = {k: v[:_TOKENS] for k, v in tokens.items() if isinstance(v, list)}
        texts = lists.get("text", [])
        lists["text"] = [readable(str(text), 200) for text in texts]
        made["tokens"] = lists
    return made


def read_film(folder: Path) -> dict[str, Any] | None:
    """The newest film of a run as a ``data:`` address, or its name where it is too long."""
    films = [
        (int(found[1]), path, _MEDIA[found[2]])
        for path in (folder / "samples").glob("film-*")
        if (found := _FILM.fullmatch(path.name))
    ]
    if not films:
        return None
    step, path, media = max(films, key=lambda film: film[0])
    try:
        if path.stat().st_size > LONGEST_FILM:
            return {"step": step, "name": path.name}
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError:
        return None
    return {"step": step, "name": path.name, "media": media, "data": f"data:{media};base64,{data}"}
