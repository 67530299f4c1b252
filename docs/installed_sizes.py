"""Prints what an installation takes, and each extra beside it, as the table of ``dependencies.md``.

Run it where all extras are installed; an extra of which a package is missing is named with it.
Sizes are those of the files that the packages brought, without bytecode.
"""

from __future__ import annotations

import importlib.metadata as metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: For those who work on plugrl itself.
NOT_FOR_USERS = {"test", "dev", "docs"}


def closure(name: str, extras: frozenset[str], found: dict[str, set[str]]) -> dict[str, set[str]]:
    """All packages that one needs, with the extras that are asked of each."""
    key = canonicalize_name(name)
    if key in found and extras <= found[key]:
        return found
    found.setdefault(key, set()).update(extras)
    for line in metadata.requires(key) or []:
        need = Requirement(line)
        marker = need.marker
        if marker is None or any(marker.evaluate({"extra": e}) for e in extras | {""}):
            closure(need.name, frozenset(need.extras), found)
    return found


def size(name: str) -> int:
    """Bytes of the files of an installed package."""
    files = metadata.files(name) or []
    kept = (file.locate() for file in files if file.suffix != ".pyc")
    return sum(place.stat().st_size for place in kept if place.is_file())


def main() -> None:
    """Print the rows."""
    base = set(closure("plugrl", frozenset(), {})) - {"plugrl"}
    torch = set(closure("torch", frozenset(), {}))
    rows = {"torch": torch, "all that is required, with torch": base}
    for extra in sorted(metadata.metadata("plugrl").get_all("Provides-Extra") or []):
        if extra in NOT_FOR_USERS:
            continue
        try:
            rows[f"`{extra}`"] = set(closure("plugrl", frozenset({extra}), {})) - base - {"plugrl"}
        except metadata.PackageNotFoundError as error:
            print(f"`{extra}` is not measured: {error.args[0]} is not installed")
    print("| Installed | Packages | MB |\n| --- | --- | --- |")
    for title, names in rows.items():
        print(f"| {title} | {len(names)} | {sum(map(size, names)) / 1e6:.0f} |")


if __name__ == "__main__":
    main()
