"""A package that exists already: what it is called, and how its entry points get longer."""

from __future__ import annotations

import configparser
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from plugrl.core.errors import UsageError

Entries = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Package:
    """A package on disk.

    Attributes:
        folder: with ``setup.cfg`` or ``pyproject.toml``.
        name: of the distribution.
        module: the folder that is imported, below ``folder``.
        declaration: the file that declares its entry points.
    """

    folder: Path
    name: str
    module: Path
    declaration: Path

    @property
    def import_name(self) -> str:
        """The name under which it is imported."""
        return self.module.name


def read_package(folder: Path) -> Package:
    """The package in ``folder``.

    Raises:
        UsageError: there is none, or what is imported cannot be found.
    """
    setup, project = folder / "setup.cfg", folder / "pyproject.toml"
    name = None
    declaration = setup
    if project.is_file():
        table = _parse_toml(project, _read(project)).get("project", {})
        name, declaration = table.get("name"), project if "name" in table else setup
        if name and "entry-points" in table.get("dynamic", []):
            declaration = setup
    if name is None and setup.is_file():
        name = _parse_cfg(setup, _read(setup)).get("metadata", "name", fallback=None)
    if not name:
        raise UsageError(
            f"{folder} is no package: neither setup.cfg nor pyproject.toml there gives a name; "
            "go to the folder of one, name it with --path, or begin with plugrl new plugin NAME"
        )
    module = str(name).replace("-", "_").replace(".", "_")
    for place in (folder / module, folder / "src" / module):
        if (place / "__init__.py").is_file():
            return Package(folder, str(name), place, declaration)
    raise UsageError(
        f"{folder}: package {name} has no folder {module} or src/{module} with an __init__.py; "
        "the component would have no place"
    )


def with_entries(package: Package, entries: Entries, data: Sequence[str]) -> str:
    """The text of the declaration with further entry points and files of data.

    Raises:
        UsageError: one of the names is there already, or the file is written in a form that cannot
            be extended.
    """
    text = _read(package.declaration)
    is_toml = package.declaration.suffix == ".toml"
    before = _declared(package.declaration, text)
    for group, lines in entries.items():
        for line in lines:
            name = line.partition("=")[0].strip()
            if name in before.get(group, {}):
                raise UsageError(
                    f"{package.declaration} has {name} of the group {group} already; choose "
                    "another name"
                )
            text = (_toml_with if is_toml else _cfg_with)(text, group, name, line)
    if not is_toml:
        text = _cfg_with_data(text, package.import_name, data)
    wanted = {group: dict(held) for group, held in before.items()}
    for group, lines in entries.items():
        for line in lines:
            name, _, target = line.partition("=")
            wanted.setdefault(group, {})[name.strip()] = target.strip()
    try:
        written = _declared(package.declaration, text)
    except UsageError:
        written = {}
    if written != wanted:
        raise UsageError(
            f"the entry points of {package.declaration} are written in a form that cannot be "
            f"extended; add them by hand: "
            + "; ".join(f"[{group}] {line}" for group, lines in entries.items() for line in lines)
        )
    return text


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"cannot read {file}: {reason}") from error


def _parse_toml(file: Path, text: str) -> dict[str, Any]:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is malformed: {error}") from error
    table = _table(file, found, "project")
    if not isinstance(table.get("dynamic", []), list):
        raise UsageError(f"{file} is malformed: project.dynamic must be a list of names")
    points = _table(file, table, "entry-points", "project.")
    for group in points:
        _table(file, points, group, "project.entry-points.")
    return found


def _table(file: Path, above: Mapping[str, Any], name: str, place: str = "") -> dict[str, Any]:
    """A table of a TOML file; empty if it is not there.

    Raises:
        UsageError: it is something else.
    """
    found = above.get(name, {})
    if not isinstance(found, dict):
        raise UsageError(f"{file} is malformed: {place}{name} must be a table")
    return found


def _parse_cfg(file: Path, text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise UsageError(f"{file} is malformed: {str(error).splitlines()[0]}") from error
    return parser


def _declared(file: Path, text: str) -> dict[str, dict[str, str]]:
    """The entry points of a declaration: group to name to target."""
    if file.suffix == ".toml":
        found = _parse_toml(file, text).get("project", {}).get("entry-points", {})
        return {group: dict(held) for group, held in found.items()}
    parser = _parse_cfg(file, text)
    section = "options.entry_points"
    groups = parser[section] if parser.has_section(section) else {}
    return {
        group: {
            name.strip(): target.strip()
            for name, _, target in (line.partition("=") for line in lines.splitlines() if line)
        }
        for group, lines in groups.items()
    }


def _toml_with(text: str, group: str, name: str, line: str) -> str:
    target = line.partition("=")[2].strip()
    return _below(text, f'[project.entry-points."{group}"]', [f'{name} = "{target}"'])


def _cfg_with(text: str, group: str, name: str, line: str) -> str:
    return _with_lines(text, "[options.entry_points]", group, [line])


def _cfg_with_data(text: str, package: str, data: Sequence[str]) -> str:
    """The text with files of data of the package, where a pattern has not said so."""
    if not data:
        return text
    patterns = [row.strip() for row in _section(text, "[options.package_data]")]
    missing = [path for path in data if not any(_means(p, path) for p in patterns if p)]
    return _with_lines(text, "[options.package_data]", package, missing) if missing else text


def _means(pattern: str, path: str) -> bool:
    """Whether a pattern of package data means a path; ``*.yaml`` means none of a folder."""
    same_depth = len(PurePath(pattern).parts) == len(PurePath(path).parts)
    return same_depth and PurePath(path).match(pattern)


def _with_lines(text: str, header: str, key: str, added: Sequence[str]) -> str:
    """The text with further lines below a key of a section; both are made if they are not there."""
    rows = [f"    {line}" for line in added]
    section = _section(text, header)
    keys = [row.partition("=")[0].rstrip() for row in section]
    if key not in keys:
        return _below(text, header, [f"{key} =", *rows])
    end = keys.index(key) + 1
    while end < len(section) and section[end][:1].isspace() and section[end].strip():
        end += 1
    lines = text.splitlines()
    place = lines.index(header) + 1 + end
    return "\n".join([*lines[:place], *rows, *lines[place:]]) + "\n"


def _section(text: str, header: str) -> list[str]:
    """The lines of a section, without its header."""
    lines = text.splitlines()
    if header not in lines:
        return []
    begin = lines.index(header) + 1
    end = next((i for i in range(begin, len(lines)) if lines[i][:1] == "["), len(lines))
    return lines[begin:end]


def _below(text: str, header: str, rows: Sequence[str]) -> str:
    """The text with lines at the end of a section, which is made if it is not there."""
    lines = text.splitlines()
    if header not in lines:
        return "\n".join([*lines, "", header, *rows]) + "\n"
    end = lines.index(header) + 1 + len(_section(text, header))
    while not lines[end - 1].strip():
        end -= 1
    return "\n".join([*lines[:end], *rows, *lines[end:]]) + "\n"
