"""The revisions of models and data sets of the hub, pinned when a run begins.

A branch moves. So what a run takes from a hub is fetched before its folder is made, and the commits
stand in its configuration: ``resume``, ``eval``, ``sample`` and ``export`` read them there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError
from plugrl.core.hub.hub import SCHEME, DataSetName, find_hub, is_hub_name

if TYPE_CHECKING:
    from plugrl.core.config.validated import ValidatedConfig
    from plugrl.core.plugins.registry import Registry

#: What was asked for (a name, a subset and a revision, or an address alone) and its pinned form.
Pins = dict[tuple[str, ...], str]
#: The sections that name something of the hub, and the key that does.
_NAMED_BY = {"source": "path", "data": "name"}


def pin_revisions(validated: ValidatedConfig, registry: Registry) -> ValidatedConfig:
    """Fetch what a run takes from the hub, and give its configuration with the commits.

    Raises:
        ConfigError: something cannot be had; the message begins with the setting.
    """
    pins: Pins = {}
    for part in _parts(validated):
        _fetch_models(part, registry, pins)
        _fetch_data(part, pins)
    return _pinned_config(validated, pins) if pins else validated


def _parts(validated: ValidatedConfig) -> Iterator[ValidatedConfig]:
    """The configurations that trainers read: that of the run, or those of its phases."""
    if not validated.phases:
        yield validated
    for _, phase in validated.phases:
        yield from _parts(phase)


def _fetch_models(part: ValidatedConfig, registry: Registry, pins: Pins) -> None:
    for name, model in (part.tree.get("models") or {}).items():
        source = model.get("source") or {}
        path, revision = source.get("path"), source.get("revision")
        if not path or not is_hub_name(path):
            continue
        # A service may have one of its own that loads them.
        weights = any(
            getattr(registry.load(record), "loads_weights", False)
            for service, record in part.records.items()
            if service.startswith(f"models.{name}.")
        )
        with _Setting(f"models.{name}.source.path"):
            commit = find_hub().model(path, revision, weights=weights).commit
        pins[_key(path, None, revision)] = commit


def _fetch_data(part: ValidatedConfig, pins: Pins) -> None:
    data = part.tree.get("data") or {}
    validate = part.tree.get("validate") or {}
    held_out = (validate.get("data") or {}) if validate.get("enabled") else {}
    sections: dict[str, tuple[Mapping[str, Any], list[str]]] = {
        "data": (data, [data.get("split", "train")]),
        "validate.data": (held_out, list(held_out.get("splits") or ())),
    }
    for path, (section, splits) in sections.items():
        for number, address in enumerate(section.get("data_files") or ()):
            if str(address).startswith(SCHEME):
                with _Setting(f"{path}.data_files[{number}]"):
                    hub = find_hub()
                    hub.files(address)
                    pins[(address,)] = hub.pinned(address)
        named = section if section.get("name") else data
        if not named.get("name") or section.get("data_files") or not section:
            continue
        if named.get("type") in ("files", "scenario"):
            continue
        asked = DataSetName.of(named)
        with _Setting(f"{path}.name"):
            hub = find_hub()
            for split in splits:
                hub.fetch(asked, split)
            pins[_key(asked.name, asked.subset, asked.revision)] = hub.commit(asked)


class _Setting:
    """Says in a ``ConfigError`` which setting it is about."""

    def __init__(self, setting: str) -> None:
        self._setting = setting

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ConfigError):
            raise ConfigError(f"{self._setting}: {error}") from error


def _key(name: str, subset: str | None, revision: str | None) -> tuple[str, ...]:
    return (name, subset or "", revision or "")


def _pinned_config(validated: ValidatedConfig, pins: Pins) -> ValidatedConfig:
    return dataclasses.replace(
        validated,
        tree=_pinned(validated.tree, pins),
        phases=[(name, _pinned_config(phase, pins)) for name, phase in validated.phases],
    )


def _pinned(value: Any, pins: Pins, key: Any = "") -> Any:
    """A part of a configuration, which stands at ``key``, with the commits of all that it names."""
    if isinstance(value, str):
        return pins.get((value,), value)
    if isinstance(value, list):
        return [_pinned(item, pins) for item in value]
    if not isinstance(value, Mapping):
        return value
    made = {name: _pinned(item, pins, name) for name, item in value.items()}
    named = value.get(_NAMED_BY.get(key, ""))
    if isinstance(named, str):
        # What phases share may lack keys that nobody wrote.
        commit = pins.get(_key(named, value.get("subset"), value.get("revision")))
        made |= {} if commit is None else {"revision": commit}
    return made
