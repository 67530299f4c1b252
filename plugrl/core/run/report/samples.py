"""What a page shows of ``samples/``: as many records as fit, spread over the steps."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from plugrl.core.run.records.jsonl_file import parse_record
from plugrl.core.wording import bounded, shown

#: Bytes of a file that are read; of a longer one, so many parts of them at most.
_READ = 2**22
_PARTS = 32
#: Characters of a text, tokens of a record and items of another list that are shown.
_LONGEST, _TOKENS, _ITEMS = 4000, 600, 64
#: Levels of mappings and lists in each other.
_DEEPEST = 16
#: A step with a larger number is damaged.
LARGEST_STEP = 1e15
#: Bytes of a film that goes into the page.
LONGEST_FILM = 900_000
_FILM = re.compile(r"film-(\d+)\.(gif|mp4)")
_MEDIA = {"gif": "image/gif", "mp4": "video/mp4"}


def readable(value: Any, longest: int = _LONGEST, depth: int = _DEEPEST) -> Any:
    """Plain values of JSON with bounded texts in which no character steers how they are written."""
    if isinstance(value, str):
        return shown(bounded(value, longest).encode("utf-8", "backslashreplace").decode())
    if isinstance(value, int):
        # No number of the page holds what is longer.
        return value if abs(value) < 2**63 else readable(str(value), longest)
    if not isinstance(value, (Mapping, list)):
        return value
    if not depth:
        return "[...]"
    if isinstance(value, list):
        return [readable(item, longest, depth - 1) for item in value[:_ITEMS]]
    return {
        readable(str(key), 200): readable(item, longest, depth - 1)
        for key, item in list(value.items())[:200]
    }


class Samples:
    """The records of ``samples/*.jsonl`` that a page shows, for pages one after the other.

    All records of a step are shown or none, so that attempts of a group stay together. First and
    last step come first, then every 2^k-th one for smaller and smaller k: as a file grows, most of
    what was shown stays, and what was made of it is used again.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "samples"
        #: What was made of the lines that the latest page showed, and its bytes there.
        self._made: dict[bytes, tuple[dict[str, Any], int]] = {}

    def read(self, budget: int) -> dict[str, Any]:
        """By the name of each file: its ``records``, how many were ``read``, the ``whole`` or not.

        Args:
            budget: bytes of JSON, shared by the files.
        """
        files = sorted(self._folder.glob("*.jsonl"))[:12]
        shows: dict[str, Any] = {}
        used: dict[bytes, tuple[dict[str, Any], int]] = {}
        for path in files:
            lines, whole = _lines(path)
            by_step = _by_step(lines)
            records = self._choose(by_step, budget // len(files), used)
            read = sum(map(len, by_step.values()))
            shows[readable(path.stem, 200)] = {"records": records, "read": read, "whole": whole}
        self._made = used
        return shows

    def _choose(
        self,
        by_step: Mapping[float, list[bytes]],
        budget: int,
        used: dict[bytes, tuple[dict[str, Any], int]],
    ) -> list[dict[str, Any]]:
        steps = sorted(by_step)
        chosen: dict[float, list[dict[str, Any]]] = {}
        for index in _spread(len(steps)):
            lines = by_step[steps[index]]
            made = [self._made.get(line) or _for_page(line) for line in lines]
            size = sum(size for _, size in made)
            if size > budget and chosen:
                break
            budget -= size
            used |= zip(lines, made, strict=True)
            chosen[steps[index]] = [record for record, _ in made]
        return [record for step in sorted(chosen) for record in chosen[step]]


def _lines(path: Path) -> tuple[list[bytes], bool]:
    """The lines of a file, or of parts of a long one; and whether they are all."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if size <= _READ:
                file.seek(0)
                return file.read().split(b"\n"), True
            part, distance = _READ // _PARTS, _READ // _PARTS
            while size // distance >= _PARTS - 1:
                distance *= 2
            lines: list[bytes] = []
            for start in [*range(0, size - part, distance), size - part]:
                file.seek(start)
                # The ends of lines with which a part begins and ends are no JSON.
                lines += file.read(part).split(b"\n")
            return lines, False
    except OSError:
        return [], True


def _by_step(lines: list[bytes]) -> dict[float, list[bytes]]:
    """The lines that hold a record, by its step."""
    found: dict[float, list[bytes]] = {}
    for line in lines:
        # All records at once would be many times as large as the file.
        record = parse_record(line)
        if record is not None:
            step = record.get("step")
            at = step if isinstance(step, (int, float)) and abs(step) < LARGEST_STEP else 0
            found.setdefault(at, []).append(line)
    return found


def _spread(count: int) -> Iterator[int]:
    """All numbers below ``count``: the ends, then multiples of smaller and smaller powers of 2."""
    if count:
        yield 0
    if count > 1:
        yield count - 1
    distance = 1 << max(0, count.bit_length() - 1)
    while distance:
        # Those of the larger powers were there before; the newest ones come first.
        for number in range(count - 1 - (count - 1) % distance, 0, -distance):
            if number % (2 * distance) and number != count - 1:
                yield number
        distance //= 2


def _for_page(line: bytes) -> tuple[dict[str, Any], int]:
    """What a page shows of a record, and its bytes there."""
    record = parse_record(line) or {}
    tokens = record.get("tokens")
    made: dict[str, Any] = readable({k: v for k, v in record.items() if k != "tokens"})
    if isinstance(tokens, Mapping):
        made["tokens"] = {
            readable(key, 200): [
                readable(str(item) if key == "text" else item, 200) for item in values[:_TOKENS]
            ]
            for key, values in tokens.items()
            if isinstance(values, list)
        }
        if isinstance(count := tokens.get("count"), int):
            made["tokens"]["count"] = readable(count)
    written = orjson.dumps(made)
    # The page writes `<` as an escape of six characters.
    return made, len(written) + 5 * written.count(b"<")


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
