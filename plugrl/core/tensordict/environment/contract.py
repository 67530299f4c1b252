"""What a vector environment must give, said in terms of the environment that does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.errors import ContractError
from plugrl.core.tensordict.environment.layout import ACTION_MASK

if TYPE_CHECKING:
    from plugrl.core.tensordict.collect.rows import Rows
    from plugrl.core.tensordict.environment.vector_environment import (
        AgentSpaces,
        VectorEnvironment,
    )


def check_reset(environment: VectorEnvironment, given: Any) -> None:
    """Refuse what is no observation ``[N, *observation]`` for each agent.

    Args:
        environment: whose ``reset`` it was.
        given: what it gave.

    Raises:
        ContractError: an agent is missing, or an array has another shape.
    """
    _check_agents(environment, "reset()", given)
    for agent, observation in given.items():
        _check_observation(environment, f"reset() gave {agent}", agent, observation)


def check_step(environment: VectorEnvironment, given: Any) -> None:
    """Refuse what is no ``AgentStep`` with N rows for each agent.

    Args:
        environment: whose ``step`` it was.
        given: what it gave.

    Raises:
        ContractError: an agent is missing, or an array has another shape.
    """
    from plugrl.core.tensordict.environment.vector_environment import AgentStep

    _check_agents(environment, "step()", given)
    for agent, step in given.items():
        if not isinstance(step, AgentStep):
            raise _fault(environment, f"step() gave {agent} a {type(step).__name__}", "AgentStep")
        _check_observation(environment, f"step() gave {agent}", agent, step.observation)
        for name in ("reward", "terminated", "truncated"):
            shape = np.shape(getattr(step, name))
            if shape != (environment.num_envs,):
                what = f"step() gave {agent} {name} of shape {list(shape)}"
                raise _fault(environment, what, f"shape [{environment.num_envs}]")


def check_ends(environment: VectorEnvironment, rows: Rows) -> None:
    """Refuse ends of episodes whose last observation nobody knows.

    Args:
        environment: which gave the steps.
        rows: the steps of a batch.

    Raises:
        ContractError: an episode ended without ``final_observation``, and the step after it was
            one of the next episode.
    """
    lost = (rows.terminated | rows.truncated) & rows.real & ~rows.has_final
    if (lost[:-1] & rows.real[1:]).any():
        raise _fault(
            environment,
            "step() ended an episode without final_observation",
            "the true last observations, or a next step that is not real",
        )


def check_acting(environment: VectorEnvironment, given: Any) -> None:
    """Refuse what does not say of each agent whether its next action has an effect.

    Args:
        environment: whose ``acting`` it was.
        given: what it gave.

    Raises:
        ContractError: an agent is missing, or a mask has another shape or type.
    """
    _check_agents(environment, "acting()", given)
    for agent, mask in given.items():
        array = np.asarray(mask)
        if array.shape != (environment.num_envs,) or array.dtype != bool:
            what = f"acting() gave {agent} {array.dtype} of shape {list(array.shape)}"
            raise _fault(environment, what, f"bool of shape [{environment.num_envs}]")


def check_masks(environment: VectorEnvironment, agent: str, rows: Rows) -> None:
    """Refuse observations that leave an agent nothing to choose from.

    Args:
        environment: which gave the steps.
        agent: one of those whose steps these are.
        rows: the steps of a batch.

    Raises:
        ContractError: of a choice that the agent had to make, nothing was allowed.
    """
    some = offered(environment.spaces[agent], rows.observation[:-1])
    if some is None:
        return
    asked = rows.real if rows.acting is None else rows.real & rows.acting[:-1]
    if (asked & ~some).any():
        raise _fault(
            environment,
            f"an {ACTION_MASK} of {agent} leaves nothing to choose from",
            "at least one allowed value for each choice",
        )


def offered(spaces: AgentSpaces, observation: np.ndarray) -> np.ndarray | None:
    """Where observations ``[..., size]`` leave something to choose from; None: all always do."""
    if spaces.layout is None or ACTION_MASK not in spaces.layout:
        return None
    allowed = observation[..., spaces.layout.slices[ACTION_MASK]] > 0.5
    choices: Any = getattr(spaces.action, "nvec", [allowed.shape[-1]])
    counts = np.ravel(choices)
    some = np.logical_or.reduceat(allowed, np.cumsum(counts) - counts, -1)
    return np.asarray(some.all(-1))


def _check_agents(environment: VectorEnvironment, what: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise _fault(environment, f"{what} gave a {type(given).__name__}", "a dictionary by agent")
    if given.keys() != environment.spaces.keys():
        names = ", ".join(map(str, given)) or "no agent"
        wanted = ", ".join(environment.spaces)
        raise _fault(environment, f"{what} gave {names}", f"one entry for each of spaces: {wanted}")


def _check_observation(
    environment: VectorEnvironment, what: str, agent: str, observation: Any
) -> None:
    wanted = [environment.num_envs, *(environment.spaces[agent].observation.shape or ())]
    shape = list(np.shape(observation))
    if shape != wanted:
        raise _fault(environment, f"{what} observations of shape {shape}", f"shape {wanted}")


def _fault(environment: VectorEnvironment, what: str, wanted: str) -> ContractError:
    return ContractError(f"environment {type(environment).__name__}: {what}; give {wanted}")
