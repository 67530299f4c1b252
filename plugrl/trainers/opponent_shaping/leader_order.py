"""Who leads and who follows among agents that learn: ``spg.stackelberg_sequence``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError, PlugrlError
from plugrl.core.wording import did_you_mean
from plugrl.trainers.opponent_shaping.gradients import STACKELBERG

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.environment.vector_environment import VectorEnvironment

_KEY = "spg.stackelberg_sequence"


def sequence_of(
    section: Any,
    environment: VectorEnvironment,
    policy_of: Mapping[str, str],
    trained: Sequence[str],
) -> list[list[str]]:
    """Groups of policies, those that lead at the front.

    Without a sequence it is that of the environment's protocol; and without a protocol, where no
    best response is asked for, all agents are in one group, in which each looks ahead.

    Args:
        section: ``spg``.
        environment: whose agents they are.
        policy_of: the policy of each agent.
        trained: the policies that learn.

    Raises:
        ConfigError: there is none, it lacks an agent that learns, names one twice or one that is
            not there, or agents of several groups share a policy.
    """
    groups = section.stackelberg_sequence
    protocol = getattr(environment, "protocol", None)
    if groups is None and protocol is not None:
        groups = protocol.stackelberg_sequence
    if groups is None:
        if section.variant in STACKELBERG:
            raise ConfigError(f"{_KEY} {_missing(section.variant)}")
        groups = [list(environment.spaces)]
    fault = _fault(groups, list(environment.spaces))
    if fault is not None:
        raise ConfigError(f"{_KEY} {fault}")
    named = {agent for group in groups for agent in group}
    lacking = [a for a, policy in policy_of.items() if policy in trained and a not in named]
    if lacking:
        raise ConfigError(f"{_KEY} lacks {', '.join(lacking)}, which learns; add it to a group")
    policies = [list(dict.fromkeys(policy_of[agent] for agent in group)) for group in groups]
    shared = [
        p for p, times in Counter(p for group in policies for p in group).items() if times > 1
    ]
    if shared:
        raise ConfigError(
            f"{_KEY} has agents of the policy {shared[0]} in several groups; put them into one, or "
            "give them policies of their own"
        )
    return policies


def sequence_faults(check: Preflight) -> list[Finding]:
    """What is wrong with a sequence, as far as the configuration shows it."""
    section, scenario = check.root.spg, check.root.get("scenario") or {}
    groups = section.stackelberg_sequence
    if groups is None:
        if section.variant in STACKELBERG and scenario and scenario.get("protocol") is None:
            return [(_KEY, _missing(section.variant))]
        return []
    fault = _fault(groups, _agents(check))
    return [] if fault is None else [(_KEY, fault)]


def _agents(check: Preflight) -> list[str] | None:
    scenario = check.component("scenario")
    if scenario is None or check.root.get("scenario") is None:
        return None
    try:
        spaces = scenario(check.root["scenario"]).preview_agents(int(check.root.seed))
    except PlugrlError:
        # The scenario says so itself.
        return None
    return None if spaces is None else list(spaces)


def _fault(groups: Sequence[Sequence[str]], agents: Sequence[str] | None) -> str | None:
    named = [agent for group in groups for agent in group]
    twice = [agent for agent, times in Counter(named).items() if times > 1]
    if twice:
        return f"names {twice[0]} more than once; each agent is in one group"
    if not named or not all(groups):
        return "has an empty group; take it out"
    unknown = [agent for agent in named if agents is not None and agent not in agents]
    if unknown and agents is not None:
        remedy = did_you_mean(unknown[0], agents) or f"; take {', '.join(agents)}"
        return f"names {unknown[0]}, which is no agent of the scenario{remedy}"
    return None


def _missing(variant: str) -> str:
    return (
        f"is missing: {variant} needs to know who leads where no protocol says so; give groups, "
        "such as [[leader], [follower]]"
    )
