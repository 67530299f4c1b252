"""Values to YAML text that reads back as the same values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from plugrl.core.config.hidden import Reference
from plugrl.core.config.reader import plain_scalar

_YAML: Any = yaml
_BASE: Any = yaml.SafeDumper


#: Line ends that PyYAML escapes between double quotes only.
_SEPARATORS = frozenset("\r\x85\u2028\u2029\ufeff")


class _Dumper(_BASE):  # type: ignore[misc]
    """PyYAML's dumper, that also quotes what only YAML 1.2 takes for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: Any, data: str) -> Any:
    quoted = not isinstance(plain_scalar(data), str) or not _SEPARATORS.isdisjoint(data)
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style='"' if quoted else None)


_Dumper.add_representer(str, _text)


def dump_yaml(tree: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    """Write plain values as YAML; resolved text with ``${`` is escaped, so that it stays text.

    With ``ascii_only``, other characters are written as YAML's own escapes.
    """
    text: str = _YAML.dump(
        _escaped(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=not ascii_only, width=100
    )
    return text


def _escaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(item) for item in value]
    if isinstance(value, Reference):
        return str(value)
    return value.replace("${", "\\${") if isinstance(value, str) else value
