"""Matches names to known components, and builds the errors for no match and for several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plugrl.core.errors import (
    AmbiguousComponentError,
    PluginError,
    UnknownComponentError,
    UsageError,
)
from plugrl.core.plugins.kinds import (
    KIND_OF_GROUP,
    KINDS,
    OWN,
    Kind,
    Record,
    current_kind,
    former_group_warning,
)
from plugrl.core.plugins.loading import component_label
from plugrl.core.plugins.packages.installed import (
    EntryPoint,
    PluginSelection,
    group_problem,
    normalize,
)
from plugrl.core.wording import did_you_mean


def record_of(entry: EntryPoint) -> Record:
    """The record of an entry point of a component."""
    return Record(
        kind=KIND_OF_GROUP[entry.group],
        name=entry.name,
        target=entry.target,
        distribution=entry.distribution,
        version=entry.version,
    )


def known_kind(name: str) -> Kind:
    """The row of :data:`KINDS` with this name, else a :class:`UsageError`.

    The name of an earlier version will do, with a warning.
    """
    name = current_kind(name)
    if name not in KINDS:
        raise UsageError(
            f"there is no kind {name!r}{did_you_mean(name, KINDS) or ';'} kinds: {', '.join(KINDS)}"
        )
    return KINDS[name]


def match_record(kind: str, name: str, records: Iterable[Record]) -> Record | None:
    """The one record that ``name`` means; None: nobody provides it.

    ``distribution/name`` is exact. For a bare name: user code, then plugrl's own, then the one
    other installed distribution.

    Raises:
        AmbiguousComponentError: two other distributions provide the bare name.
    """
    distribution, qualified, bare = name.rpartition("/")
    matches = [record for record in records if record.kind == kind and record.name == bare]
    if qualified:
        wanted = normalize(distribution)
        matches = [r for r in matches if r.distribution and normalize(r.distribution) == wanted]
    users = [record for record in matches if record.distribution is None]
    own = [r for r in matches if r.distribution and normalize(r.distribution) == OWN]
    for tier in (users, own, matches):
        if len(tier) == 1:
            return tier[0]
    if not matches:
        return None
    providers = " and ".join(record.provider for record in matches)
    spellings = " or ".join(record.reference for record in matches)
    raise AmbiguousComponentError(f"{kind} {name!r} is provided by {providers}; write {spellings}")


def unknown_component(
    kind: str,
    name: str,
    records: Sequence[Record],
    selection: PluginSelection,
    failed: Sequence[str],
    entries: Iterable[EntryPoint] = (),
) -> UnknownComponentError:
    """The error for a name that nobody provides.

    ``records`` include those of disabled plugins; ``failed`` describes the hook plugins that
    did not load, any of which may have been meant to register the name; ``entries`` are the
    installed ones, of which one in a misspelt group may have been meant to provide it.
    """
    usable = []
    for record in records:
        refusal = selection.refusal(record.distribution, record.name)
        if refusal is None:
            usable.append(record)
        elif _record_matches(name, record):
            return UnknownComponentError(
                f"{kind} {name!r} is provided by {record.provider}, which is {refusal}"
            )
    for entry in entries:
        problem = group_problem(entry.group)
        if problem is not None and _name_matches(name, entry.name, entry.distribution):
            return UnknownComponentError(
                f"unknown {kind} {name!r}: {entry.distribution} {entry.version} declares it, but "
                f"it is {problem} in its setup.cfg or pyproject.toml and install it again"
            )
    names = sorted({record.name for record in usable})
    known = {*names, *(record.reference for record in usable)} if "/" in name else set(names)
    broken = f"; not loaded: {'; '.join(failed)}" if failed else ""
    close = did_you_mean(name, sorted(known))
    remedy = f"; see plugrl ls {KINDS[kind].plural}; {_custom_component_hint(kind, name)}"
    if close and ".py" not in name:
        remedy = ""
    return UnknownComponentError(
        f"unknown {kind} {name!r}{close or ';'}"
        f" installed: {', '.join(names) or 'none'}{broken}{remedy}"
    )


def _custom_component_hint(kind: str, name: str) -> str:
    """The hint on how to name a component of one's own."""
    file, written, attribute = name.partition(".py")
    path = f"{file}.py" if written else "FILE"
    given = attribute.removeprefix(":") or "CLASS"
    return (
        f"for your own write custom_{kind}_module_path: {path} with custom_{kind}_class_name: "
        f"{given} and no type, or register its name in a file and give -p {path}"
    )


def _record_matches(name: str, record: Record) -> bool:
    return _name_matches(name, record.name, record.distribution or "")


def _name_matches(wanted: str, name: str, provider: str) -> bool:
    distribution, _, bare = wanted.rpartition("/")
    return bare == name and (not distribution or normalize(distribution) == normalize(provider))


def check_installed(record: Record, entries: Iterable[EntryPoint]) -> EntryPoint:
    """The entry point behind a record that another process may have sent.

    Raises:
        PluginError: the distribution is not installed here, has another version, or declares
            another target.
    """
    wanted = normalize(record.distribution or "")
    mine = [entry for entry in entries if normalize(entry.distribution) == wanted]
    remedy = f"install {record.distribution}=={record.version} in the environment of every process"
    if not mine:
        raise PluginError(f"{component_label(record)} is not installed in this process; {remedy}")
    if mine[0].version != record.version:
        raise PluginError(
            f"{component_label(record)} has version {mine[0].version} in this process; {remedy}"
        )
    if record.source != "entry point":
        return mine[0]
    wanted_component = record.kind, record.name
    declared = [e for e in mine if (KIND_OF_GROUP.get(e.group), e.name) == wanted_component]
    if not declared:
        raise PluginError(f"{component_label(record)} is not declared in this process; {remedy}")
    # A package may declare one component in the current and the former group: prefer the current.
    entry = min(declared, key=lambda each: former_group_warning(each.group) is not None)
    if entry.target != record.target:
        raise PluginError(f"{component_label(record)} is {entry.target} in this process; {remedy}")
    return entry
