"""Defaults and built dataclasses as plain values, and the files that paths mean."""

from __future__ import annotations

import dataclasses
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
    path = Path(text).expanduser()
    folders = [origin.folder] if origin is not None and origin.folder is not None else []
    for candidate in [folder / path for folder in folders] + [Path.cwd() / path]:
        try:
            if candidate.exists():
                return candidate.absolute()
        except (OSError, ValueError):
            return None
    return None
