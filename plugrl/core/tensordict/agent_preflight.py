"""Agents that do not fit their environment, found before a run begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from plugrl.core.errors import ConfigError, PlugrlError
from plugrl.core.factory import Factory
from plugrl.core.tensordict.agents import build_agents

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.distributions import Squash

_AT_KEY = re.compile(r"(agents(?:\.[\w-]+)+): (.*)")


def agent_faults(check: Preflight, squash: Squash) -> Iterator[Finding]:
    """Build the agents once: names, spaces and bodies that do not fit show then.

    Runs to load from are not opened. An environment that cannot be made says so itself.

    Args:
        check: what is asked about.
        squash: how the trainer bounds continuous actions.
    """
    scenario = check.component("scenario")
    if scenario is None:
        return
    try:
        spaces = scenario(check.root["scenario"]).preview_agents(int(check.root.seed))
    except PlugrlError:
        return
    if spaces is None:
        return
    try:
        build_agents(
            spaces,
            check.root.get("agents") or {},
            Factory(check.registry, check.validated.records),
            shared_body=bool(check.root.rl.get("use_shared_body")),
            squash=squash,
            load=False,
        )
    except ConfigError as error:
        said = _AT_KEY.match(str(error))
        yield (said[1], said[2]) if said else ("agents", str(error))
