"""``data.map``: a function of users that turns a row of their data into problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from plugrl.core.config.sources.files import is_code_file
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.registry import default_registry
from plugrl.core.plugins.user_code.error_location import one_line, raised_at
from plugrl.core.scenario import DataItem
from plugrl.core.text.data.files import FileItem, place_of_problem

if TYPE_CHECKING:
    from plugrl.core.plugins.registry import Registry

#: A row to a row, to several, or to None: it is left out.
DataMap = Callable[[dict[str, Any]], Any]


def load_map(written: str, registry: Registry | None = None) -> DataMap:
    """The function that ``data.map`` names: ``file.py:function``, or a name that is registered.

    Raises:
        ConfigError: no function is named.
        PlugrlError: it cannot be imported, or has other parameters.
    """
    registry = registry or default_registry()
    if not is_code_file(written):
        return registry.get("data_map", written)  # type: ignore[no-any-return]
    file, _, name = written.rpartition(":")
    if not file:
        raise ConfigError(f"{written} names no function; write {written}:FUNCTION")
    return registry.load(registry.load_path("data_map", file, name))  # type: ignore[no-any-return]


def map_rows(items: Iterable[DataItem], function: DataMap, setting: str) -> Iterator[DataItem]:
    """The problems that a function makes of rows, each in the place of its row.

    Raises:
        ConfigError: it fails over a row, or gives what is no row; the message names the row.
    """
    for number, item in enumerate(items):
        where = place_of_problem(item, number)
        try:
            made = function(dict(item))
        except Exception as error:
            at = raised_at(error)
            raise ConfigError(
                f"{setting}: {where}: {one_line(error)}{f' at {at}' if at else ''}"
            ) from error
        for row in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(row, Mapping):
                yield FileItem(row, where)
            elif row is not None:
                raise ConfigError(
                    f"{setting}: {where}: the function gives {type(row).__name__}; a dict, a list "
                    "of them, or None is expected"
                )
