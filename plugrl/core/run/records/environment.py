"""``environment.json`` and ``plugins.lock.json``: the software and machine of a run."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from plugrl.__about__ import __version__
from plugrl.core.config.hidden import redacted_words
from plugrl.core.plugins.kinds import FORMER_KINDS

ENVIRONMENT_FILE = "environment.json"
#: Variables that change speed or numbers. Others may hold secrets and are not recorded.
_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTHONHASHSEED",
    "PLUGRL_PLUGINS",
    "PLUGRL_PLUGINS_BLOCKED",
)


class ComponentRecord(Protocol):
    """The part of a registry record that the lock file needs."""

    @property
    def kind(self) -> str:
        """The kind, such as trainer."""

    @property
    def name(self) -> str:
        """The name that a configuration writes."""

    @property
    def target(self) -> str:
        """``module:attribute``."""

    @property
    def distribution(self) -> str | None:
        """The package that provides it; None: user code."""

    @property
    def version(self) -> str | None:
        """The version of that package."""

    @property
    def file(self) -> str | None:
        """The user file that it was loaded from."""

    @property
    def source(self) -> str:
        """How it was found."""


def describe_environment() -> dict[str, Any]:
    """Collect versions, machine and command line, without importing anything heavy."""
    packages = dict(map(_name_and_version, metadata.distributions()))
    described: dict[str, Any] = {
        "plugrl": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "command": redacted_words(sys.argv),
        "working_folder": os.getcwd(),
        "git_commit": _git_commit(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "gpus": [],
        "packages": {name: packages[name] for name in sorted(packages, key=str.lower) if name},
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        count = torch.cuda.device_count()
        described["gpus"] = [torch.cuda.get_device_name(i) for i in range(count)]
    return described


def _name_and_version(dist: metadata.Distribution) -> tuple[str, str | None]:
    """Name and version of a package, from its headers alone.

    ``importlib.metadata`` parses the whole description, twice, which for some hundred packages
    takes longer than a small run.
    """
    text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or dist.read_text("") or ""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line:
            break
        key, _, value = line.partition(":")
        found.setdefault(key, value.strip())
        if "Name" in found and "Version" in found:
            break
    return found.get("Name", ""), found.get("Version")


def _git_commit() -> str | None:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            capture_output=True,
            encoding="ascii",
            errors="replace",
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def plugin_lock(
    used: Iterable[ComponentRecord], installed: Iterable[ComponentRecord] = ()
) -> list[dict[str, Any]]:
    """List components with distribution, version and target; files also with their hash."""
    listed: dict[tuple[str, str, str], dict[str, Any]] = {}
    for is_used, records in ((True, used), (False, installed)):
        for record in records:
            key = (record.kind, record.name, record.target)
            if key not in listed:
                listed[key] = {
                    "kind": record.kind,
                    "name": record.name,
                    "distribution": record.distribution,
                    "version": record.version,
                    "target": record.target,
                    "file": record.file,
                    "sha256": _file_hash(record.file),
                    "source": record.source,
                    "used": is_used,
                }
    return [listed[key] for key in sorted(listed)]


def _file_hash(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return None


def plugin_changes(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]
) -> list[str]:
    """One line for each used component that differs from what the run started with."""
    old = {(_kind(e), e.get("name")): e for e in before if e.get("used")}
    new = {(_kind(e), e.get("name")): e for e in after if e.get("used")}
    changes = []
    for key, entry in new.items():
        was = old.get(key)
        if was is None:
            continue
        what = f"{entry['kind']} {entry['name']}"
        if (was.get("distribution"), was.get("version")) != (
            entry["distribution"],
            entry["version"],
        ):
            changes.append(f"{what} was {_source(was)} and is now {_source(entry)}")
        elif was.get("target") != entry["target"]:
            changes.append(f"{what} was {was.get('target')} and is now {entry['target']}")
        elif was.get("sha256") != entry["sha256"]:
            changes.append(f"{what} comes from {entry['file']}, which was edited since")
    return changes


def _kind(entry: Mapping[str, Any]) -> str:
    kind = str(entry.get("kind"))
    return FORMER_KINDS.get(kind, kind)


def _source(entry: Mapping[str, Any]) -> str:
    if entry.get("distribution") is None:
        return f"the file {entry.get('file')}" if entry.get("file") else "registered in Python"
    return f"{entry['distribution']} {entry.get('version')}"
