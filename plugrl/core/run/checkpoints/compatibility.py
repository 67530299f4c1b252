"""Checks that the current configuration still fits a checkpoint or a dump."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plugrl.core.config.hidden import withhold
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.working_folder import display_path
from plugrl.core.run.checkpoints.checkpoint import BrokenCheckpointError, candidates, read_manifest

log = logging.getLogger("plugrl.run")

#: Key of the manifest under which the configuration stands.
CONFIG = "config"
#: Keys that determine the shape of weights, the order of data, or random numbers.
_FIXED = re.compile(
    r"(trainer\.phases\[\d+\]\.)*"
    r"(seed|name|data\.(seed|shuffle)|trainer\.type"
    r"|models\.[^.]+(\.(train|fine_tune)(\.type)?|\.(source|adapter)\b.*)?)"
)
#: Sections that do not affect what is learned.
_FREE = ("settings",)
_ABSENT = object()
_SHOWN = 3


def json_copy(tree: Any) -> Any:
    """``tree`` after a round trip through JSON, to compare it with one read from a file."""
    return json.loads(json.dumps(tree, default=str))


def check_resume(checkpoints: Path, tree: Mapping[str, Any]) -> None:
    """Check that a configuration fits the newest checkpoint of the run to be resumed.

    Raises:
        ConfigError: a value that the weights or the order of data depend on has changed.
    """
    for path in candidates(checkpoints):
        try:
            manifest = read_manifest(path)
        except BrokenCheckpointError:
            continue
        _refuse(manifest, tree, str(display_path(path)), "or start a new run")
        return


def warn_about_changes(path: Path, tree: Mapping[str, Any]) -> None:
    """Log every other value that has changed since the checkpoint ``path`` was saved."""
    for line in _difference_lines(read_manifest(path), tree, fixed=False):
        log.warning("resuming with a changed value: %s", line)


def check_dump(path: Path, tree: Mapping[str, Any]) -> None:
    """Check that a configuration fits a dump; warn about harmless changes.

    Raises:
        ConfigError: a value that the weights depend on has changed.
    """
    manifest = read_manifest(path)
    _refuse(
        manifest, tree, str(display_path(path)), "because a step is repeated with its own model"
    )
    for line in _difference_lines(manifest, tree, fixed=False):
        log.warning("repeating a step with a changed value: %s", line)


def _refuse(manifest: Mapping[str, Any], tree: Mapping[str, Any], made: str, remedy: str) -> None:
    lines = list(_difference_lines(manifest, tree, fixed=True))
    if lines:
        more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        raise ConfigError(
            f"{made} was saved with other values: {'; '.join(lines[:_SHOWN])}{more}; restore the "
            f"{'value' if len(lines) == 1 else 'values'} in config.yaml, {remedy}"
        )


def _difference_lines(
    manifest: Mapping[str, Any], tree: Mapping[str, Any], *, fixed: bool
) -> Iterator[str]:
    """One line for each changed value among those that must, or need not, stay the same."""
    before = manifest.get(CONFIG)
    if not isinstance(before, dict):
        # Older versions did not save the configuration.
        return
    # Older versions saved credentials too, and a user may have edited the file.
    was, now = (json_copy(withhold(one)[0]) for one in (before, tree))
    for path, old, new in _differences(was, now, ""):
        if path.partition(".")[0] not in _FREE and bool(_FIXED.fullmatch(path)) == fixed:
            yield f"{path} was {_format_value(old)} and is now {_format_value(new)}"


def _differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            inner = f"{path}.{key}" if path else key
            yield from _differences(old.get(key, _ABSENT), new.get(key, _ABSENT), inner)
    elif (
        isinstance(old, list)
        and isinstance(new, list)
        and any(isinstance(item, dict) for item in [*old, *new])
    ):
        for index in range(max(len(old), len(new))):
            was, now = (part[index] if index < len(part) else {} for part in (old, new))
            yield from _differences(was, now, f"{path}[{index}]")
    elif old is _ABSENT or new is _ABSENT or _differ(old, new):
        yield path, old, new


def _differ(old: Any, new: Any) -> bool:
    # 16 equals 16.0, and NaN equals NaN.
    return bool(old != new) and json.dumps(old) != json.dumps(new)


def _format_value(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
