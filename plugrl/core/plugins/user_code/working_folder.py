"""Paths that stay valid when user code changes the working directory.

Paths are made absolute once, when a run begins. Messages still show them as the user wrote them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

#: The paths that users wrote, by their absolute forms.
_given: dict[Path, Path] = {}


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """The absolute form of a path; :func:`display_path` knows how it was written."""
    given = Path(path)
    absolute = given.absolute()
    _given[absolute] = given
    return absolute


def display_path(path: Path) -> Path:
    """A path as messages show it: relative again if the user wrote it, or a folder above it, so."""
    for above in (path, *path.parents):
        if above in _given:
            return _given[above] / path.relative_to(above)
    return path


@contextlib.contextmanager
def preserve_working_folder() -> Iterator[None]:
    """Restore the working directory at the end, so that the next run starts there too."""
    try:
        before = os.getcwd()
    except FileNotFoundError:
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.chdir(before)
