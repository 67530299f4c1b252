"""The section ``agents``: how agents are built from parts, and when they are updated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.parts import HeadConfig, PolicyHeadConfig

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


Part = Literal["body", "policy_body", "value_body", "policy_head", "value_head", "solo_head"]
#: The parts of an agent, as ``load_parts`` and parameter groups name them.
PARTS = ("body", "policy_body", "value_body", "policy_head", "value_head", "solo_head")


@dataclass
class LrFactors:
    """What multiplies ``rl.lr``; 0 keeps weights as they are."""

    actor: float = described(1.0, "for the policy", at_least=0, at_most=1000)
    critic: float = described(1.0, "for the value", at_least=0, at_most=1000)


@dataclass
class AgentConfig:
    """How one agent, or the agents of one policy, are built and trained."""

    #: The entry whose values the others change; agents without an entry have all of them.
    default_entry: ClassVar[str] = "_default"

    policy: str | None = described(
        None, "agents that name one policy share its networks; null: the agent has its own"
    )
    is_random: bool = described(False, "act uniformly at random, without networks")
    scripted: str | None = described(
        None, "act as a hand-made policy: one of the task's, or package.module:function"
    )
    body: Any = component("body", "mlp", help="the network below the heads")
    value_body: Any = component("body", help="the critic's own body; null: one like body")
    policy_head: PolicyHeadConfig = described(PolicyHeadConfig, "layers above the body")
    value_head: HeadConfig = described(HeadConfig, "layers of the critic above its body")
    solo_head: HeadConfig = described(
        HeadConfig, "layers that guess the label above the body, where solo_agent trains"
    )
    agent_lr_factor: LrFactors = described(LrFactors, "for all weights of the agent")
    body_lr_factor: LrFactors = described(LrFactors, "for those of bodies, in addition")
    update_schedule: UpdateScheduleConfig = described(
        UpdateScheduleConfig, "the iterations in which the agent learns"
    )
    use_orthogonal_initialisation: bool = described(
        True, "begin with orthogonal weights; false: as torch draws them"
    )
    orthogonal_initialisation_gain: float = described(
        2**0.5, "their gain, but for the last layer of a head", above=0, at_most=1000
    )
    load_from: str | None = described(
        None, "begin with weights of this run: its path, id or experiment"
    )
    load_checkpoint: str = described("newest", "of that run: newest, best or a step")
    load_policy: str | None = described(
        None, "whose weights; null: the policy of the same name, or the only one"
    )
    load_parts: list[Part] = described([], "the parts to load; empty: all")

    def __post_init__(self) -> None:
        for name in ("load_policy", "load_parts"):
            if getattr(self, name) and self.load_from is None:
                raise ConfigError(f"{name} needs load_from, the run to load from")
        if self.is_random and self.scripted is not None:
            raise ConfigError("is_random and scripted exclude each other; remove one")
        for name in ("is_random", "scripted"):
            if getattr(self, name) and self.load_from is not None:
                raise ConfigError(f"load_from cannot be set for an agent with {name}")
