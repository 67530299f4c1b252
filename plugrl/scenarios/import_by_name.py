"""Environments of other packages and of users' files, found by name."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.loading import describe_error, import_named
from plugrl.core.plugins.user_code.error_location import one_line, raised_at
from plugrl.core.plugins.user_code.user_files import with_user_files
from plugrl.core.wording import did_you_mean

#: Packages of environments whose modules are called like them.
_PACKAGES = frozenset(("gymnasium", "mpe2", "pettingzoo", "supersuit", "vmas"))


def find(name: str) -> tuple[ModuleType, Any]:
    """The module and the attribute that ``name`` means; no attribute is named: None.

    Args:
        name: ``package.module``, ``package.module:attribute``, ``file.py`` or
            ``file.py:attribute``. Modules of the working directory are found too.

    Raises:
        ConfigError: there is no such module, file or attribute, or it cannot be imported.
    """
    where, _, attribute = name.partition(":")
    if not where:
        raise ConfigError(f"{name!r} names no module; write package.module:name")
    module = _module(where)
    if not attribute:
        return module, None
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except ModuleNotFoundError as error:
            # A package may import its modules when they are asked for; this frame asked.
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise ConfigError(_not_found(f"{where}.{part}", error)) from error
        except AttributeError:
            known = [each for each in dir(found) if not each.startswith("_")]
            close = did_you_mean(part, known)
            raise ConfigError(f"{where} has no {part!r}{close or _some(known)}") from None
    return module, found


def call(name: str, factory: Callable[..., Any], options: Mapping[str, Any], **more: Any) -> Any:
    """What a class or function of a user makes.

    Args:
        name: as configured.
        factory: that was found.
        options: keyword arguments that were configured.
        more: further ones.

    Raises:
        ConfigError: it raised something; the text says what.
    """
    try:
        return factory(**options, **more)
    except (KeyboardInterrupt, ConfigError):
        raise
    except (Exception, SystemExit) as error:
        given = f" with env_kwargs {dict(options)}" if options else ""
        meant = meant_argument(error, factory)
        raise ConfigError(f"{name} cannot be built{given}: {one_line(error)}{meant}") from error


def meant_argument(error: BaseException, factory: Callable[..., Any]) -> str:
    """``"; did you mean NAME?"`` of an argument that a class or function does not take; or ""."""
    refused = re.search(r"^(\w+)\S* got an unexpected keyword argument '(\w+)'", str(error))
    if refused is None or not isinstance(error, TypeError):
        return ""
    # A function that hands its arguments on calls the class that refused one of them.
    callers = (frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__))
    called = (caller[refused[1]] for caller in callers if refused[1] in caller)
    names: set[str] = set()
    for each in filter(callable, (factory, *called)):
        with contextlib.suppress(TypeError, ValueError):
            made = each.__init__ if inspect.isclass(each) else each
            names.update(inspect.signature(made).parameters)
    return did_you_mean(refused[2], names - {"self"}, 1)


def _some(known: list[str]) -> str:
    few = ", ".join(known[:8])
    return f"; it has: {few}" if known else ""


def _module(where: str) -> ModuleType:
    try:
        return import_named(where)
    except KeyboardInterrupt:
        raise
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from error
    except BaseException as error:
        # This frame is not where anything went wrong.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        if isinstance(error, ModuleNotFoundError) and with_user_files(str(error)) == str(error):
            raise ConfigError(_not_found(where, error)) from error
        raise ConfigError(f"{where} cannot be imported: {describe_error(error, where)}") from error


def _not_found(where: str, error: ModuleNotFoundError) -> str:
    """The line about a module that is not there, or that needs another which is not."""
    parts, missing = where.split("."), error.name or ""
    if missing != where and not where.startswith(f"{missing}."):
        at = raised_at(error)
        needed = f"{missing} (imported at {at})" if at else missing
        # Packages are often called otherwise than their modules.
        remedy = "install the package that has it"
        if parts[0] == "pettingzoo" and parts[1:2] and parts[1] in _extras(parts[0]):
            remedy = f'run: pip install "pettingzoo[{parts[1]}]"'
        elif missing.partition(".")[0] in _PACKAGES:
            remedy = f"run: pip install {missing.partition('.')[0]}"
        return f"{where} needs {needed}, which is not installed; {remedy}"
    if missing == parts[0]:
        close = did_you_mean(missing, (each.name for each in pkgutil.iter_modules()), 1)
        remedy = f"; run: pip install {missing}" if missing in _PACKAGES else close
        return f"there is no module {missing!r}{remedy or '; install the package that has it'}"
    parent, _, last = missing.rpartition(".")
    siblings = submodules(importlib.import_module(parent))
    return f"{parent} has no module {last!r}{did_you_mean(last, siblings) or _some(siblings)}"


def _extras(package: str) -> Sequence[str]:
    return importlib.metadata.metadata(package).get_all("Provides-Extra") or ()


def submodules(module: ModuleType) -> list[str]:
    """The public modules in a package; a plain module has none."""
    found = [each.name for each in pkgutil.iter_modules(getattr(module, "__path__", ()))]
    return [name for name in found if not name.startswith("_")]
