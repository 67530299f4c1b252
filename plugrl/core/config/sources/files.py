"""Files that a configuration names: found beside the file that wrote the path, and read."""

from __future__ import annotations

import glob
import os
import stat
from pathlib import Path

from plugrl.core.config.sources.origins import Origin
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.working_folder import display_path


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
    path = Path(os.path.expanduser(text))
    folders = [origin.folder] if origin is not None and origin.folder is not None else []
    return [folder / path for folder in folders] + [Path.cwd() / path]


#: Where the kernel makes the files.
_OF_THE_KERNEL = (Path("/proc"), Path("/sys"))
#: Bytes of a folder's path: Linux allows 4,096 for a file in it.
_LONGEST_PATH = 3500


def _size(name: str) -> int:
    return len(os.fsencode(name))


def folder_fault(path: Path) -> str | None:
    """Why no folder can be made at ``path``, nor files in one that is there; None: it can.

    Nothing is written to find out.
    """
    remedy = "name another folder"
    if "\0" in str(path):
        return f"{str(path)!r} has a null character, which no path has; {remedy}"
    if max(map(_size, path.parts)) > 255 or _size(str(path)) > _LONGEST_PATH:
        return f"{path} is longer than file systems allow; {remedy}"
    above = next(each for each in (path, *path.parents) if os.path.lexists(each))
    shown = display_path(above)
    try:
        mode = os.stat(above).st_mode
    except OSError as error:
        return f"{shown}: {error.strerror}; {remedy}"
    if not stat.S_ISDIR(mode):
        return f"{shown} is not a folder; {remedy}"
    # Root may write anywhere, but for folders of which the system itself makes the files.
    kernel = any(above.resolve().is_relative_to(each) for each in _OF_THE_KERNEL)
    effective = os.access in os.supports_effective_ids
    if kernel or not os.access(above, os.W_OK | os.X_OK, effective_ids=effective):
        return f"{shown} is not writable; change its permissions or {remedy}"
    return None


#: Bytes of such a file: a hundred times what anybody has written by hand.
MAX_BYTES = 1_000_000


def read_small_text(path: Path, name: str = "") -> str:
    """The text of a regular file of at most :data:`MAX_BYTES`.

    Args:
        path: the file; a link is followed.
        name: what messages call it; by default its path.

    Raises:
        ConfigError: it is no regular file (a pipe would be waited for, a device has no end), it is
            too large, cannot be read, or is not UTF-8.
    """
    name = name or str(path)
    try:
        # Opening a pipe would wait for somebody to write into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"{name}: not a regular file; name a file of text")
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{name}: larger than {MAX_BYTES / 1e6:g} MB, which no file written by hand is; data "
            "belongs in files that data.data_files names"
        )
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name}: not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None
