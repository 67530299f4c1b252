"""Where files are, whatever code of users does with the working folder.

A path that a run is given is made absolute once, where the run begins. Messages go on to show it
as it was given.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

#: What was given, by what it was made to.
_given: dict[Path, Path] = {}


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """The absolute form of a path, which stays the same place when the working folder changes."""
    given = Path(path)
    absolute = given.absolute()
    _given[absolute] = given
    return absolute


def display_path(path: Path) -> Path:
    """How messages show a path: in the words of the path that it was settled from or lies below."""
    for above in (path, *path.parents):
        if above in _given:
            return _given[above] / path.relative_to(above)
    return path


@contextlib.contextmanager
def preserve_working_folder() -> Iterator[None]:
    """Go back to the working folder of now at the end, so that the next run begins there too."""
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
