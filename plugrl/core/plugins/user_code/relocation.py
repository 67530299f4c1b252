"""Files of the driver's machine that a process of another machine has elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_places: dict[str, str] = {}


def relocate(places: Mapping[str, str]) -> None:
    """Have the files and folders that are named here be looked up elsewhere.

    Args:
        places: absolute paths of the driver's machine, and where this one has them.
    """
    _places.update(places)


def relocated(path: str) -> str:
    """Where the file or folder ``path`` of the driver's machine is on this one."""
    for above in sorted(_places, key=len, reverse=True):
        if path == above or path.startswith(above + os.sep):
            return _places[above] + path[len(above) :]
    return path


def relocated_values(values: Any) -> Any:
    """``values`` with each text that is a path of a relocated file replaced."""
    if not _places:
        return values
    if isinstance(values, Mapping):
        return {key: relocated_values(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [relocated_values(value) for value in values]
    return relocated(values) if isinstance(values, str) else values
