"""Installed packages without an installer: the files that pip would write, written here.

plugrl learns what is installed from the metadata of distributions alone, so that a folder with the
modules and the ``dist-info`` of a package is an installation of it, for a thousandth of the time.
``tests/plugins/test_installing.py`` compares the two.
"""

from __future__ import annotations

import configparser
import shutil
from collections.abc import Mapping
from pathlib import Path


def write_metadata(
    site: Path,
    name: str,
    version: str,
    groups: Mapping[str, Mapping[str, str]],
    *,
    summary: str = "",
) -> Path:
    """Write the ``dist-info`` folder of a distribution into ``site``, and give it.

    Args:
        site: a folder of ``sys.path``.
        name: the name of the distribution.
        version: its version.
        groups: the targets of its entry points by group and name.
        summary: what it says that it is for.
    """
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Summary: {summary}"] if summary else []
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    text = ""
    for group, entries in groups.items():
        text += f"[{group}]\n" + "".join(f"{key} = {target}\n" for key, target in entries.items())
    (info / "entry_points.txt").write_text(text)
    return info


def install(source: Path, site: Path) -> None:
    """Install the package with the ``setup.cfg`` in ``source`` into ``site``."""
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.optionxform = str
    parser.read(source / "setup.cfg", encoding="utf-8")
    groups = {
        group: dict(line.split(" = ") for line in text.strip().splitlines())
        for group, text in parser["options.entry_points"].items()
    }
    metadata, options = parser["metadata"], parser["options"]
    summary = metadata.get("description", "")
    write_metadata(site, metadata["name"], metadata["version"], groups, summary=summary)
    for package in options.get("packages", "").split():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source / package, site / package, ignore=ignored)
    for module in options.get("py_modules", "").split():
        shutil.copy(source / f"{module}.py", site)
