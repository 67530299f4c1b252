"""How a configuration schema says which of its fields are components.

Schemas are plain dataclasses. A field that holds a component is declared with
:func:`component`; its ``type`` key then picks the class whose ``Config`` dataclass describes
the other keys. A bare string stands for ``{type: string}``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

COMPONENT = "plugrl.component_kind"
HELP = "plugrl.help"
#: On a field of strings: relative paths are looked up beside the file that wrote them, then in
#: the working directory. ``"required"``: it is a fault when the file is in neither; ``"file"`` and
#: ``"folder"``: also when it is the other one of the two. ``"code"``: ``file.py:name``,
#: whose file must exist, or ``module:name``, which stays as it is.
FILE = "plugrl.file"
#: On the field of a trainer that holds phases, each a configuration of its own.
PHASES = "plugrl.phases"


def component(kind: str, default: str | None = None, *, many: bool = False, help: str = "") -> Any:
    """Declare a dataclass field that holds a component of ``kind``.

    Without ``default`` the field is optional and ``None``. With ``many`` it is a list of
    components, empty by default.
    """
    metadata = {COMPONENT: kind, HELP: help}
    if many:
        return dataclasses.field(default_factory=list, metadata=metadata)
    if default is None:
        return dataclasses.field(default=None, metadata=metadata)
    return dataclasses.field(default_factory=lambda: {"type": default}, metadata=metadata)


def described(default: Any, help: str, *, file: str | None = None) -> Any:
    """Declare an ordinary field with its help text; a list, dict or class default is copied.

    ``file`` is ``"optional"``, ``"required"``, ``"file"``, ``"folder"`` or ``"code"`` for strings
    that are paths; see :data:`FILE`.
    """
    metadata = {HELP: help, FILE: file}
    if dataclasses.is_dataclass(default) and isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def phases(help: str = "") -> Any:
    """Declare the list field of a trainer whose items are configurations, merged over the run's."""
    return dataclasses.field(default_factory=list, metadata={HELP: help, PHASES: True})
