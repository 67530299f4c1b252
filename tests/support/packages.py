"""Packages that one test installs, without an installer, for as long as it needs them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from distributions import write_metadata

from plugrl.core.plugins.packages.installed import clear_cache


@contextmanager
def packages(
    groups: Mapping[str, Mapping[str, Mapping[str, str]]],
    modules: Mapping[str, str] | None = None,
    version: str = "1.0",
) -> Iterator[Path]:
    """Install distributions into a folder of ``sys.path``, and give it.

    Args:
        groups: the targets of the entry points by distribution, group and name.
        modules: the text of files, by path.
        version: that of each distribution.
    """
    with TemporaryDirectory() as folder:
        site = Path(folder)
        for name, entries in groups.items():
            write_metadata(site, name, version, entries)
        for path, text in (modules or {}).items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        known = set(sys.modules)
        importlib.invalidate_caches()
        clear_cache()
        try:
            yield site
        finally:
            sys.path.remove(folder)
            for name in set(sys.modules) - known:
                if str(getattr(sys.modules[name], "__file__", None)).startswith(folder):
                    del sys.modules[name]
            clear_cache()
