"""How a policy chooses actions while steps are collected.

A step of a small environment costs a few microseconds, and so does each operation of torch. For
networks of linear layers with tanh or ReLU on the CPU all is therefore done in NumPy, on the same
memory as the weights that torch trains; other networks are asked in torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plugrl.core.errors import ContractError
from plugrl.core.tensordict.agents.distributions.continuous import Normal
from plugrl.core.tensordict.agents.distributions.discrete import Categorical, MultiCategorical
from plugrl.core.tensordict.agents.gsde import GsdeHead
from plugrl.core.tensordict.agents.parts import Head, Link, chain_of

if TYPE_CHECKING:
    from plugrl.core.tensordict.agents.agent import Agent

Array = np.ndarray[Any, Any]


class Actor(ABC):
    """Chooses actions for rows of observations; what it draws comes from its generator.

    Args:
        agent: whose policy it is.
        rng: the generator.
    """

    def __init__(self, agent: Agent, rng: np.random.Generator) -> None:
        self.agent = agent
        self.rng = rng
        self._distribution = agent.distribution
        self._mask = agent.mask

    @abstractmethod
    def params(self, observation: Array) -> Array:
        """``[N, *observation]`` to the parameters of the distribution, ``[N, P]``.

        What is given is overwritten by the next call.
        """

    def act(self, observation: Array) -> tuple[Array, Array]:
        """Actions ``[N, *action]`` that are drawn, and their log-probabilities ``[N]``."""
        return self._distribution.sample_numpy(self.params(observation), self.rng)

    def act_with_params(self, observation: Array) -> tuple[Array, Array, Array]:
        """As :meth:`act`, and the parameters ``[N, P]`` that actions were drawn from."""
        params = self.params(observation)
        return (*self._distribution.sample_numpy(params, self.rng), params)

    def best(self, observation: Array) -> Array:
        """The likeliest actions, ``[N, *action]``."""
        return self._distribution.mode_numpy(self.params(observation))

    def begin_rollout(self) -> None:  # noqa: B027 - only one kind of actor holds on to noise
        """Called before the first step of a rollout: noise that lasts for one is drawn anew."""

    def refresh(self) -> None:  # noqa: B027 - only one kind of actor holds on to memory
        """Look the weights up again, after something replaced their memory."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the generator."""
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self.rng.bit_generator.state = state["rng"]


class RandomActor(Actor):
    """Acts uniformly at random."""

    def params(self, observation: Array) -> Array:
        """Zeros: nothing is preferred."""
        params = np.zeros((len(observation), self._distribution.parameters), np.float32)
        return params if self._mask is None else self._mask.numpy(params, observation)

    def act(self, observation: Array) -> tuple[Array, Array]:
        """See the base class."""
        if self._mask is not None:
            return super().act(observation)
        return self._distribution.uniform_numpy(len(observation), self.rng)

    def best(self, observation: Array) -> Array:
        """Random ones too: none is better than another."""
        return self.act(observation)[0]


class TorchActor(Actor):
    """Asks the networks in torch, wherever they are."""

    def params(self, observation: Array) -> Array:
        """See the base class."""
        device = next(self.agent.parameters()).device
        with torch.no_grad():
            seen = torch.from_numpy(np.ascontiguousarray(observation)).to(device)
            return self.agent.policy(seen).cpu().numpy()


