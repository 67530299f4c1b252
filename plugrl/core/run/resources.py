"""Resources that live as long as a run, such as worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar


class Closable(Protocol):
    """A resource that is closed at the end of a run."""

    def close(self) -> None:
        """Free everything."""


Item = TypeVar("Item", bound=Closable)


class ResourceCache:
    """Resources by name, each made on first use."""

    def __init__(self) -> None:
        self._items: dict[str, Any] = {}

    def get(self, name: str, make: Callable[[], Item]) -> Item:
        """The resource called ``name``, made by ``make`` on first use."""
        if name not in self._items:
            self._items[name] = make()
        item: Item = self._items[name]
        return item

    def close(self) -> None:
        """Close all of them."""
        for item in self._items.values():
            item.close()
