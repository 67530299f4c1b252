"""Imports components from modules, and from user files as part of their folders.

Anything that goes wrong while third-party code is imported, ``sys.exit`` included, becomes one
:class:`~plugrl.core.errors.PluginError` that names the component, its package and the cause.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from plugrl.core.errors import MissingNameError, PluginError
from plugrl.core.plugins.kinds import KINDS, OWN, Record
from plugrl.core.plugins.packages.requirements import missing_package
from plugrl.core.plugins.user_code.error_location import error_message, line_of, raised_at
from plugrl.core.plugins.user_code.signatures import signature_fault
from plugrl.core.plugins.user_code.user_files import load_file, load_module, with_user_files
from plugrl.core.plugins.user_code.working_folder import preserve_working_folder
from plugrl.core.wording import did_you_mean

#: What ``-p`` imported, one name a line, for the child processes.
IMPORTS_VARIABLE = "PLUGRL_IMPORTS"
_imported: dict[str, ModuleType | None] = {}


def describe_error(error: BaseException, target: str = "") -> str:
    """Class, first line and location of an exception, for one-line messages.

    ``target`` is the component that was imported: frames of its package are not skipped as library
    code.
    """
    name = type(error).__name__
    if isinstance(error, SyntaxError):
        file, line = (
            (error.filename, error.lineno or 1) if error.filename else _null_byte_location(error)
        )
        if file:
            return f"{name}: {error.msg} at {line_of(file, line)}"
    lines = with_user_files(error_message(error)).strip().splitlines()
    text = f"{name}: {lines[0]}" if lines else name
    at = raised_at(error, {target.partition(":")[0].partition(".")[0]})
    return f"{text} at {at}" if at else text


def _null_byte_location(error: SyntaxError) -> tuple[str, int]:
    """File and line of a null byte in source code, which Python's error does not contain."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        path, data = frame.f_locals.get("path"), frame.f_locals.get("data")
        if frame.f_code.co_name == "source_to_code" and path and isinstance(data, bytes):
            return str(path), data.partition(b"\0")[0].count(b"\n") + 1
    return "", 1


def import_target(target: str) -> Any:
    """Import ``module:attribute.path`` (or just ``module``) and return the object.

    Raises whatever the import raises, or ``AttributeError`` naming the missing attribute.
    """
    module_name, _, path = target.partition(":")
    value: Any = importlib.import_module(module_name)
    return _attribute(value, path, module_name)


def _attribute(value: Any, path: str, owner: str) -> Any:
    for part in path.split(".") if path else ():
        if not hasattr(value, part):
            close = did_you_mean(part, (name for name in vars(value) if name[0] != "_"), 1)
            raise AttributeError(f"{owner} has no attribute {part!r}{close}")
        value = getattr(value, part)
    return value


def import_named(where: str) -> ModuleType:
    """Import a file, or a module that is installed or in the working directory.

    Raises whatever the import raises.
    """
    if where.endswith(".py") or os.sep in where:
        return load_file(where)
    local = os.path.join(os.getcwd(), *where.split("."))
    if os.path.isfile(f"{local}.py") and not _is_installed(where):
        return load_module(os.getcwd(), where)
    return importlib.import_module(where)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def import_component(record: Record) -> Any:
    """Import the component of a record, without checking what it is.

    Raises:
        MissingNameError: a user's file has nothing of that name.
        PluginError: the import fails, the attribute is missing, or the object lives inside a
            function or is a bare instance, where no other process can find it.
    """
    path = record.target.partition(":")[2]
    if "<" in path:
        raise PluginError(
            f"{component_label(record)} is not at the top level of a module, so no other process "
            "can import it; move it there"
        )
    try:
        if record.file is None:
            return import_target(record.target)
        module = load_file(record.file)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        label = component_label(record)
        lacking = missing_package(record.distribution, error)
        if lacking is not None:
            raise PluginError(f"{label} {lacking}") from error
        reason = describe_error(error, record.target)
        raise PluginError(f"{label} cannot be imported: {reason}") from error
    try:
        return _attribute(module, path, record.file)
    except AttributeError:
        raise MissingNameError(_missing_name_message(module, path, record.file)) from None


