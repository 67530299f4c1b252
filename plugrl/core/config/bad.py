"""``BAD``, which stands for a value that has a fault already, and ``ABSENT``."""

from __future__ import annotations

from typing import Any


class Touched(Exception):
    """A rule of a schema looked at a value that has a fault already."""


class _Bad:
    """Stands for a value that has a fault already; a rule that looks at it is not applied."""

    def _touch(self, *_: Any) -> Any:
        raise Touched

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __len__ = __iter__ = _touch
    __getitem__ = __contains__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = _touch
    __rmul__ = __mod__ = __floordiv__ = __truediv__ = __rtruediv__ = __str__ = _touch
    __int__ = __float__ = __index__ = __neg__ = __abs__ = __call__ = __format__ = _touch
    __hash__ = _touch

    def __getattr__(self, name: str) -> Any:
        raise Touched

    def __repr__(self) -> str:
        return "BAD"


BAD: Any = _Bad()
#: Stands for a key that was not written.
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()
