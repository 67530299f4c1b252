"""What the first message of an agent gives away of the label, whatever the others make of it.

Agents that are paid for a verdict may agree on a code, in which a message is the answer rather
than evidence for it. A small network that is trained to guess the label from the message alone
finds out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.parts import Activation, layers, seeded
from plugrl.core.tensordict.environment.message_space import SILENCE
from plugrl.core.tensordict.environment.protocol_environment import Ended, ProtocolEnvironment
from plugrl.core.tensordict.seeding import generator_of
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.protocol.protocol import Protocol
    from plugrl.core.tensordict.environment.vector_environment import VectorEnvironment


@dataclass
class MessageRegressionConfig:
    """A network that guesses the label from the first message of an agent."""

    enabled: bool = described(False, "train one in each iteration, and report its accuracy")
    agents: list[str] | None = described(None, "whose messages; null: those of all that speak")
    test_size: float = described(
        0.2, "part of an iteration's episodes that it is tested on", above=0, below=1
    )
    reset_on_fit: bool = described(True, "begin anew in each iteration, instead of going on")
    mlp_num_layers: int = described(
        2, "hidden layers; 0: none, so that each message has a weight", at_least=0, at_most=1000
    )
    mlp_hidden_size: int = described(64, "their width", at_least=1, at_most=10**6)
    mlp_activation: Activation = described("relu", "what follows each of them")
    mlp_num_epochs: int = described(
        10, "passes over the episodes of an iteration", at_least=1, at_most=10**5
    )
    mlp_batch_size: int = described(
        512, "episodes of one optimizer step", at_least=1, at_most=10**9
    )
    mlp_learning_rate: float = described(1e-3, "learning rate of Adam", above=0, at_most=10)


def first_messages(protocol: Protocol, agent: str, ended: Ended) -> np.ndarray:
    """What an agent said when it first spoke, ``[n, channels]``; ``SILENCE`` elsewhere.

    Args:
        protocol: of the episodes.
        agent: whose words.
        ended: n episodes.
    """
    rows, rounds, channels = ended.history.shape
    first = np.full((rows, channels), SILENCE)
    place = protocol.index(agent)
    for number in range(rounds):
        speaks = protocol.speaks(np.full(rows, number), ended.seed)[:, place]
        messages = np.where(speaks, ended.history[:, number], SILENCE)
        mute = (first == SILENCE).all(1)
        first[mute] = messages[mute]
    return first


class Regressor:
    """The network of one agent, trained on its first messages.

    Args:
        name: of the agent; with the seed and the iteration it decides all that is drawn.
        channels: C.
        messages: K, how many messages there are.
        section: ``message_regression``.
        seed: of the run.
    """

    def __init__(self, name: str, channels: int, messages: int, section: Any, seed: int) -> None:
        self._name, self._messages = name, messages
        self._section, self._seed = section, seed
        self._inputs = channels * messages
        self._begin(0)

    def _begin(self, iteration: int) -> None:
        section = self._section
        widths = [int(section.mlp_hidden_size)] * int(section.mlp_num_layers)
        with seeded(self._seed, "message_regression", self._name, iteration):
            hidden = layers(self._inputs, widths, section.mlp_activation)
            last = nn.Linear(widths[-1] if widths else self._inputs, 2)
            self.network = nn.Sequential(*hidden, last)
        rate = float(section.mlp_learning_rate)
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=rate)

    def fit(self, messages: np.ndarray, labels: np.ndarray, iteration: int) -> dict[str, float]:
        """Train on the episodes of an iteration, and test on those that are held out.

        Args:
            messages: ``[n, C]``, messages or ``SILENCE``.
            labels: ``[n]``.
            iteration: its number.

        Returns:
            ``accuracy`` on the episodes held out, ``chance``, the part of them with the label
            that is more frequent, and ``loss``; nothing where there are too few episodes.
        """
        held_out = int(len(labels) * self._section.test_size)
        if held_out == 0:
            return {}
        if self._section.reset_on_fit:
            self._begin(iteration)
        order = generator_of(self._seed, "message_regression", self._name, "order", iteration)
        shuffled = order.permutation(len(labels))
        inputs = self._one_hot(messages)
        targets = torch.from_numpy(np.asarray(labels, np.int64))
        test, train = shuffled[:held_out], shuffled[held_out:]
        size = int(self._section.mlp_batch_size)
        for _ in range(self._section.mlp_num_epochs):
            drawn = order.permutation(train)
            for rows in np.split(drawn, range(size, len(drawn), size)):
                self._optimizer.zero_grad()
                loss = functional.cross_entropy(self.network(inputs[rows]), targets[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
        with torch.no_grad():
            logits, right = self.network(inputs[test]), targets[test]
            ones = float(right.double().mean())
            return {
                "accuracy": float((logits.argmax(-1) == right).double().mean()),
                "chance": max(ones, 1 - ones),
                "loss": float(functional.cross_entropy(logits, right)),
            }

    def _one_hot(self, messages: np.ndarray) -> torch.Tensor:
        ones = messages[..., None] == np.arange(self._messages)
        return torch.from_numpy(ones.reshape(len(messages), -1).astype(np.float32))

    def state_dict(self) -> dict[str, Any]:
        """Weights and moments, where the next iteration goes on with them; else nothing."""
        if self._section.reset_on_fit:
            return {}
        moments = {
            f"{number}.{name}": value
            for number, state in self._optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }
        return {"weights": dict(self.network.state_dict()), "moments": moments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        if not state:
            return
        self.network.load_state_dict(state["weights"])
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in state["moments"].items():
            number, _, name = key.partition(".")
            moments.setdefault(int(number), {})[name] = value
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})


class MessageRegression:
    """Listens to the episodes of an environment, and fits a network for each agent.

    Args:
        environment: whose episodes.
        section: ``message_regression``.
        seed: of the run.
    """

    def __init__(self, environment: ProtocolEnvironment, section: Any, seed: int) -> None:
        self._protocol = environment.protocol
        self._ended: list[Ended] = []
        environment.listeners.append(self._ended.append)
        channels, messages = len(self._protocol.channels), environment.messages.size
        self.regressors = {
            agent: Regressor(agent, channels, messages, section, seed)
            for agent in section.agents or self._protocol.agent_names
        }

    def metrics(self, iteration: int) -> dict[str, float]:
        """Fit to the episodes that ended since the last call.

        Returns:
            ``message_regression/AGENT/...`` of each agent that spoke; see :meth:`Regressor.fit`.
        """
        metrics: dict[str, float] = {}
        ended = [Ended(*map(np.concatenate, zip(*self._ended, strict=True)))] if self._ended else []
        self._ended.clear()
        for each in ended:
            for agent, regressor in self.regressors.items():
                messages = first_messages(self._protocol, agent, each)
                has_spoken = (messages != SILENCE).any(1)
                fitted = regressor.fit(messages[has_spoken], each.label[has_spoken], iteration)
                metrics |= {f"message_regression/{agent}/{k}": v for k, v in fitted.items()}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """What the networks go on with, by agent."""
        return {name: each.state_dict() for name, each in self.regressors.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        for name, each in self.regressors.items():
            each.load_state_dict(state.get(name, {}))


def regression_fault(section: Any, spaces: Mapping[str, Any]) -> str | None:
    """Why messages cannot be listened to; None: they can, or nobody asks.

    Args:
        section: ``message_regression``; None: there is none.
        spaces: of the agents of the environment.
    """
    if section is None or not section.get("enabled"):
        return None
    if not all(each.layout is not None and "messages" in each.layout for each in spaces.values()):
        return "agents of this scenario say nothing; take one with a protocol, or leave it out"
    for agent in section.get("agents") or ():
        if agent not in spaces:
            return f"agents: there is no {agent!r}{did_you_mean(agent, spaces)}"
    return None


def regression_for(
    environment: VectorEnvironment, section: Any, seed: int
) -> MessageRegression | None:
    """What listens to an environment; None: it is not enabled.

    Raises:
        ConfigError: it cannot.
    """
    fault = regression_fault(section, environment.spaces)
    if fault is not None:
        raise ConfigError(f"message_regression: {fault}")
    if not section.enabled:
        return None
    if not isinstance(environment, ProtocolEnvironment):
        raise ConfigError("message_regression: the scenario's agents hold no conversations")
    return MessageRegression(environment, section, seed)