def _missing_name_message(module: ModuleType, path: str, file: str) -> str:
    """The message about a name that is missing in a user file, with similar names."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    close = did_you_mean(path, own, 1)
    has = "" if close else f"; it has: {', '.join(own) or 'no class and no function'}"
    return f"{file} has no {path!r}{close or has}"


def import_user_module(name: str) -> None:
    """Import a module, or a file ending in ``.py``, for what it registers (``-p NAME``).

    Modules of the working directory are found too, after the installed ones. Child processes
    import the same, see :func:`import_exported`.

    Raises:
        PluginError: the import fails.
    """
    if name.endswith(".py"):
        name = os.path.abspath(name)
    if name in _imported:
        return
    # Set before the import, which may ask for the registry and so import the same again.
    _imported[name] = None
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        with preserve_working_folder():
            if name.endswith(".py"):
                _imported[name] = load_file(name)
            else:
                _imported[name] = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        del _imported[name]
        raise PluginError(f"-p {name} cannot be imported: {describe_error(error, name)}") from error
    exported = os.environ.get(IMPORTS_VARIABLE, "").splitlines()
    os.environ[IMPORTS_VARIABLE] = "\n".join(dict.fromkeys([*exported, name]))


def user_modules() -> dict[str, ModuleType]:
    """The modules that :func:`import_user_module` has imported, by the names given to it."""
    return {name: module for name, module in _imported.items() if module is not None}


def import_exported() -> None:
    """Import in a child process the modules that ``-p`` imported in its parent.

    Raises:
        PluginError: an import fails.
    """
    for name in os.environ.get(IMPORTS_VARIABLE, "").splitlines():
        import_user_module(name)


def component_label(record: Record) -> str:
    """A component in messages: kind, name, and its package and target, or its file."""
    if record.file is None:
        return f"{record.kind} {record.name!r} of {record.provider} ({record.target})"
    attribute = record.target.partition(":")[2]
    return f"{record.kind} {record.name!r} of {record.file}" + (
        "" if attribute == record.name else f" ({attribute})"
    )


def adapt_function(record: Record, value: Any) -> Any:
    """Turn a function into a component class where its kind expects a class; else return ``value``.

    Raises:
        PluginError: the function has the wrong parameters.
    """
    adapter = KINDS[record.kind].adapter
    if adapter is None or not inspect.isfunction(value):
        return value
    try:
        return import_target(adapter)(value)
    except TypeError as error:
        raise PluginError(f"{component_label(record)}: {error}") from None


def check_component(record: Record, value: Any) -> None:
    """Check that ``value`` is what its kind asks for: a concrete subclass, or a function.

    Raises:
        PluginError: it is not; the message says what is expected.
    """
    base_target = KINDS[record.kind].base
    if base_target is None:
        if not callable(value):
            raise PluginError(
                f"{component_label(record)} is a {type(value).__name__}, not a function"
            )
        _check_signatures(record, value)
        return
    base = import_target(base_target)
    if not (isinstance(value, type) and issubclass(value, base)):
        instead = environment_hint(value) if record.kind == "dialogue_environment" else None
        if instead is not None:
            raise PluginError(f"{component_label(record)} is {instead}")
        what = "class" if isinstance(value, type) else type(value).__name__
        raise PluginError(
            f"{component_label(record)} is a {what} that does not subclass {base.__name__}; "
            f"derive it from {OWN}.{base.__name__}"
        )
    if inspect.isabstract(value):
        missing = ", ".join(sorted(getattr(value, "__abstractmethods__", ())))
        raise PluginError(f"{component_label(record)} does not implement {missing}")
    _check_signatures(record, value)


#: Where environments of small networks come from, and how a configuration names one.
_CONTROL = {
    "gymnasium": (
        "Gymnasium",
        "scenario: {type: gymnasium, id: ...}, with the id of gymnasium.register",
    ),
    "pettingzoo": (
        "PettingZoo",
        "scenario: {type: pettingzoo, environment: ...}, such as FILE.py:NAME",
    ),
    "torchrl": ("TorchRL", "scenario: {type: torchrl, environment: ...}, such as FILE.py:NAME"),
}


def environment_hint(value: Any) -> str | None:
    """A hint for an environment of Gymnasium and the like, registered as dialogue_environment."""
    for base in getattr(value, "__mro__", type(value).__mro__):
        library, scenario = _CONTROL.get(base.__module__.partition(".")[0], (None, ""))
        if library is not None:
            return (
                f"an environment of {library}, and a dialogue_environment holds dialogues for "
                f"red-teaming; write {scenario}"
            )
    return None


def _check_signatures(record: Record, value: Any) -> None:
    fault = signature_fault(record.kind, value)
    if fault is not None:
        raise PluginError(f"{component_label(record)}: {fault}")
