"""Hand-made policies: functions in the place of networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.plugins.loading import describe_error, import_named
from plugrl.core.suggest import did_you_mean
from plugrl.core.tensordict.agents.acting import Actor, Array
from plugrl.core.tensordict.agents.discrete import Categorical, MultiCategorical

if TYPE_CHECKING:
    from plugrl.core.tensordict.agents.agents import Agent
    from plugrl.core.tensordict.environment.environment import AgentSpaces

#: Maps spaces, observations ``[N, *observation]`` and a generator to actions ``[N, *action]``.
Script = Callable[["AgentSpaces", np.ndarray, np.random.Generator], np.ndarray]


def script_for(name: str, spaces: AgentSpaces) -> Script:
    """The hand-made policy of a name.

    Args:
        name: of one that the task gives, ``package.module:function`` or ``file.py:function``.
        spaces: of the agent, which know what the task gives.

    Raises:
        ConfigError: there is none.
    """
    if name in spaces.scripts:
        return spaces.scripts[name]
    where, _, attribute = name.partition(":")
    if not attribute:
        given = ", ".join(spaces.scripts) or "none"
        raise ConfigError(
            f"the task has no hand-made policy {name!r}{did_you_mean(name, spaces.scripts)}; it "
            f"has: {given}; others are named package.module:function or file.py:function"
        )
    try:
        module = import_named(where)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(f"{where} cannot be imported: {describe_error(error, where)}") from error
    script = getattr(module, attribute, None)
    if not callable(script):
        known = [each for each in dir(module) if not each.startswith("_")]
        raise ConfigError(f"{where} has no function {attribute!r}{did_you_mean(attribute, known)}")
    return script  # type: ignore[no-any-return]


class ScriptedActor(Actor):
    """Acts as a function says.

    Args:
        agent: which has a script.
        rng: is given to the function.
    """

    def __init__(self, agent: Agent, rng: np.random.Generator) -> None:
        super().__init__(agent, rng)
        assert agent.script is not None, "the agent has no script"
        self._script = agent.script

    def act(self, observation: Array) -> tuple[Array, Array]:
        """What the function says, with log-probabilities of 0.

        Raises:
            ContractError: an action has another shape, or is not allowed.
        """
        action = np.asarray(self._script(self.agent.spaces, observation, self.rng))
        wanted = (len(observation), *self._distribution.action_shape)
        if action.shape != wanted:
            raise self._fault(f"actions of shape {list(action.shape)}; give {list(wanted)}")
        if not np.isfinite(self._one_hot(action, observation)).all():
            raise self._fault("an action that its space has not, or that is masked")
        return action.astype(self._distribution.action_dtype), np.zeros(len(action), np.float32)

    def params(self, observation: Array) -> Array:
        """Ones at the choices of the function, and zeros."""
        return self.act_with_params(observation)[2]

    def act_with_params(self, observation: Array) -> tuple[Array, Array, Array]:
        """See the base class."""
        action, log_prob = self.act(observation)
        params = self._one_hot(action, observation)
        if self._mask is not None:
            params = self._mask.numpy(params, observation)
        return action, log_prob, params

    def best(self, observation: Array) -> Array:
        """See the base class."""
        return self.act(observation)[0]

    def _one_hot(self, action: Array, observation: Array) -> Array:
        """``[N, P]``; not finite where a choice is impossible. Zeros for real numbers."""
        params = np.zeros((len(action), self._distribution.parameters), np.float32)
        of = self._distribution
        if isinstance(of, Categorical):
            counts, starts = np.array([of.parameters]), np.array([of.start])
        elif isinstance(of, MultiCategorical):
            counts, starts = np.array(of.counts), of.starts
        else:
            return params
        chosen = action.reshape(len(action), -1) - starts
        if ((chosen < 0) | (chosen >= counts)).any():
            return np.full_like(params, np.inf)
        places = (chosen + np.cumsum(counts) - counts).astype(np.int64)
        np.put_along_axis(params, places, 1, 1)
        if self._mask is not None:
            masked = np.isneginf(self._mask.numpy(params, observation))
            params[masked & (params > 0)] = np.inf
        return params

    def _fault(self, what: str) -> ContractError:
        name: Any = self.agent.config.get("scripted")
        return ContractError(f"the hand-made policy {name} of {self.agent.name} gave {what}")