class GsdeActor(TorchActor):
    """Explores by noise that depends on the state: :class:`GsdeHead` says how.

    A matrix of noise for each row is held until a rollout begins, or ``sde_sample_freq`` steps are
    over. What is best has no noise.
    """

    def __init__(self, agent: Agent, rng: np.random.Generator) -> None:
        super().__init__(agent, rng)
        assert agent.policy_body is not None
        assert isinstance(agent.policy_head, GsdeHead), "the policy has no such noise"
        self._body, self._head = agent.policy_body, agent.policy_head
        self._period: int | None = agent.config["policy_head"]["sde_sample_freq"]
        self.begin_rollout()

    def begin_rollout(self) -> None:
        """See the base class."""
        self._matrices: torch.Tensor | None = None
        self._steps = 0

    def act(self, observation: Array) -> tuple[Array, Array]:
        """See the base class."""
        return self.act_with_params(observation)[:2]

    def act_with_params(self, observation: Array) -> tuple[Array, Array, Array]:
        """See the base class; where agents take turns, another number of rows has new noise."""
        device, distribution = self._head.log_std.device, self._distribution
        assert isinstance(distribution, Normal)
        with torch.no_grad():
            seen = torch.from_numpy(np.ascontiguousarray(observation)).to(device)
            features = self._body(self.agent.encode(seen))
            params = self._head(features)
            noise = self._head.noise(features, self._held(len(seen)))
            action, log_prob = distribution.moved(params, noise)
        return action.cpu().numpy(), log_prob.cpu().numpy(), params.cpu().numpy()

    def _held(self, rows: int) -> torch.Tensor:
        """The matrices of this step."""
        over = self._period is not None and self._steps % self._period == 0
        if self._matrices is None or over or len(self._matrices) != rows:
            log_std = self._head.log_std
            drawn = self.rng.standard_normal((rows, *log_std.shape), np.float32)
            drawn_there = torch.from_numpy(drawn).to(log_std.device)
            self._matrices = self._head.exploration_matrices(drawn_there)
        self._steps += 1
        return self._matrices

    def state_dict(self) -> dict[str, Any]:
        """The generator, and the noise that is held."""
        return {**super().state_dict(), "matrices": self._matrices, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See the base class."""
        super().load_state_dict(state)
        self._steps = int(state["steps"])
        held = state["matrices"]
        self._matrices = None if held is None else held.to(self._head.log_std.device)


class NumpyActor(Actor):
    """Computes a chain of linear layers in NumPy, a column for each row of observations.

    With columns, weights are used as they lie in memory, and so are the choices of an action.

    Args:
        agent: whose policy it is.
        rng: the generator.
        links: the layers of the policy.
        free: parameters of the distribution that no observation changes.
    """

    def __init__(
        self,
        agent: Agent,
        rng: np.random.Generator,
        links: list[Link],
        free: torch.nn.Parameter | None,
    ) -> None:
        super().__init__(agent, rng)
        self._links = links
        self._free = free
        self._plain = agent.encoder.is_plain and len(agent.encoder.shape) == 1
        self.refresh()

    def refresh(self) -> None:
        """See the base class; done by itself when the first weights have moved."""
        self._watched = self._links[0].linear.weight
        self._address = self._watched.data_ptr()
        #: By the number of rows: weight, bias, activation and where the layer's numbers go.
        self._layers: dict[int, list[tuple[Array, Array, Any, Array]]] = {}
        self._free_numbers = None if self._free is None else self._free.detach().numpy()[:, None]

    def params(self, observation: Array) -> Array:
        """See the base class."""
        if self._watched.data_ptr() != self._address:
            self.refresh()
        if self._plain and observation.dtype == np.float32:
            columns = observation.T
        else:
            columns = self.agent.encoder.numpy(observation).reshape(len(observation), -1).T
        layers = self._layers.get(columns.shape[1])
        if layers is None:
            layers = self._layers[columns.shape[1]] = self._laid_out(columns.shape[1])
        for weight, bias, activation, numbers in layers:
            np.add(np.dot(weight, columns, numbers), bias, numbers)
            columns = numbers
            if activation is not None:
                activation(numbers, out=numbers)
        if self._free_numbers is not None:
            columns = np.concatenate([columns, np.broadcast_to(self._free_numbers, columns.shape)])
        if self._mask is not None:
            return self._mask.numpy(columns.T, observation)
        return columns.T

    def _laid_out(self, rows: int) -> list[tuple[Array, Array, Any, Array]]:
        return [
            (
                link.linear.weight.detach().numpy(),
                link.linear.bias.detach().numpy()[:, None],
                None if link.activation is None else _UFUNCS[link.activation],
                np.empty((link.linear.out_features, rows), np.float32),
            )
            for link in self._links
        ]


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


_UFUNCS = {"tanh": np.tanh, "relu": partial(np.maximum, np.float32(0))}


def acting_for(agent: Agent, rng: np.random.Generator) -> Actor:
    """What chooses actions for an agent, in the quickest way that its networks allow."""
    if agent.script is not None:
        return ScriptedActor(agent, rng)
    if agent.is_random:
        return RandomActor(agent, rng)
    body, head = agent.policy_body, agent.policy_head
    if isinstance(head, GsdeHead):
        return GsdeActor(agent, rng)
    if body is None or not isinstance(head, Head):
        return TorchActor(agent, rng)
    links = chain_of(body, head.layers)
    weights = [*body.parameters(), *head.parameters()]
    if links is None or any(w.device.type != "cpu" or w.dtype != torch.float32 for w in weights):
        return TorchActor(agent, rng)
    return NumpyActor(agent, rng, links, head.free)
