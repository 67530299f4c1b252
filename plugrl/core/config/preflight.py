"""What a configuration asks for and the machine does not have: files, columns, devices.

A preflight is a look, not a load: headers and first records of files, no model, no tokenizer. It
runs after the schemas and before a run folder is made, and its faults read like theirs.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.core.config.bad import Touched
from plugrl.core.config.hidden import without_credentials
from plugrl.core.config.names import agent_fault, model_fault, names_in, split_fault
from plugrl.core.config.schemas.sections import PHASE_NAMES
from plugrl.core.config.sources.files import folder_fault
from plugrl.core.config.sources.origins import (
    COMMAND_LINE,
    PYTHON,
    Fault,
    KeyPath,
    fault_at,
    keys_of,
    nearest,
)
from plugrl.core.errors import PluginError, PlugrlError
from plugrl.core.plugins.loading import component_label
from plugrl.core.plugins.packages.requirements import missing_package
from plugrl.core.plugins.user_code.error_location import (
    first_line,
    one_line,
    raised_at,
    source_location,
)
from plugrl.core.plugins.user_code.working_folder import absolute_path
from plugrl.core.wording import close_names, did_you_mean

if TYPE_CHECKING:
    from plugrl.core.config.validated import ValidatedConfig
    from plugrl.core.config.view import HyperParameters
    from plugrl.core.plugins.registry import Registry

#: A fault: the path of the setting to change, and what is wrong with it.
Finding = tuple[str, str]


@dataclass(frozen=True)
class Preflight:
    """What a component sees in its ``preflight``.

    Attributes:
        path: where the configuration picks the component, such as ``models.policy.inference``.
        root: the whole configuration.
    """

    path: str
    root: HyperParameters
    validated: ValidatedConfig
    registry: Registry

    @property
    def section(self) -> Any:
        """The component's own section."""
        return section_at(self.root, self.path)

    @property
    def models(self) -> Mapping[str, Any]:
        """The section ``models``; empty when there is none."""
        models: Mapping[str, Any] = self.root.get("models") or {}
        return models

    def component(self, path: str) -> Any:
        """The class or function that the configuration picks at ``path``; None if it picks none."""
        record = self.validated.records.get(path)
        return None if record is None else self.registry.load(record)

    @functools.cached_property
    def scenario(self) -> Mapping[str, Sequence[Mapping[str, Any]]] | None:
        """Some problems of each split of the task; None: there is no task or it cannot tell.

        Raises:
            PlugrlError: the task cannot be built.
        """
        cls = self.component("scenario")
        if cls is None or self.root.get("scenario") is None:
            return None
        scenario = cls(self.root["scenario"])
        preview: Mapping[str, Sequence[Mapping[str, Any]]] | None = scenario.preview(self.root.seed)
        return preview


def find_faults(validated: ValidatedConfig, registry: Registry) -> list[Fault]:
    """Ask every component that the configuration picks, those of phases included."""
    return list(_found(validated, registry, _ask))


def find_more_faults(
    validated: ValidatedConfig, registry: Registry, known: Sequence[Fault]
) -> list[Fault]:
    """Ask what can be asked about a configuration with faults, so that one report tells them all.

    What looks at a value that is wrong is not asked on, and what may follow from a known fault is
    not told: whatever is around or below it, or beside a key that nobody knows.
    """
    if any(not fault.path or fault.path.startswith("defaults") for fault in known):
        return []
    around = [_cause(fault) for fault in known]
    found: list[Fault] = []
    # Of a section that is wrong as a whole nothing can be asked.
    with contextlib.suppress(Touched, PlugrlError, LookupError, AttributeError, TypeError):
        found.extend(_found(validated, registry, _ask_in_part))
    return [fault for fault in found if not any(_concerns(fault.path, each) for each in around)]


