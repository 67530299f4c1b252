"""In which iterations an agent learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError

ScheduleType = Literal["constant", "contiguous_periodic", "alternating_periodic"]


@dataclass
class UpdateScheduleConfig:
    """When an agent learns; iterations are counted from 0 within a cycle of ``period``."""

    type: ScheduleType = described("constant", "constant: always; else a part of each cycle")
    period: int | None = described(None, "iterations of a cycle", at_least=1, at_most=10**9)
    start: int | None = described(
        None, "contiguous_periodic: the first iteration with updates", at_least=0, at_most=10**9
    )
    stop: int | None = described(
        None, "contiguous_periodic: the first one without again", at_least=1, at_most=10**9
    )
    first_agent_num_iterations: int | None = described(
        None,
        "alternating_periodic: iterations of the first agent; the rest is the second one's",
        at_least=0,
        at_most=10**9,
    )
    first_agent: bool = described(True, "alternating_periodic: whether this is the first agent")

    def __post_init__(self) -> None:
        needs = _NEEDS[self.type]
        for name in needs:
            if getattr(self, name) is None:
                raise ConfigError(f"{name} is missing; {self.type} needs {', '.join(needs)}")
        for name in ("period", "start", "stop", "first_agent_num_iterations"):
            if name not in needs and getattr(self, name) is not None:
                takes = ", ".join(needs) or "nothing else"
                raise ConfigError(f"{name} is not read by {self.type}, which takes {takes}")
        if self.period is None:
            return
        start, stop = _part(self.__dict__)
        if 0 <= start < stop <= self.period:
            return
        if self.type == "contiguous_periodic":
            raise ConfigError("start must be below stop, and both within 0 and period")
        raise ConfigError(
            "first_agent_num_iterations must be at least 0 and at most period, and leave this "
            "agent some iterations"
        )


_NEEDS: dict[str, tuple[str, ...]] = {
    "constant": (),
    "contiguous_periodic": ("period", "start", "stop"),
    "alternating_periodic": ("period", "first_agent_num_iterations"),
}


def _part(schedule: Mapping[str, Any]) -> tuple[int, int]:
    """The iterations of a cycle in which an agent learns, the second one exclusive."""
    if schedule["type"] == "contiguous_periodic":
        return schedule["start"], schedule["stop"]
    change = schedule["first_agent_num_iterations"]
    return (0, change) if schedule["first_agent"] else (change, schedule["period"])


def is_update_iteration(schedule: Mapping[str, Any], iteration: int) -> bool:
    """Whether an agent learns in an iteration; the first iteration of a run is number 1.

    Args:
        schedule: the section ``update_schedule``, with its defaults.
        iteration: as the run counts them.
    """
    if schedule["type"] == "constant":
        return True
    start, stop = _part(schedule)
    return bool(start <= (iteration - 1) % schedule["period"] < stop)
