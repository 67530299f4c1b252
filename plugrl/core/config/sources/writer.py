"""Values to YAML text that reads back as the same values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from plugrl.core.config.hidden import Reference
from plugrl.core.config.sources.reader import plain_scalar

_YAML: Any = yaml

#: Line ends that PyYAML escapes between double quotes only.
_SEPARATORS = frozenset("\r\x85\u2028\u2029\ufeff")


class _Quoting:
    """A dumper of PyYAML that also quotes what only YAML 1.2 takes for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: Any, data: str) -> Any:
    quoted = not isinstance(plain_scalar(data), str) or not _SEPARATORS.isdisjoint(data)
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style='"' if quoted else None)


class _Dumper(_Quoting, yaml.SafeDumper):
    pass


class _FastDumper(_Quoting, getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    pass


for _dumper in (_Dumper, _FastDumper):
    _dumper.add_representer(str, _text)


def dump_yaml(tree: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    """Write plain values as YAML; resolved text with ``${`` is escaped, so that it stays text.

    With ``ascii_only``, other characters are written as YAML's own escapes.
    """
    value = _escaped(tree)
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": not ascii_only, "width": 100}
    text: str = _YAML.dump(value, Dumper=_FastDumper, **options)
    if not ascii_only and "\\U" in text:
        # libyaml escapes what lies beyond the basic plane, such as emoji.
        text = _YAML.dump(value, Dumper=_Dumper, **options)
    return text


def _escaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(item) for item in value]
    if isinstance(value, Reference):
        return str(value)
    return value.replace("${", "\\${") if isinstance(value, str) else value