def _cause(fault: Fault) -> KeyPath:
    """What a fault makes doubtful: its own path, or the section in which a key was misspelt."""
    path = keys_of(fault.path)
    if fault.unknown is None and "unknown key" not in fault.message:
        return path
    if len(path) == 1 and fault.suggestion:
        return keys_of(fault.suggestion.partition(" or ")[0])
    return path[:-1] or path


def _concerns(path: str, cause: KeyPath) -> bool:
    keys = keys_of(path)
    size = min(len(keys), len(cause))
    return keys[:size] == cause[:size]


def _found(
    validated: ValidatedConfig,
    registry: Registry,
    ask: Callable[[ValidatedConfig, Registry, str, Any], Iterable[Finding]],
) -> Iterator[Fault]:
    settings = (*_device(validated), *_deadlines(validated), *_folders(validated))
    faults = [Fault(path, _origin(validated, path), text) for path, text in settings]
    told = set()
    for path, record in validated.records.items():
        if validated.phases and path != "trainer":
            # Sections at the root belong to the phases, which look at them merged.
            continue
        for where, message in ask(validated, registry, path, record):
            # A component words its message from values of which nobody said that they may be shown.
            shown = without_credentials(message)
            faults.append(fault_at(validated.origins, keys_of(where), shown))
            told.add(where)
    for where, message in () if validated.phases else _name_findings(validated, registry):
        # Who looks a name up himself has more to say of it.
        if where not in told:
            faults.append(fault_at(validated.origins, keys_of(where), message))
    for number, (_, phase) in enumerate(validated.phases):
        for fault in _found(phase, registry, ask):
            faults.append(_moved(fault, validated, number))
    yield from _told_once(faults)


def _ask_in_part(
    validated: ValidatedConfig, registry: Registry, path: str, record: Any
) -> Iterator[Finding]:
    findings = _ask(validated, registry, path, record)
    while True:
        try:
            yield next(findings)
        except StopIteration:
            return
        except Exception:
            # It needs a value that is wrong.
            return


def _name_findings(validated: ValidatedConfig, registry: Registry) -> Iterator[Finding]:
    """Names that fields declare and that are not there; columns are left to who reads the data."""
    check = Preflight("trainer", validated.hyper_params, validated, registry)
    schemas = [
        (path, getattr(registry.load(record), "Config", None))
        for path, record in validated.records.items()
    ]
    for path, schema in (*schemas, *validated.trainer.sections.items()):
        with contextlib.suppress(LookupError, Touched, TypeError):
            for where, kind, name in names_in(schema, section_at(validated.tree, path), path):
                fault = _name_fault(check, kind, name)
                if fault is not None:
                    yield where, fault


def _name_fault(check: Preflight, kind: str, name: str) -> str | None:
    fault: str | None = None
    trainer = check.component("trainer")
    if kind == "model":
        return model_fault(check.models, name)
    if kind == "metric":
        fault = trainer.metric_fault(check, name)
    elif kind == "agent" and (agents := trainer.known_agents(check)) is not None:
        fault = agent_fault(name, agents)
    elif kind == "split":
        # A task that cannot be built says so itself.
        with contextlib.suppress(PlugrlError):
            if (splits := check.scenario) is not None:
                fault = split_fault(name, splits, check.root["scenario"].get("type"))
    return fault


def metric_fault(validated: ValidatedConfig, registry: Registry, name: str) -> str | None:
    """Why neither the trainer nor a phase reports a metric; None: one does, or may."""
    if validated.phases:
        faults = [metric_fault(phase, registry, name) for _, phase in validated.phases]
        return faults[-1] if all(faults) else None
    check = Preflight("trainer", validated.hyper_params, validated, registry)
    fault: str | None = check.component("trainer").metric_fault(check, name)
    return fault


def _told_once(faults: Sequence[Fault]) -> list[Fault]:
    """The faults, without those that phases have from a value that is refused by itself."""

    def shared(fault: Fault) -> bool:
        return any(
            (fault.origin, fault.message) == (other.origin, other.message)
            and fault.path.endswith(f"].{other.path}")
            for other in faults
        )

    return [fault for fault in faults if not shared(fault)]


