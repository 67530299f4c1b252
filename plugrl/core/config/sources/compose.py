"""A file, its ``defaults`` and the overrides made one tree, in which every value has an origin."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plugrl.core.config.canonical import canonical
from plugrl.core.config.hidden import PRIVATE_FILE, Withheld, fill, read_private, still_hidden
from plugrl.core.config.sources.interpolation import from_environment, resolve
from plugrl.core.config.sources.lookup import find_default, find_main, unknown_default
from plugrl.core.config.sources.merge import Layer, merge
from plugrl.core.config.sources.origins import (
    PYTHON,
    Fault,
    KeyPath,
    Origin,
    Origins,
    dotted,
    fault_at,
    mark,
    nearest,
    raise_faults,
    shown,
)
from plugrl.core.config.sources.overrides import check_texts, read_overrides
from plugrl.core.config.sources.reader import MAX_DEPTH, read_file
from plugrl.core.config.view import plain
from plugrl.core.errors import ConfigError

__all__ = ["ComposedConfig", "Fault", "Origin", "compose"]

SELF = "_self_"
#: The resolved configuration of a run, in its folder.
CONFIG_FILE = "config.yaml"


@dataclass(frozen=True)
class ComposedConfig:
    """A configuration before validation.

    Attributes:
        tree: plain values with all interpolations resolved.
        origins: where each value was written.
        input_text: text of the main file, or the mapping as YAML.
        source: the main file; ``None`` for a mapping.
        overrides: the ``key=value`` texts.
        faults: what is wrong so far; validation reports it with everything else.
        unresolved: paths whose interpolation failed; their values are ``None``.
        references: what was written at the paths whose values come from environment variables.
        removed: sections that a layer wrote and a later one set to null.
        files: the files that were read, the main one and those of ``defaults``.
    """

    tree: dict[str, Any]
    origins: Origins
    input_text: str
    source: Path | None = None
    overrides: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    unresolved: frozenset[KeyPath] = frozenset()
    references: Mapping[KeyPath, str] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    files: tuple[Path, ...] = ()


def compose(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    config_path: Sequence[str | Path] = (),
    base: Mapping[str, Any] | None = None,
) -> ComposedConfig:
    """Read a configuration, its ``defaults`` and overrides, without a schema.

    ``source`` is a file, the name of a recipe, or a mapping. Precedence: ``base`` < ``defaults``
    in order (the file itself stands at ``_self_``, or last) < overrides.

    Raises:
        ConfigError: a file is missing, cannot be read or is not YAML, or an argument is of the
            wrong type. Smaller faults are kept in ``faults`` and reported by validation together
            with its own.
    """
    _check_arguments(source, overrides, config_path)
    reading = _Reading([Path(folder) for folder in config_path])
    if base is not None:
        reading.add(_from_mapping(base, reading.faults)[0], Path.cwd(), None)
    if isinstance(source, Mapping):
        main, text, file = _from_mapping(source, reading.faults)
        reading.add(main, Path.cwd(), None)
    else:
        file = find_main(source, reading.folders)
        text = reading.add_file(file)
    reading.layers += 1
    for layer in read_overrides(overrides, reading.faults):
        canonical(layer, reading.faults, below=reading.whole.tree)
        reading.merge(layer)
    if file is not None and "trainer" not in reading.whole.tree:
        # Nothing else says which file it is that lacks a trainer.
        reading.whole.origins[("trainer",)] = Origin(shown(file), None, file.parent.resolve())
    references = from_environment(reading.whole.tree)
    fill(reading.whole.tree, reading.withheld)
    for path in still_hidden(reading.whole.tree):
        message = f"is hidden, and no {PRIVATE_FILE} beside the file has its value; write it"
        reading.faults.append(fault_at(reading.whole.origins, path, message))
    unresolved = resolve(reading.whole, reading.faults)
    return ComposedConfig(
        tree=reading.whole.tree,
        origins=reading.whole.origins,
        input_text=text,
        source=file,
        overrides=tuple(overrides),
        faults=tuple(reading.faults),
        unresolved=frozenset(unresolved),
        references=references,
        removed=frozenset(reading.whole.removed),
        files=tuple(dict.fromkeys(reading.files)),
    )


def _check_arguments(source: object, overrides: object, config_path: object) -> None:
    if not isinstance(source, (str, Path, Mapping)):
        raise ConfigError(
            f"the configuration must be a file, the name of a recipe or a mapping, not {source!r}"
        )
    check_texts("overrides", overrides, '["seed=1"]')
    check_texts("config_path", config_path, '["configs"]', (str, Path))


#: Files that one configuration is made of.
_MOST_FILES = 200


@dataclass
class _Reading:
    """The files read so far, merged in the order of their ``defaults``."""

    folders: list[Path]
    whole: Layer = field(default_factory=Layer)
    faults: list[Fault] = field(default_factory=list)
    stack: list[Path] = field(default_factory=list)
    withheld: list[Withheld] = field(default_factory=list)
    layers: int = 0
    files: list[Path] = field(default_factory=list)

    def merge(self, layer: Layer) -> None:
        """Merge a layer over those before it, and note its number with every origin."""
        layer.origins = {
            path: replace(origin, layer=self.layers) for path, origin in layer.origins.items()
        }
        merge(self.whole, layer, self.faults)

    def add_file(self, path: Path) -> str:
        """Merge one file and its defaults; give the file's text.

        Raises:
            ConfigError: it cannot be read, or too many files are named, each by several others.
        """
        self.files.append(path.absolute())
        if len(self.files) > _MOST_FILES:
            raise ConfigError(
                f"{shown(path)}: defaults lead to more than {_MOST_FILES:,} files, each counted as "
                "often as it is named; name each once"
            )
        tree, origins, text = read_file(path, self.faults)
        if path.name == CONFIG_FILE:
            self.withheld += read_private(path.parent)
        self.stack.append(path.resolve())
        self.add(Layer(tree, origins), path.parent, path)
        self.stack.pop()
        return text

    def add(self, layer: Layer, folder: Path, path: Path | None) -> None:
        """Merge a layer, with the files of its ``defaults`` list before or after it."""
        self._search_path(layer, folder)
        entries = self._entries(layer)
        for entry, origin in entries:
            if entry == SELF:
                canonical(layer, self.faults, below=self.whole.tree)
                self.layers += 1
                self.merge(layer)
                continue
            found = find_default(entry, folder, self.folders, path)
            if found is None:
                # A line end in a name would make two lines of one fault.
                name = entry if entry.isprintable() else repr(entry)[1:-1]
                message = unknown_default(name, folder)
                self.faults.append(Fault(f"defaults: {name}", origin, message))
            elif found.resolve() in self.stack:
                chain = " -> ".join(shown(step) for step in [*self.stack, found.resolve()])
                raise ConfigError(f"{origin}: defaults go in a circle: {chain}")
            else:
                self.add_file(found)

    def _entries(self, layer: Layer) -> list[tuple[str, Origin | None]]:
        written = layer.tree.pop("defaults", None)
        origin = nearest(layer.origins, ("defaults",))
        if written is None:
            return [(SELF, origin)]
        if isinstance(written, str):
            written = [written]
        if not isinstance(written, list):
            self.faults.append(Fault("defaults", origin, "must be a list of file names"))
            return [(SELF, origin)]
        entries: list[tuple[str, Origin | None]] = []
        for index, entry in enumerate(written):
            place = nearest(layer.origins, ("defaults", index))
            if isinstance(entry, str) and entry.strip():
                entries.append((entry, place))
            else:
                message = f"must be a file name such as common/base, not {entry!r}"
                self.faults.append(Fault(f"defaults[{index}]", place, message))
        count = sum(entry == SELF for entry, _ in entries)
        if count > 1:
            self.faults.append(
                Fault("defaults", origin, f"{SELF} is there {count} times; keep one")
            )
        if count != 1:
            entries = [item for item in entries if item[0] != SELF] + [(SELF, origin)]
        return entries

    def _search_path(self, layer: Layer, folder: Path) -> None:
        """Read ``hydra.searchpath`` as more folders of the config path."""
        hydra = layer.tree.get("hydra")
        if not isinstance(hydra, dict) or set(hydra) != {"searchpath"}:
            return
        del layer.tree["hydra"]
        written = hydra["searchpath"]
        for item in written if isinstance(written, list) else [written]:
            path = Path(str(item).removeprefix("file://"))
            beside = folder / path
            self.folders.append(beside if beside.is_dir() else path)


def _from_mapping(source: Mapping[str, Any], faults: list[Fault]) -> tuple[Layer, str, Path | None]:
    from plugrl.core.config.sources.writer import dump_yaml

    try:
        given = plain(source, resolve=False)
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"the configuration cannot be read: {type(error).__name__}") from None
    origin = Origin(PYTHON.source, None, Path.cwd())
    tree = _plain_data(given, (), origin, faults)
    origins: Origins = {}
    mark(tree, (), origin, origins)
    return Layer(tree, origins), dump_yaml(tree), None


def _plain_data(value: Any, path: KeyPath, origin: Origin, faults: list[Fault]) -> Any:
    """Copy a Python value to what a YAML file can hold; what cannot be held is a fault."""
    if len(path) > MAX_DEPTH:
        raise ConfigError(f"{dotted(path[:3])}...: nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        copied: dict[str, Any] = {}
        for key, item in value.items():
            if isinstance(key, str) and key:
                name = _unicode(key, path, origin, faults)
                copied[name] = _plain_data(item, (*path, name), origin, faults)
            else:
                faults.append(Fault(dotted(path), origin, f"the key {key!r} is not text"))
        return copied
    if isinstance(value, list):
        return [_plain_data(item, (*path, i), origin, faults) for i, item in enumerate(value)]
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, (str, Path)):
        text = str.__str__(value) if isinstance(value, str) else str(value)
        return _unicode(text, path, origin, faults)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    message = f"a {type(value).__name__} cannot be written in a configuration; give plain values"
    faults.append(Fault(dotted(path), origin, message))
    return None


def _unicode(text: str, path: KeyPath, origin: Origin, faults: list[Fault]) -> str:
    """The text, if a file can hold it; a fault, if it has a half of a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        faults.append(Fault(dotted(path), origin, f"{half!r} is no Unicode; give text in UTF-8"))
        return text.encode(errors="replace").decode()
    return str.__str__(text)


def mapping_text(source: Mapping[str, Any]) -> str:
    """A configuration of Python as the text of a YAML file.

    Raises:
        ConfigError: it holds what no file can.
    """
    faults: list[Fault] = []
    _, text, _ = _from_mapping(source, faults)
    raise_faults(faults, "the configuration cannot be written")
    return text
