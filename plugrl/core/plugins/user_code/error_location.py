"""Finds the component, file and line that an error comes from, and formats errors for messages."""

from __future__ import annotations

import inspect
import logging
import os
import traceback
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import RunError
from plugrl.core.plugins.user_code.user_files import with_user_files
from plugrl.core.wording import LONGEST_RECORD, bounded

if TYPE_CHECKING:
    from plugrl.core.plugins.kinds import Record

log = logging.getLogger("plugrl.run")

_OWN = __name__.partition(".")[0]
#: Parts of plugrl that are infrastructure; its own components live beside them.
_MACHINERY = ("core", "commands", "testing", "cli")
_PACKAGES = {"site-packages", "dist-packages"}
#: The attribute of a log record with text for ``log.txt`` only.
TRACE = "plugrl_trace"


def source_location(value: Any) -> str:
    """``file:line`` of a class or function, or of its class for an instance; "" when unknown."""
    value = inspect.unwrap(value) if callable(value) else value
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        value = type(value)
    try:
        file, line = inspect.getsourcefile(value), inspect.getsourcelines(value)[1]
    except (OSError, TypeError):
        return ""
    return line_of(file or "", max(line, 1))


def location_suffix(value: Any) -> str:
    """`` (file:line)``, to append to the name of a component in a message; "" when unknown."""
    found = source_location(value)
    return f" ({found})" if found else ""


def raised_at(error: BaseException, packages: Collection[str] = ()) -> str:
    """``file:line`` of the innermost frame in component code; "" if there is none.

    Frames of plugrl's infrastructure and of libraries are skipped; ``packages`` are installed
    packages that do not count as libraries.
    """
    frames = list(_component_frames(error, packages))
    return line_of(frames[-1][0].f_code.co_filename, frames[-1][1]) if frames else ""


def error_message(error: BaseException) -> str:
    """The message of an exception, bounded; "" when its ``__str__`` fails."""
    try:
        return bounded(str(error))
    except BaseException as other:
        if is_stop(other):
            raise
        return ""


def is_stop(error: BaseException) -> bool:
    """Whether an exception was sent from outside to end running code, rather than raised by it.

    These are Ctrl-C, cancellation, and the exception that ends the thread of an abandoned function.
    """
    import asyncio

    # Ask the class: an attribute of the instance may be user code that raises.
    cls = type(error)
    stops = (KeyboardInterrupt, asyncio.CancelledError)
    return issubclass(cls, stops) or getattr(cls, "stops", False) is True


def format_traceback(error: BaseException) -> str:
    """The traceback of an exception, bounded."""
    try:
        lines = traceback.format_exception(error)
    except Exception:
        lines = [type(error).__name__]
    return bounded("".join(bounded(line) for line in lines).rstrip(), LONGEST_RECORD)


def first_line(error: BaseException) -> str:
    """The first line of the message of an exception; its type if there is no message."""
    lines = error_message(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def one_line(error: BaseException) -> str:
    """Type and message of an exception on one line."""
    text = " ".join(with_user_files(error_message(error)).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def component_error(
    error: BaseException, records: Iterable[Record], default: Any = None
) -> RunError:
    """The error for an exception that escaped a component's code, with component, file and line.

    Args:
        error: the exception, with its traceback.
        records: the components in use.
        default: the trainer, which is named if no frame belongs to a component.
    """
    known = list(records)
    tops = {_top_package(record.target) for record in known} - {_OWN}
    frames = list(_component_frames(error, tops))
    name = f"trainer {type(default).__name__}" if default is not None else "the run"
    at = ""
    if frames:
        frame, line = frames[-1]
        name = next((n for f, _ in reversed(frames) if (n := _component_of_frame(f, known))), name)
        at = f" at {line_of(frame.f_code.co_filename, line)}"
    return RunError(f"{name} raised {one_line(error)}{at}")


def failure_key(component: Any, error: BaseException) -> str:
    """A key that is equal for failures of one component with one type and location."""
    return f"{type(component).__qualname__} {type(error).__name__} {raised_at(error)}"


def warn_once(owner: Any, key: str, message: str, error: BaseException) -> None:
    """Warn about the first failure with this ``key``; the traceback goes to the log file.

    Args:
        owner: the component that failed; remembers the keys.
        key: identifies equal failures, see :func:`failure_key`.
        message: the warning.
        error: the exception with its traceback.
    """
    seen: set[str] = owner.__dict__.setdefault("_failures_seen", set())
    if key in seen:
        return
    seen.add(key)
    log.warning("%s", message, extra={TRACE: format_traceback(error)})


def _component_frames(
    error: BaseException, tops: Collection[str]
) -> Iterator[tuple[FrameType, int]]:
    """Frame and line of component code, outermost first, without infrastructure and libraries."""
    found = error.__traceback__
    while found is not None:
        frame = found.tb_frame
        module = str(frame.f_globals.get("__name__", ""))
        top, _, rest = module.partition(".")
        if top == _OWN:
            component = rest.partition(".")[0] not in _MACHINERY
        else:
            component = top in tops or not _is_library(frame.f_code.co_filename)
        if component:
            yield frame, found.tb_lineno
        found = found.tb_next


def _is_library(file: str) -> bool:
    standard = os.path.dirname(os.__file__) + os.sep
    return file.startswith(("<", standard)) or bool(_PACKAGES & set(Path(file).parts))


def _top_package(target: str) -> str:
    return target.partition(":")[0].partition(".")[0]


def _component_of_frame(frame: FrameType, records: list[Record]) -> str:
    """Kind and name of the component whose code a frame runs; "" if it is no component's."""
    module, code = str(frame.f_globals.get("__name__", "")), frame.f_code.co_qualname
    owner = type(frame.f_locals.get("self"))
    for record in records:
        target, _, attribute = record.target.partition(":")
        if target == module and (code == attribute or code.startswith(f"{attribute}.")):
            return _component_name(record)
        # A method that the component inherits from a class in another module.
        if (owner.__module__, owner.__qualname__) == (target, attribute):
            return _component_name(record)
    return ""


def _component_name(record: Record) -> str:
    attribute = record.target.partition(":")[2]
    extra = "" if attribute == record.name else f" ({attribute})"
    return f"{record.kind} {record.name!r}{extra}"


def line_of(file: str, line: int) -> str:
    """``file:line``, relative to the working directory if the file is below it."""
    try:
        path = os.path.relpath(file)
    except ValueError:
        path = file
    return f"{file if path.startswith('..') else path}:{line}"