def _ask(
    validated: ValidatedConfig, registry: Registry, path: str, record: Any
) -> Iterator[Finding]:
    component = registry.load(record)
    ask = getattr(component, "preflight", None)
    if ask is None:
        return
    try:
        yield from ask(Preflight(path, validated.hyper_params, validated, registry))
    except PluginError:
        raise
    except PlugrlError as error:
        yield path, str(error)
    except (Exception, SystemExit) as error:
        lacking = missing_package(record.distribution, error)
        if lacking is not None:
            raise PluginError(f"{path}: {component_label(record)} {lacking}") from error
        name = getattr(component, "__qualname__", path)
        at = raised_at(error) or source_location(component)
        text = f"{path}: {name}.preflight raised {one_line(error)}" + (f" at {at}" if at else "")
        raise PluginError(text) from error


def _device(validated: ValidatedConfig) -> Iterator[Finding]:
    name = str(validated.tree.get("settings", {}).get("device", "auto"))
    fault = None if name in ("auto", "cpu") else device_fault(name)
    if fault is not None:
        yield "settings.device", fault


def _deadlines(validated: ValidatedConfig) -> Iterator[Finding]:
    """Time limits of phases that there are not; trainers of users may have phases of their own."""
    trainers = [validated.trainer, *(phase.trainer for _, phase in validated.phases)]
    own = all(str(getattr(each, "__module__", "")).startswith("plugrl.") for each in trainers)
    section = validated.tree.get("settings")
    deadlines = section.get("deadlines") if isinstance(section, dict) else None
    for name in deadlines if isinstance(deadlines, dict) else ():
        close = did_you_mean(name, PHASE_NAMES, 1)
        if name not in PHASE_NAMES and (own or close):
            names = close or f"; phases: {', '.join(PHASE_NAMES)}"
            yield f"settings.deadlines.{name}", f"no phase has this name{names}"


def _folders(validated: ValidatedConfig) -> Iterator[Finding]:
    """Folders in which a run could not be made."""
    section = validated.tree.get("settings")
    given = section if isinstance(section, dict) else {}
    checkpoints = os.path.expanduser(str(given.get("checkpoint_path")))
    for key, what, path in (
        ("runs_folder", "run", absolute_path(str(given.get("runs_folder", "runs")))),
        ("checkpoint_path", "checkpoint", Path(checkpoints)),
    ):
        fault = folder_fault(path.absolute()) if given.get(key) else None
        if fault is not None:
            yield f"settings.{key}", f"cannot make the {what} folder: {fault}"


def device_fault(name: str) -> str | None:
    """Why a device cannot be used; None: it can."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        kind = name.partition(":")[0]
        close = close_names(kind, ("auto", "cpu", "cuda", "mps"), 1)
        if close and close[0] != kind:
            return f"there is no device {name}; did you mean {close[0]}?"
        return f"{name} cannot be used: {first_line(error)}"
    return None


def _moved(fault: Fault, outer: ValidatedConfig, number: int) -> Fault:
    """A fault of a phase; what the phase wrote itself is named within it."""
    name = fault.path.partition(".")[0].partition("[")[0]
    item = outer.tree["trainer"]["phases"][number]
    shared = fault.origin not in (None, COMMAND_LINE, PYTHON) and (
        fault.origin == _origin(outer, fault.path)
    )
    if name not in item or shared:
        return fault
    path = f"trainer.phases[{number}].{fault.path}"
    return Fault(path, fault.origin or _origin(outer, path), fault.message)


def _origin(validated: ValidatedConfig, path: str) -> Any:
    return nearest(validated.origins, keys_of(path), written=True)


def section_at(root: Any, path: str) -> Any:
    """What stands in a configuration at ``path``, such as ``trackers[0].type``."""
    for key in keys_of(path):
        root = root[key]
    return root
