"""Installed entry points, found in one pass over the metadata of the packages on ``sys.path``.

Nothing is imported here. The pass reads ``entry_points.txt`` of each installed distribution
itself, because ``importlib.metadata`` costs more start-up time than all the rest of a listing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from plugrl.core.errors import PluginError
from plugrl.core.plugins.kinds import KIND_OF_GROUP, KINDS, OWN
from plugrl.core.wording import close_names

HOOK_GROUP = OWN
COMMAND_GROUP = f"{OWN}.commands"
RECIPE_GROUP = f"{OWN}.recipes"
_MISSPELT = re.compile(rf"{OWN}[-_:/. ][^.]+", re.IGNORECASE)
ONLY_VARIABLE = "PLUGRL_PLUGINS"
BLOCKED_VARIABLE = "PLUGRL_PLUGINS_BLOCKED"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class EntryPoint:
    """One line of a distribution's ``entry_points.txt`` in a group of plugrl."""

    distribution: str
    group: str
    name: str
    target: str
    version: str
    location: str


@lru_cache(maxsize=4096)
def normalize(name: str) -> str:
    """A distribution or plugin name in the form in which names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSelection:
    """Which installed plugins may be used, decided before any of them is imported.

    ``only`` (when not ``None``) lists the names that are allowed, ``blocked`` the ones that are
    not. A name is that of a distribution or of an entry point. plugrl's own components are
    always allowed.
    """

    enabled: bool = True
    only: frozenset[str] | None = None
    blocked: frozenset[str] = frozenset()

    @classmethod
    def from_environment(cls) -> PluginSelection:
        """The selection of ``PLUGRL_PLUGINS`` (empty: none) and ``PLUGRL_PLUGINS_BLOCKED``."""
        only = os.environ.get(ONLY_VARIABLE)
        blocked = frozenset(_names(os.environ.get(BLOCKED_VARIABLE, "")))
        if only is None:
            return cls(blocked=blocked)
        names = frozenset(_names(only))
        return cls(enabled=bool(names), only=names, blocked=blocked)

    def without(self, names: Iterable[str]) -> PluginSelection:
        """This selection with more names blocked."""
        return replace(self, blocked=self.blocked | {normalize(name) for name in names})

    def export(self) -> None:
        """Put the selection into the environment, so that child processes make the same one."""
        if not self.enabled:
            os.environ[ONLY_VARIABLE] = ""
        elif self.only is not None:
            os.environ[ONLY_VARIABLE] = ",".join(sorted(self.only))
        if self.blocked:
            os.environ[BLOCKED_VARIABLE] = ",".join(sorted(self.blocked))

    def refusal(self, distribution: str | None, name: str) -> str | None:
        """Why this plugin may not be used (``disabled by ...``), or ``None`` when it may."""
        if distribution is None or normalize(distribution) == OWN:
            return None
        names = {normalize(distribution), normalize(name)}
        if not self.enabled:
            return f"disabled by --no-plugins or an empty {ONLY_VARIABLE}"
        if names & self.blocked:
            return "disabled by -p no:NAME or plugins.disable"
        if self.only is not None and not names & self.only:
            return f"not among {ONLY_VARIABLE}"
        return None


def _names(text: str) -> list[str]:
    return [normalize(part.strip()) for part in text.split(",") if part.strip()]


_cache: tuple[tuple[str, ...], tuple[EntryPoint, ...]] | None = None


def scan() -> tuple[EntryPoint, ...]:
    """All entry points of plugrl's groups, sorted by distribution, group and name.

    The result is kept for as long as ``sys.path`` stays the same, and only after a pass that
    succeeded, so that one transient failure does not hide the plugins for good.

    Raises:
        PluginError: a folder on ``sys.path`` exists but cannot be read for a passing reason.
    """
    global _cache
    paths = tuple(sys.path)
    if _cache is None or _cache[0] != paths:
        try:
            found = tuple(sorted(_scan(paths)))
        except OSError as error:
            raise PluginError(
                f"the installed packages cannot be listed: {error}; try again"
            ) from error
        _cache = (paths, found)
    return _cache[1]


def clear_cache() -> None:
    """Clear the cached scan, after a package was installed while the process runs."""
    global _cache
    _cache = None


def group_problem(group: str) -> str | None:
    """Why entries of ``group`` are never used, with the group that was meant; None: they are."""
    if group in (HOOK_GROUP, COMMAND_GROUP, RECIPE_GROUP, *KIND_OF_GROUP):
        return None
    known = (HOOK_GROUP, COMMAND_GROUP, RECIPE_GROUP, *(row.group for row in KINDS.values()))
    if group.lower() == OWN:
        return f"never used: there is no group [{group}]; write [{OWN}]"
    close = _close_groups(group)
    remedy = f"write [{OWN}.{close[0]}]" if close else f"groups: {', '.join(known)}"
    return f"never used: there is no group [{group}]; {remedy}"


def _close_groups(group: str) -> list[str]:
    groups = (COMMAND_GROUP, RECIPE_GROUP, *(row.group for row in KINDS.values()))
    known = [name.removeprefix(f"{OWN}.") for name in groups]
    return close_names(group[len(OWN) + 1 :], known, 1)


def _is_plugrl_group(group: str) -> bool:
    """Whether a group is one of plugrl's or a misspelt one, such as ``Plugrl-trainers``.

    A package ``plugrl-x`` may have groups of its own: another beginning than ``plugrl.`` counts
    only with the name of a kind, or nearly so, after it.
    """
    if group.lower() == OWN or group.startswith(f"{OWN}."):
        return True
    return bool(_MISSPELT.fullmatch(group)) and bool(_close_groups(group))


def owner_of(module: str, entries: Iterable[EntryPoint]) -> EntryPoint | None:
    """An entry point of the distribution that ``module`` belongs to, judged by the targets.

    The longest common package decides, and a package that two distributions share decides
    nothing.
    """
    parts = module.split(".")
    targets = [(entry.target.partition(":")[0].split("."), entry) for entry in entries]
    for length in range(len(parts), 0, -1):
        owners = [entry for target, entry in targets if target[:length] == parts[:length]]
        if owners:
            return owners[0] if len({entry.distribution for entry in owners}) == 1 else None
    return None


def _scan(paths: Iterable[str]) -> Iterator[EntryPoint]:
    seen: set[str] = set()
    for path in paths:
        folder = path or os.getcwd()
        try:
            names = sorted(os.listdir(folder))
        except (FileNotFoundError, PermissionError):
            continue
        except NotADirectoryError:
            yield from _scan_archive(folder, seen)
            continue
        for name in names:
            stem, extension = os.path.splitext(name)
            if extension not in (".dist-info", ".egg-info") or name.startswith("~"):
                continue
            distribution = normalize(stem.partition("-")[0])
            if distribution in seen:
                continue
            seen.add(distribution)
            yield from _read_distribution(os.path.join(folder, name))


def _read_distribution(location: str) -> Iterator[EntryPoint]:
    text = _read(os.path.join(location, "entry_points.txt"))
    if not text or OWN not in text.lower():
        return
    lines = list(_parse(text))
    if lines:
        header = _read(os.path.join(location, "METADATA")) or _read(
            os.path.join(location, "PKG-INFO")
        )
        name, version = _identity(header or "", os.path.basename(location))
        for group, entry, target in lines:
            yield EntryPoint(
                distribution=name,
                version=version,
                group=group,
                name=entry,
                target=target,
                location=location,
            )


def _scan_archive(path: str, seen: set[str]) -> Iterator[EntryPoint]:
    from importlib.metadata import distributions

    for distribution in distributions(path=[path]):
        name = distribution.metadata["Name"]
        if normalize(name) in seen:
            continue
        seen.add(normalize(name))
        for group, entry, target in _parse(distribution.read_text("entry_points.txt") or ""):
            yield EntryPoint(
                distribution=name,
                version=distribution.version,
                group=group,
                name=entry,
                target=target,
                location=path,
            )


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def _parse(text: str) -> Iterator[tuple[str, str, str]]:
    group = ""
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif _is_plugrl_group(group):
            name, _, target = line.partition("=")
            yield group, name.strip(), target.partition("[")[0].replace(" ", "")


def _identity(header: str, folder: str) -> tuple[str, str]:
    fallback = folder.rpartition(".")[0].split("-")
    name, version = fallback[0], fallback[1] if len(fallback) > 1 else "unknown"
    for line in header.splitlines():
        if not line:
            break
        key, _, value = line.partition(":")
        if key == "Name":
            name = value.strip()
        elif key == "Version":
            version = value.strip()
    return name, version
