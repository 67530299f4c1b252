"""Defaults and built dataclasses as plain values, and the files that paths mean."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugrl.core.config.sources.origins import Origin


def to_plain(value: Any) -> Any:
    """Copy a default or a built dataclass to plain values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def is_code_file(text: str) -> bool:
    """Whether ``text`` means ``file.py`` or ``file.py:name``, not ``module:name``."""
    return text.partition(":")[0].endswith(".py")


def locate(text: str, origin: Origin | None) -> Path | None:
    """Find the file of a path: beside the file that wrote it, then in the working directory."""
    for candidate in _candidates(text, origin):
        try:
            if candidate.exists():
                return candidate.absolute()
        except (OSError, ValueError):
            return None
    return None


def locate_pattern(text: str, origin: Origin | None) -> Path | None:
    """The absolute form of a pattern such as ``data/*.jsonl`` that some file matches, as above."""
    if not any(character in text for character in "*?["):
        return None
    for candidate in _candidates(text, origin):
        if any(True for _ in glob.iglob(str(candidate), recursive=True)):
            return candidate.absolute()
    return None


def _candidates(text: str, origin: Origin | None) -> list[Path]:
    path = Path(text).expanduser()
    folders = [origin.folder] if origin is not None and origin.folder is not None else []
    return [folder / path for folder in folders] + [Path.cwd() / path]
