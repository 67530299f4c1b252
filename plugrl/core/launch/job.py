"""From a checked configuration to the job that a launcher sends."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from plugrl.__about__ import __version__
from plugrl.core.config.hidden import (
    last_name,
    leaves,
    names_secret,
    redacted,
    redacted_words,
    without_credentials,
)
from plugrl.core.config.schemas.resource import ResourceConfig
from plugrl.core.config.sources.compose import ComposedConfig
from plugrl.core.config.sources.origins import KeyPath, dotted, nearest
from plugrl.core.config.sources.reader import read_file
from plugrl.core.config.validated import ValidatedConfig
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.launch.files import code_files, is_named_by_path, traveling_files
from plugrl.core.launch.launcher import LaunchJob
from plugrl.core.plugins.kinds import OWN
from plugrl.core.plugins.registry import Registry

_VARIABLE = re.compile(r"\$\{\s*(?:oc\.env\s*:|env\.)\s*([A-Za-z_]\w*)")
#: Values that stand where servers want some key, and are none.
_NO_KEY = frozenset({"EMPTY", "none", "unused", "dummy"})
#: Which plugins a process may use.
_SELECTION = ("PLUGRL_PLUGINS", "PLUGRL_PLUGINS_BLOCKED")
_EXPORT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\S+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")


def make_job(
    config: str,
    overrides: Sequence[str],
    composed: ComposedConfig,
    validated: ValidatedConfig,
    registry: Registry,
    *,
    config_path: Sequence[str] = (),
    plugins: Sequence[str] = (),
    tag: str | None = None,
    resume: str | None = None,
    engines: bool = True,
    now: datetime | None = None,
) -> LaunchJob:
    """The job of a configuration that was checked here.

    Args:
        config: the file or the recipe, as the user named it.
        overrides: ``key=value`` texts.
        composed: what ``config`` and ``overrides`` make.
        validated: the same, checked.
        registry: which components it uses.
        config_path: further folders of ``defaults``.
        plugins: modules and files that are imported first (``plugrl -p``).
        tag: ends the name of the job; None: the time.
        resume: a run that the job continues, by its path, id, experiment or ``latest``.
        engines: whether it needs machines for inference engines of its own.
        now: the time; None: that of the clock.

    Raises:
        ConfigError: a file cannot travel, or a credential is written where it would.
        UsageError: the tag makes no name.
    """
    refuse_plain_secrets(composed, overrides)
    folder = Path.cwd()
    source = composed.source
    named = config if source is None or not is_named_by_path(source) else _relative(source, folder)
    first = [word for plugin in plugins for word in ("-p", plugin)]
    runs = str(validated.tree["settings"]["runs_folder"])
    if resume is not None:
        words = [*first, "resume", resume]
    else:
        paths = [w for each in config_path for w in ("--config-path", each)]
        words = [*first, "train", named, *overrides, *paths]
    files = {*traveling_files(composed, validated), *_plugin_files(plugins)}
    script = validated.tree["environment"]["setup_script"]
    if script and Path(script) in files:
        refuse_exported_secrets(Path(script))
    names = sorted({n for text in composed.references.values() for n in _VARIABLE.findall(text)})
    selection = [name for name in _SELECTION if name in os.environ]
    return LaunchJob(
        name=job_name(str(validated.tree["experiment_name"]), tag, now),
        words=tuple(words),
        folder=folder,
        resumes=resume is not None,
        files=tuple(sorted(files)),
        runs_folder=runs,
        resource=ResourceConfig.from_tree(validated.tree["resource"]),
        variables={
            name: os.environ[name]
            for name in (*names, *selection)
            if not names_secret(name) and name in os.environ
        },
        secrets=tuple(name for name in names if names_secret(name)),
        packages=_packages(registry),
        engines=engines,
    )


def job_name(experiment: str, tag: str | None, now: datetime | None = None) -> str:
    """The name of a job: the experiment's with a tag or the time, of letters, digits and ``-``.

    Raises:
        UsageError: nothing is left of one of them.
    """
    time = f"{(now or datetime.now(UTC)):%Y%m%d-%H%M%S}"
    parts = []
    for what, text in (("experiment_name", experiment), ("-t", time if tag is None else tag)):
        part = re.sub(r"[\s_.:/]+", "-", text).strip("-")
        if not _NAME.fullmatch(part):
            raise UsageError(
                f"{what} {text!r} makes no name of a job; use letters, digits, -, _ and . of ASCII"
            )
        parts.append(part)
    return "-".join(parts)


def refuse_plain_secrets(composed: ComposedConfig, overrides: Sequence[str]) -> None:
    """Refuse credentials that would travel in a file or on a command line.

    Raises:
        ConfigError: one is written as itself, not as a reference to an environment variable.
    """
    for word, shown in zip(overrides, redacted_words(overrides), strict=True):
        key, _, value = word.partition("=")
        harmless = value in _NO_KEY or _VARIABLE.search(value) or key.startswith("resource.secret")
        if word != shown and not harmless:
            raise ConfigError(f"{key} (command line): {_REMEDY}")
    held = {text for path, text in leaves(composed.tree, ()) if path in composed.references}
    for path, text in leaves(composed.tree, ()):
        if path not in composed.references and text not in held and _is_secret(path, text):
            where = nearest(composed.origins, path)
            raise ConfigError(f"{dotted(path)} ({where}): {_REMEDY}")
    for file in composed.files:
        # What a later file overrides would travel too, and comments.
        tree, _, text = read_file(file, [])
        for path, value in leaves(tree, ()):
            if _is_secret(path, value):
                raise ConfigError(f"{dotted(path)} ({file.name}): {_REMEDY}")
        if without_credentials(text) != text:
            raise ConfigError(f"{file.name}: {_REMEDY}")


def _is_secret(path: KeyPath, value: object) -> bool:
    """Whether a credential is written out at a path; a reference to one is none."""
    if not isinstance(value, str) or value in _NO_KEY or _VARIABLE.search(value):
        return False
    # These say where Kubernetes keeps them, as their schema checks.
    return path[:2] != ("resource", "secrets") and redacted(last_name(path), value) != value


_REMEDY = (
    "a credential that is written out would be sent along; write it as ${oc.env:NAME}, and keep "
    "the variable where the job runs"
)


def refuse_exported_secrets(script: Path) -> None:
    """Refuse a setup script that would travel with a credential.

    Raises:
        ConfigError: it sets a variable of one to a text.
    """
    for found in _EXPORT.finditer(script.read_text(encoding="utf-8", errors="replace")):
        name, value = found.groups()
        if names_secret(name) and "$" not in value and value.strip("'\"") not in _NO_KEY | {""}:
            raise ConfigError(
                f"{script.name} sets {name} to a credential, which would be sent along; keep the "
                "variable where the job runs"
            )


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.absolute(), folder)


def _plugin_files(plugins: Iterable[str]) -> Iterator[Path]:
    for name in plugins:
        if name.endswith(".py") and not os.path.isabs(name):
            yield from code_files(Path(name).absolute())


def _packages(registry: Registry) -> dict[str, str]:
    """The distributions that the configuration uses, with their versions here."""
    used = {r.distribution for r in registry.used if r.distribution and r.distribution != OWN}
    return {OWN: __version__} | {name: metadata.version(name) for name in sorted(used)}
