"""The folder of a run's checkpoints: in the run folder, or below ``settings.checkpoint_path``.

In the second case each run has a folder of its own there, named after the run, and ``checkpoints``
in the run folder is a link to it. Every command therefore finds them, and runs never share any.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.working_folder import display_path
from plugrl.core.run.atomic_writes import UNFINISHED, disk_error
from plugrl.core.run.folder import CHECKPOINTS

_SETTING = "settings.checkpoint_path"


def create_checkpoint_folder(run: Path, elsewhere: str | None) -> None:
    """Create the folder for the checkpoints of a new run.

    Args:
        run: the run folder, which may still have its hidden name.
        elsewhere: the folder for the checkpoints of all runs; None: use the run folder.

    Raises:
        UsageError: it cannot be written, or is the folder of the runs themselves.
        RunError: the disk is full.
    """
    link = run / CHECKPOINTS
    if elsewhere is None:
        link.mkdir()
        return
    name = run.name.removeprefix(UNFINISHED)
    place = Path(os.path.expanduser(elsewhere)).absolute() / name
    try:
        if os.path.realpath(place) == os.path.realpath(run.parent / name):
            raise ConfigError(
                f"{_SETTING} {elsewhere} is where the run folders lie; write another folder, or "
                "leave it out: each run folder has its own checkpoints"
            )
        place.mkdir(parents=True)
        link.symlink_to(place, target_is_directory=True)
        # An existing folder may still be read-only.
        probe = place / f"{UNFINISHED}probe"
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        with contextlib.suppress(OSError):
            place.rmdir()
        raise disk_error(error, "make the folder of the checkpoints", place, _SETTING) from error


def checkpoint_folder(run: Path, *, owned: bool = False) -> Path:
    """The folder of a run's checkpoints.

    Args:
        run: the run folder.
        owned: whether the caller will write to it.

    Raises:
        ConfigError: the link leads nowhere; or the caller will write, and the folder belongs to the
            run that this one is a copy of.
    """
    link = run / CHECKPOINTS
    if not link.is_symlink():
        return link
    place = Path(os.readlink(link))
    if not link.is_dir():
        raise ConfigError(
            f"the checkpoints of {display_path(run)} lie in {place}, which is not there; mount or "
            f"restore it, or delete {display_path(link)} to begin without them"
        )
    if owned and place.name != run.absolute().name:
        raise ConfigError(
            f"the checkpoints of {display_path(run)} are those of the run {place.name}, of which "
            f"it is a copy; put a copy of {place} in the place of {display_path(link)}"
        )
    return link
