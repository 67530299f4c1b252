"""How files of users import the files beside them: each folder is a package of its own.

Plain imports are not left to ``sys.path``: modules of one name in two folders would then be one
module, and what an agent's tools import would depend on which agent came first.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

USER_PACKAGE_PREFIX = "plugrl_user_"
#: The folder of each package that was made of one.
FOLDERS: dict[str, str] = {}
_NEVER = frozenset({"plugrl", *sys.stdlib_module_names})


class UserLoader(SourceFileLoader):
    """Runs a user's file; its plain imports look into its own folder first, as a script's do."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the file as ``module``."""
        package = self.name.partition(".")[0]
        imports = _imports(package, FOLDERS[package])
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": imports}
        super().exec_module(module)


class _UserFinder(MetaPathFinder):
    """Finds the modules of such packages, so that all of them are run by :class:`UserLoader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not fullname.startswith(USER_PACKAGE_PREFIX):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = UserLoader(fullname, spec.loader.path)
        return spec


def install_finder() -> None:
    """Let Python find the modules of users' packages."""
    if not any(isinstance(finder, _UserFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _UserFinder())


def _imports(package: str, folder: str) -> Callable[..., Any]:
    """``__import__`` for the files of ``folder``, which are modules of ``package``."""

    def import_(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        top = name.partition(".")[0]
        if level or not _own(top, folder):
            return builtins.__import__(name, globals, locals, fromlist, level)
        if fromlist:
            return builtins.__import__(f"{package}.{name}", globals, locals, fromlist)
        importlib.import_module(f"{package}.{name}")
        return sys.modules[f"{package}.{top}"]

    return import_


def _own(name: str, folder: str) -> bool:
    """Whether the module ``name`` is a file of ``folder`` that nobody else imports as ``name``.

    A folder may stand on ``sys.path``, or hold a package that is installed from there: then there
    is one module of that file, and not two with classes of their own.
    """
    if name in _NEVER:
        return False
    base = os.path.join(folder, name)
    file = f"{base}.py" if os.path.isfile(f"{base}.py") else os.path.join(base, "__init__.py")
    if not os.path.isfile(file):
        return False
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    found = spec.origin if spec is not None else None
    return found is None or os.path.realpath(found) != os.path.realpath(file)
