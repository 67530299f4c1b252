"""Imports user files as modules; the folder of each becomes a package of its own.

Files of the same name in two folders therefore do not collide, and ``from .neighbour import f``
works. A plain ``import neighbour`` finds the file through ``sys.path``, as in a script.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from plugrl.core.plugins.user_code.relocation import relocated
from plugrl.core.sandbox.inside.syntax import parse_python

USER_PACKAGE_PREFIX = "plugrl_user_"
#: The folder behind each of these packages.
FOLDERS: dict[str, str] = {}
_USER_MODULE = re.compile(rf"({USER_PACKAGE_PREFIX}[0-9a-f]{{12}})((?:\.\w+)*)")


def with_user_files(text: str) -> str:
    """``text`` with generated module names replaced by the paths of the user files."""
    return _USER_MODULE.sub(lambda match: _file_of(match[1], match[2] or ""), text)


def _file_of(package: str, module: str) -> str:
    folder = FOLDERS.get(package)
    if folder is None:
        return package + module
    path = os.path.join(folder, *module.split(".")[1:])
    return path if not module or os.path.isdir(path) else f"{path}.py"


def user_module_name(path: str | os.PathLike[str]) -> str:
    """The module name of a user file; equal in every process that sees the same path."""
    file = os.path.realpath(path)
    folder, name = os.path.split(file)
    digest = hashlib.sha256(folder.encode()).hexdigest()[:12]
    return f"{USER_PACKAGE_PREFIX}{digest}.{os.path.splitext(name)[0]}"


def load_file(path: str | os.PathLike[str]) -> ModuleType:
    """Import a Python file as a module of the package that stands for its folder.

    ``from .neighbour import f`` therefore works in it, and so does ``import neighbour`` for files
    of its own folder. A second call returns the same module.
    Raises whatever the file raises, ``FileNotFoundError`` or ``ImportError`` when it is no Python
    file, and ``ImportError`` when a plain import would find the file of another folder.
    """
    name = user_module_name(path)
    # The name is that of the driver's file, wherever this machine has it.
    file = os.path.realpath(relocated(os.path.realpath(path)))
    if not os.path.isfile(file):
        raise FileNotFoundError(f"there is no file {os.fspath(path)}")
    if name in sys.modules:
        return sys.modules[name]
    package = _user_package(name.partition(".")[0], os.path.dirname(file))
    if os.path.basename(file) == "__init__.py":
        return package
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file (.py)")
    _check_plain_imports(file, os.path.dirname(file))
    module = _execute(spec)
    setattr(package, name.partition(".")[2], module)
    return module


def load_module(folder: str | os.PathLike[str], module: str) -> ModuleType:
    """Import a module, such as ``tools.maths``, of the package that is made of a folder.

    Raises whatever the import raises, and ``ImportError`` as :func:`load_file`.
    """
    top = os.path.realpath(folder)
    package = user_module_name(os.path.join(top, "module.py")).partition(".")[0]
    _user_package(package, top)
    spec = importlib.util.find_spec(f"{package}.{module}")
    if spec is not None and spec.origin is not None:
        _check_plain_imports(spec.origin, top)
    return importlib.import_module(f"{package}.{module}")


def _user_package(name: str, folder: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    FOLDERS[name] = folder
    if folder not in sys.path:
        # Last, so that no user file shadows plugrl, the standard library or an installed package.
        sys.path.append(folder)
    initial = os.path.join(folder, "__init__.py")
    if os.path.isfile(initial):
        spec = importlib.util.spec_from_file_location(
            name, initial, submodule_search_locations=[folder]
        )
        if spec is not None:
            return _execute(spec)
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [folder]
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    return package


def _execute(spec: ModuleSpec) -> ModuleType:
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        if spec.loader is not None:
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise
    return module


def _check_plain_imports(file: str, folder: str) -> None:
    """Refuse a plain import of a neighbour if a file of another user folder has that name.

    Python has one module for each name: the second folder would silently get the file of the first.
    """
    with open(file, "rb") as source:
        code = source.read()
    try:
        tree = parse_python(code, file)
    except SyntaxError:
        # The import itself says so, with the line also where that is hard to know.
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        for name in {name.partition(".")[0] for name in names}:
            found = _other_folder(name, folder)
            if found:
                raise ImportError(
                    f"line {node.lineno} imports {name}, which is {found} and not the file beside "
                    f"it; write from . import {name}"
                )


def _other_folder(name: str, folder: str) -> str:
    """The file in another user folder that ``import name`` would find instead of the neighbour."""
    base = os.path.join(folder, name)
    if not (os.path.isfile(f"{base}.py") or os.path.isfile(os.path.join(base, "__init__.py"))):
        return ""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ""
    file = os.path.realpath(spec.origin) if spec is not None and spec.origin else ""
    others = (other for other in FOLDERS.values() if other != folder)
    return file if any(file.startswith(other + os.sep) for other in others) else ""
