"""Every key of a schema is read near its section: one that nothing reads promises in vain.

Most names of keys (``type``, ``path``, ``timeout``) are read somewhere in the package, so a reader
counts only where the key can be meant: in the files around the schema and its component, and in
those that name its section.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections import defaultdict
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from schemas import roots, schemas_in

import plugrl

PACKAGE = Path(plugrl.__file__).parent

#: Schemas whose view is passed to a file that names neither their section nor their class.
READ_IN = {
    "CurriculumConfig": "core/text/data/curriculum.py",
    "RuntimeMonitorConfig": "core/text/rollout/processes/lockstep.py",
}

#: Folders whose files have nothing to do with their neighbours.
SHOP_WINDOWS = {
    *("core", "config", "run", "text", "tensordict", "trainers", "advantages", "losses"),
    *("evaluators", "scorers", "rollout_workers", "parsers", "protocols", "bodies"),
}


class Source(NamedTuple):
    """What the functions of a file name (attributes and texts), and the modules it imports."""

    names: set[str]
    imports: set[str]


@functools.cache
def sources() -> dict[Path, Source]:
    return {file: _source(file) for file in sorted(PACKAGE.rglob("*.py"))}


def _source(file: Path) -> Source:
    loader = SourceFileLoader(_module(file), str(file))
    code = loader.get_code(loader.name)
    names, imports = set(), set()
    waiting = [code]
    while waiting:
        code = waiting.pop()
        imports.update(name for name in code.co_names if name.partition(".")[0] == "plugrl")
        # The names of a class body are what it defines; checking a value is no use of it.
        if "__qualname__" not in code.co_names and code.co_name != "__post_init__":
            names.update(code.co_names)
            names.update(const for const in code.co_consts if isinstance(const, str))
            names.update(
                text
                for const in code.co_consts
                if isinstance(const, tuple)
                for text in const
                if isinstance(text, str)
            )
        if code.co_name != "__post_init__":
            waiting.extend(const for const in code.co_consts if isinstance(const, CodeType))
    return Source(names, imports)


@functools.cache
def _module(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def around(file: Path) -> set[Path]:
    """A file, what it imports, what imports it, and its folder where that is one component's."""
    module, imports = _module(file), sources()[file].imports
    found = {
        other
        for other, source in sources().items()
        if module in source.imports or _module(other) in imports
    }
    if file.parent.name not in SHOP_WINDOWS:
        found |= set(file.parent.glob("*.py"))
    return found | {file}


def own_keys(schema: type) -> set[str]:
    """The fields that a dataclass does not inherit."""
    return {f.name for f in dataclasses.fields(schema)} & set(inspect.get_annotations(schema))


@functools.cache
def key_readers() -> dict[str, set[Path]]:
    """For each ``Schema.key`` the files in which a reader of that name means this key."""
    files: dict[str, set[Path]] = defaultdict(set)
    for section, hint, component in roots():
        near = {
            file
            for file, source in sources().items()
            if section in source.names and (component is None or "core" in file.parts)
        }
        for base in inspect.getmro(component) if inspect.isclass(component) else [component]:
            module = getattr(base, "__module__", "")
            if module.partition(".")[0] == "plugrl":
                near |= around(Path(str(sys.modules[module].__file__)))
        for schema in schemas_in(hint, set()):
            for base in filter(dataclasses.is_dataclass, schema.__mro__):
                for key in own_keys(base):
                    files[f"{base.__name__}.{key}"] |= near | around(
                        Path(str(inspect.getsourcefile(base)))
                    )
    for name in files:
        if extra := READ_IN.get(name.partition(".")[0]):
            files[name].add(PACKAGE / extra)
    return files


def unread(keys: dict[str, set[Path]]) -> set[str]:
    """The keys whose name is read in none of their files."""
    return {
        name
        for name, files in keys.items()
        if not any(name.partition(".")[2] in sources()[file].names for file in files)
    }


def test_the_schemas_are_found():
    expected = {
        "SettingsConfig.deadline",
        "ModelSourceConfig.dtype",
        "ValidationDataConfig.limit",
        "GrpoConfig.epsilon",
        "ScheduleConfig.decay",
    }
    assert expected <= set(key_readers())


def test_every_key_has_a_reader():
    assert unread(key_readers()) == set()


def test_keys_that_are_read_elsewhere_alone_have_no_reader():
    homes = key_readers()
    strangers = {
        "GrpoConfig.deadline": homes["GrpoConfig.epsilon"],
        "GrpoConfig.replay_start": homes["GrpoConfig.epsilon"],
        "ScheduleConfig.multiline": homes["ScheduleConfig.decay"],
        "SettingsConfig.cliff": homes["SettingsConfig.deadline"],
    }
    assert unread(strangers) == set(strangers)


def test_views_that_are_passed_on_are_read_there_alone():
    for schema, file in READ_IN.items():
        keys = {k: v for k, v in key_readers().items() if k.startswith(f"{schema}.")}
        assert unread({key: files - {PACKAGE / file} for key, files in keys.items()})
