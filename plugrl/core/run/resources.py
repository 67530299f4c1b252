"""What a run keeps until its end, such as worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar


class Closable(Protocol):
    """What a run keeps until its end."""

    def close(self) -> None:
        """Free everything."""


Item = TypeVar("Item", bound=Closable)


class ResourceCache:
    """Things by name, each made when it is first asked for."""

    def __init__(self) -> None:
        self._items: dict[str, Any] = {}

    def get(self, name: str, make: Callable[[], Item]) -> Item:
        """What ``make`` gave when ``name`` was first asked for."""
        if name not in self._items:
            self._items[name] = make()
        item: Item = self._items[name]
        return item

    def close(self) -> None:
        """Close all of them."""
        for item in self._items.values():
            item.close()
