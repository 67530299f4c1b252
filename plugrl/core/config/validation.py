"""The whole configuration against its schemas, in one report."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING

from plugrl.core.config.check import Checker
from plugrl.core.config.phases import check_phases
from plugrl.core.config.preflight import find_more_faults
from plugrl.core.config.root import RootChecker
from plugrl.core.config.sources.compose import ComposedConfig
from plugrl.core.config.sources.origins import (
    Fault,
    nearest,
    raise_faults,
)
from plugrl.core.config.validated import ValidatedConfig
from plugrl.core.errors import PluginError

if TYPE_CHECKING:
    from plugrl.core.plugins.registry import Registry


def validate(
    composed: ComposedConfig,
    registry: Registry,
    *,
    preflight: bool = False,
    elsewhere: bool = False,
) -> ValidatedConfig:
    """Check a composed configuration and fill in the defaults.

    With ``preflight`` a configuration with faults is asked for those too that its components find.
    Plugins that ``plugins.disable`` names are blocked in ``registry`` first. ``elsewhere``:
    absolute paths are those of another machine, and may be missing here.

    Raises:
        ConfigError: with all faults at once.
        PluginError: the only thing wrong is a plugin that the configuration names.
    """
    checker = Checker(registry, dict(composed.origins), composed.unresolved, elsewhere=elsewhere)
    root = RootChecker(checker, copy.deepcopy(composed.tree), removed=composed.removed)
    root.plugins()
    if composed.tree:
        root.trainer()
    else:
        example = "write at least trainer: with a type, or begin with defaults: [quickstart]"
        checker.fault(("trainer",), f"the configuration is empty; {example}")
    phases = check_phases(root)
    if phases is None:
        root.sections()
        root.place_unknown()
    faults = [*composed.faults, *checker.faults]
    if not faults:
        root.cross_check()
        faults = checker.faults
    elif preflight and root.cls is not None:
        faults += find_more_faults(root.result(phases or []), registry, faults)
    faults = _told_once([_with_removal(fault, root) for fault in faults], checker)
    if checker.plugin_error is not None and all(
        fault.message == str(checker.plugin_error) for fault in faults
    ):
        raise PluginError(str(faults[0])) from checker.plugin_error.__cause__
    name = str(composed.source) if composed.source is not None else "the configuration"
    raise_faults(faults, f"{name} is wrong")
    return root.result(phases or [])


def _with_removal(fault: Fault, root: RootChecker) -> Fault:
    """Say of what a removed section lacks who removed it."""
    name = fault.path.partition(".")[0]
    if name not in root.removed or root.tree.get(name):
        return fault
    where = f"null in {nearest(root.checker.origins, (name,))} removes what other files say of it"
    return dataclasses.replace(fault, message=f"{fault.message}; {where}")


def _told_once(faults: list[Fault], checker: Checker) -> list[Fault]:
    """The faults, with what cannot be imported at the first of the places that name it."""
    failed = dict.fromkeys((str(error) for error in checker.pick.failures.values()), False)
    kept = []
    for fault in faults:
        if not failed.get(fault.message):
            kept.append(fault)
        if fault.message in failed:
            failed[fault.message] = True
    return kept
