"""Code and other files that the configuration names, on machines that do not have them.

The driver puts their bytes into Ray's object store once. A machine on which a file is missing, or
is another one, keeps a copy of its folder of its own, by the digest of the contents.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from plugrl.core.errors import ConfigError

#: More bytes than these are not sent along with a run.
LARGEST = 256 * 2**20
_CACHES = frozenset({"__pycache__", "node_modules"})

#: The contents of files, by their absolute paths.
Files = Mapping[str, bytes]


def collect_files(code: Iterable[str], values: Any, listed: Iterable[str]) -> dict[str, bytes]:
    """The files that actors need, with their contents.

    Args:
        code: Python files of users; those beside and below them come along, as they may import one
            another.
        values: settings; the texts that are absolute paths of files.
        listed: further files and folders, of ``settings.cluster.files``.

    Raises:
        ConfigError: they are too large.
    """
    chosen = [*(each for file in code for each in _python_files(os.path.dirname(file)))]
    chosen += [text for text in _texts(values) if os.path.isabs(text) and os.path.isfile(text)]
    for path in map(os.path.abspath, listed):
        chosen += [path] if os.path.isfile(path) else _all_files(path)
    found: dict[str, bytes] = {}
    size = 0
    for path in dict.fromkeys(chosen):
        size += os.path.getsize(path)
        if size > LARGEST:
            raise ConfigError(
                f"the files that actors need are larger than {LARGEST // 2**20} MB, with {path}; "
                "keep large ones in a folder that all machines share and out of the folder of the "
                "code"
            )
        found[path] = Path(path).read_bytes()
    return found


def provide(files: Files) -> dict[str, str]:
    """Have the files on this machine; give where the folders are that had to be copied.

    A folder of which every file is here already, with the same contents, stays where it is.
    """
    missing = [path for path, data in files.items() if not _is_there(path, data)]
    if not missing:
        return {}
    digest = hashlib.sha256()
    for path, data in sorted(files.items()):
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    home = Path(tempfile.gettempdir()) / f"plugrl-{os.getuid()}" / digest.hexdigest()[:16]
    if not home.is_dir():
        home.parent.mkdir(mode=0o700, exist_ok=True)
        if home.parent.stat().st_uid != os.getuid():
            raise PermissionError(f"{home.parent} belongs to somebody else")
        new = Path(tempfile.mkdtemp(dir=home.parent))
        for path, data in files.items():
            copy = new / path.lstrip(os.sep)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
        try:
            new.rename(home)
        except OSError:  # another actor was faster
            shutil.rmtree(new)
    folders = {os.path.dirname(path) for path in missing}
    return {folder: str(home / folder.lstrip(os.sep)) for folder in sorted(folders)}


def _is_there(path: str, data: bytes) -> bool:
    try:
        return os.path.getsize(path) == len(data) and Path(path).read_bytes() == data
    except OSError:
        return False


def _python_files(folder: str) -> Iterator[str]:
    """The Python files of a folder, and those of the packages in it."""
    yield from sorted(str(file) for file in Path(folder).glob("*.py"))
    for below in sorted(Path(folder).iterdir()):
        if (below / "__init__.py").is_file():
            yield from (file for file in _all_files(str(below)) if file.endswith(".py"))


def _all_files(folder: str) -> Iterator[str]:
    for above, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name not in _CACHES and not name.startswith(".")
        )
        yield from (os.path.join(above, name) for name in sorted(names))


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _texts(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _texts(value)
