"""Dumps: batches saved with everything needed to repeat their step, for ``plugrl replay``."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from plugrl.core.errors import ConfigError, PlugrlError
from plugrl.core.plugins.user_code.working_folder import display_path
from plugrl.core.run.checkpoints.checkpoint import load, write_state

FOLDER = "dumps"
log = logging.getLogger("plugrl.run")


class Dumps:
    """The dumps of one run.

    Args:
        folder: where dumps are written, one folder each, in the format of checkpoints; None:
            nowhere.
        about: further entries for their manifests.
    """

    def __init__(self, folder: Path | None, about: Mapping[str, Any] | None = None) -> None:
        self._folder = folder
        self._about = dict(about or {})

    def write(self, what: str, step: int, contents: Any) -> Path | None:
        """Write ``contents`` as the dump ``what`` of ``step``.

        Returns:
            The folder; None if it cannot be written, which is only logged.
        """
        if contents is None or self._folder is None:
            return None
        name = f"step-{step:08d}-{re.sub(r'[^A-Za-z0-9]+', '-', what).strip('-')}"
        path = self._folder / name
        if path.exists():
            return path
        contents = contents() if callable(contents) else contents
        state = {"what": what, "step": step, "batch": _plain(contents)}
        try:
            write_state(path, state, {"step": step, **self._about}, lenient=True)
        except (PlugrlError, OSError) as error:
            # The guard's own message matters more than its evidence.
            log.warning("cannot write the batch to %s (%s)", display_path(path), error)
            return None
        return path


def read(run: Path, step: int) -> list[tuple[Path, dict[str, Any]]]:
    """Read the dumps of ``step`` in a run folder, in the order in which they were written.

    Raises:
        ConfigError: there are none; the message lists the steps that have dumps.
        RunError: one is damaged.
    """
    found = sorted((run / FOLDER).glob("step-*"), key=lambda path: path.stat().st_mtime_ns)
    here = [path for path in found if _step_of(path) == step]
    if not here:
        steps = sorted({_step_of(path) for path in found})
        known = f"it has dumps of step {', '.join(map(str, steps))}" if steps else "it has none"
        raise ConfigError(
            f"{run} has no dump of step {step}; {known}. A guard that finds a number which is "
            "not finite writes one, and runtime_monitor.dump_steps names steps to keep"
        )
    return [(path, load(path)) for path in here]


def _step_of(path: Path) -> int:
    digits = path.name.split("-")[1]
    return int(digits) if digits.isdigit() else -1


def _plain(contents: Any) -> Any:
    if is_dataclass(contents) and not isinstance(contents, type):
        return {field.name: getattr(contents, field.name) for field in fields(contents)}
    return contents
