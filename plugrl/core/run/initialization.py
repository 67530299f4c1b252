"""The first files of a run folder, and the checks before an existing run is reopened."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from plugrl.core.config.hidden import (
    PRIVATE_FILE,
    Withheld,
    fill,
    private_text,
    read_private,
    redacted_words,
    redacted_yaml,
)
from plugrl.core.config.sources.origins import DEFAULT, Origins, dotted
from plugrl.core.errors import ConfigError, PluginError
from plugrl.core.plugins.kinds import ARGUMENT
from plugrl.core.plugins.user_code.working_folder import absolute_path, display_path
from plugrl.core.run import folder as folders
from plugrl.core.run.atomic_writes import write_json, write_text
from plugrl.core.run.checkpoints.checkpoint import candidates, step_of
from plugrl.core.run.checkpoints.folder import checkpoint_folder, create_checkpoint_folder
from plugrl.core.run.lock import RunLock
from plugrl.core.run.records.environment import (
    ENVIRONMENT_FILE,
    ComponentRecord,
    describe_environment,
    plugin_changes,
    plugin_lock,
)
from plugrl.core.run.records.records import METRICS_FILE, Status, read_status

log = logging.getLogger("plugrl.run")
#: Which file and line, or the command line, wrote each value that is no default.
ORIGINS_FILE = "config.origins.json"


class ValidatedLike(Protocol):
    """The part of a validated configuration that a run uses."""

    @property
    def tree(self) -> Mapping[str, Any]:
        """The whole configuration with its defaults, as plain values."""


class ComposedLike(Protocol):
    """The part of a composed configuration that a run uses."""

    @property
    def tree(self) -> Mapping[str, Any]:
        """Its values."""

    @property
    def input_text(self) -> str:
        """The text of the main file."""

    @property
    def overrides(self) -> Sequence[str]:
        """The ``key=value`` arguments of the command line."""


def create_run_folder(
    tree: Mapping[str, Any],
    public: Mapping[str, Any],
    apart: Sequence[Withheld],
    composed: ComposedLike,
    records: Iterable[ComponentRecord],
    installed: Iterable[ComponentRecord] = (),
    origins: Origins | None = None,
) -> tuple[Path, RunLock]:
    """Create the folder of a new run with its first files.

    Args:
        tree: the configuration.
        public: the configuration without secrets.
        apart: the secrets, for a file that only its owner can read.
        composed: the files and overrides that it was composed from.
        records: components in use.
        installed: further components.
        origins: where each value of ``tree`` was written.

    Raises:
        UsageError: the runs folder is not writable.
        RunError: the disk is full.
    """
    from plugrl.core.config.sources.writer import dump_yaml

    def write_files(path: Path) -> None:
        write_text(path / folders.CONFIG_FILE, dump_yaml(public))
        if apart:
            write_text(path / PRIVATE_FILE, private_text(apart), mode=0o600)
        write_text(path / "config.input.yaml", redacted_yaml(composed.input_text))
        overrides = redacted_words(composed.overrides)
        write_text(path / "overrides.txt", "".join(f"{line}\n" for line in overrides))
        write_json(path / ORIGINS_FILE, _origins_record(origins or {}))
        write_json(path / folders.LOCK_FILE, plugin_lock(records, installed))
        write_json(path / ENVIRONMENT_FILE, describe_environment())
        (path / "samples").mkdir()
        (path / METRICS_FILE).touch()
        Status(path).write()
        create_checkpoint_folder(path, tree.get("settings", {}).get("checkpoint_path"))

    root = absolute_path(tree.get("settings", {}).get("runs_folder", "runs"))
    return folders.create(root, str(tree.get("experiment_name", "experiment")), write_files)


def _origins_record(origins: Origins) -> dict[str, Any]:
    """The place that wrote each key, and which keys differ from the recipe.

    Those are the keys that no recipe of plugrl wrote, or where none is used, no file.
    """
    written = {dotted(k): origin for k, origin in origins.items() if origin != DEFAULT}
    recipes = Path(str(files("plugrl"))) / "recipes"
    in_files = {k for k, origin in written.items() if origin.line is not None}
    shipped = {k for k in in_files if Path(written[k].source).resolve().is_relative_to(recipes)}
    differing = [key for key in written if key not in (shipped or in_files)]
    return {"origins": {k: str(origin) for k, origin in written.items()}, "differing": differing}


def read_config(folder: Path, what: str = "resumed", *, private: bool = True) -> dict[str, Any]:
    """Read the resolved configuration of a run.

    Args:
        folder: the run folder.
        what: what is done with the run, for messages.
        private: fill in the secrets that ``config.yaml`` withholds.

    Raises:
        ConfigError: ``config.yaml`` is missing or damaged.
    """
    import yaml

    path = folder / folders.CONFIG_FILE
    try:
        tree = read_yaml(path)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{display_path(folder)} is not a run that can be {what}: {reason}"
        ) from error
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{folder} is not a run that can be {what}: {path} does not contain a mapping"
        )
    if private:
        fill(tree, read_private(folder))
    return tree


def read_yaml(path: Path) -> Any:
    """The plain values of a file of a run.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not text.
        YAMLError: it is not YAML.
    """
    import yaml

    # With libyaml, if PyYAML was built with it, this takes a seventh of the time.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # type: ignore[no-untyped-call]


def is_complete(folder: Path) -> bool:
    """Whether a run is done and its newest checkpoint, if any, is that of its last step.

    A run that ended at a limit is not complete, so that it can be resumed with a higher one.
    """
    before = folders.summarize(folder)
    if before.state != "done" or read_status(folder).get("open"):
        return False
    steps = [step_of(path) for path in candidates(checkpoint_folder(folder))]
    return not steps or steps[0] == before.step


def functions_of(folder: Path, tree: Mapping[str, Any]) -> list[str]:
    """Names of the functions of a Python program that a run was given and still asks for.

    Args:
        folder: the run folder.
        tree: its configuration, in whose order they come.
    """
    try:
        lock = json.loads((folder / folders.LOCK_FILE).read_text(encoding="utf-8"))
        given = {entry["name"] for entry in lock if entry.get("source") == ARGUMENT}
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return []
    return list(dict.fromkeys(name for name in _types(tree) if name in given))


def _types(value: Any) -> Iterator[Any]:
    """The types of all sections in a configuration, in its order."""
    if isinstance(value, Mapping):
        if isinstance(value.get("type"), str):
            yield value["type"]
        value = value.values()
    for child in value:
        if isinstance(child, (Mapping, list)):
            yield from _types(child)


def check_plugins(folder: Path, records: Iterable[ComponentRecord], *, strict: bool) -> None:
    """Compare the components in use with those that the run started with.

    Raises:
        PluginError: ``plugins.strict`` is set and something differs.
    """
    try:
        before = json.loads((folder / folders.LOCK_FILE).read_text(encoding="utf-8"))
        changes = plugin_changes(before, plugin_lock(records))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        changes = [f"{folder / folders.LOCK_FILE} cannot be read ({error})"]
    if changes and strict:
        raise PluginError(
            f"the plugins of {display_path(folder)} changed: {'; '.join(changes)}; install what "
            "it began with or set plugins.strict=false"
        )
    for change in changes:
        log.warning("resuming with other plugins: %s", change)
