"""``ProtocolGame``: one episode of a protocol at a time, with numbers for messages."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import MultiDiscrete
from pettingzoo import ParallelEnv

from plugrl.core.errors import ContractError
from plugrl.core.protocol.protocol import Protocol, ProtocolOutcome, ProtocolSignals, Verdict

_Infos = dict[str, dict[str, Any]]


class ProtocolGame(ParallelEnv[str, np.ndarray, np.ndarray]):
    """The agents of a protocol, of which provers know the label of an episode and others do not.

    An action has a message for each channel that the agent sees, in the order that it is shown
    them, and for verifiers a decision. Parts that have no effect in a round are masked:
    ``infos[agent]["action_mask"]`` is a mask as ``action_space(agent).sample`` takes it, with one
    choice for them, and ``infos[agent]["active"]`` says whether anything has an effect.

    An observation has the round; for provers the label and the verdict that pays them (2: none);
    for each round and channel seen 0 or 1 + the message; for each channel seen whether the agent
    speaks in it next; and for verifiers whether its decision counts next. At the end of an
    episode infos have its ``label`` and ``verdict``.

    Args:
        protocol: what is played.
        messages: how many different messages there are.
    """

    metadata: dict[str, Any] = {"name": "protocol", "render_modes": []}
    render_mode = None

    def __init__(self, protocol: Protocol, messages: int) -> None:
        self.protocol = protocol
        self.messages = messages
        self.possible_agents = list(protocol.agent_names)
        self.agents: list[str] = []
        self._random = np.random.default_rng()
        self._seen = {
            agent: np.array([protocol.channels.index(c) for c in protocol.sees(agent)], int)
            for agent in self.possible_agents
        }
        self._state = protocol.begin([0], [0])
        self._history = np.zeros((protocol.max_message_rounds, len(protocol.channels)), np.int64)

    @functools.cache  # noqa: B019 - a space must be the same object each time
    def observation_space(self, agent: str) -> MultiDiscrete:
        """See the class."""
        rounds, seen = self.protocol.max_message_rounds, len(self._seen[agent])
        told = [2, 3] if agent in self.protocol.prover_names else []
        said = [self.messages + 1] * (rounds * seen)
        return MultiDiscrete([rounds + 1, *told, *said, *[2] * (seen + self._judges(agent))])

    @functools.cache  # noqa: B019 - a space must be the same object each time
    def action_space(self, agent: str) -> MultiDiscrete:
        """See the class."""
        messages = [self.messages] * len(self._seen[agent])
        return MultiDiscrete([*messages, *[3] * self._judges(agent)] or [1])

    def _judges(self, agent: str) -> bool:
        return agent in self.protocol.verifier_names

    def _shown(self, agent: str) -> np.ndarray:
        """The channels that an agent sees, in the order that it is shown them."""
        order: np.ndarray = self.protocol.channel_order(agent, self._state.seed)[0]
        shown: np.ndarray = self._seen[agent][order]
        return shown

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], _Infos]:
        """Begin an episode with another label and seed."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        drawn, label = self._random.integers(0, [2**31, 2])
        self.agents = list(self.possible_agents)
        self._state = self.protocol.begin([drawn], [label])
        self._history = np.zeros_like(self._history)
        return self._observed()

    def step(
        self, actions: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, bool], dict[str, bool], _Infos]:
        """Play a round; what an agent does where it is masked has no effect.

        Raises:
            ContractError: an action is outside of its space.
        """
        present, round = self.agents, int(self._state.round[0])
        speaks = self.protocol.active(self._state)[0]
        said, decisions = self._read(actions)
        if present:
            # No two agents speak in one channel.
            self._history[round] = (speaks * (said + 1)).sum(0)
        outcome = self.protocol.step(self._state, decisions, self._signals(said, decisions))
        self._state = outcome.state
        over = bool(outcome.terminated[0])
        observations, infos = self._observed()
        if over:
            self.agents = []
            self._reveal(infos, outcome)
        rewards = dict(zip(self.possible_agents, outcome.rewards[0].tolist(), strict=True))
        return (
            observations,
            {agent: rewards[agent] for agent in present},
            dict.fromkeys(present, over),
            dict.fromkeys(present, False),
            infos,
        )

    def _read(self, actions: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Messages ``[A, C]`` and decisions ``[1, A]`` of the agents that act."""
        number = len(self.possible_agents)
        said = np.zeros((number, len(self.protocol.channels)), np.int64)
        decisions = np.full((1, number), int(Verdict.UNDECIDED))
        for place, agent in enumerate(self.possible_agents):
            if agent not in actions:
                continue
            action = np.asarray(actions[agent])
            if not self.action_space(agent).contains(action.astype(np.int64)):
                raise ContractError(
                    f"{agent} acts in {self.action_space(agent)}, in which {action.tolist()} is not"
                )
            shown = self._shown(agent)
            said[place, shown] = action[: len(shown)]
            if self._judges(agent):
                decisions[0, place] = action[-1]
        return said, decisions

    def _signals(self, said: np.ndarray, decisions: np.ndarray) -> ProtocolSignals:
        """Ones among zeros for the numbers that were chosen."""
        return ProtocolSignals(
            messages=np.eye(self.messages)[said][None], decisions=np.eye(3)[decisions]
        )

    def _observed(self) -> tuple[dict[str, np.ndarray], _Infos]:
        """What the agents that take part see, and which of their choices have an effect."""
        state = self._state
        speaks, decides = self.protocol.active(state)[0], self.protocol.deciding(state)[0]
        stances = self.protocol.stances(state.seed)[0]
        observations, infos = {}, {}
        for agent in self.agents:
            place, shown = self.possible_agents.index(agent), self._shown(agent)
            turns = speaks[place, shown].astype(np.int64)
            told = [state.label[0], stances[place]] if agent in self.protocol.prover_names else []
            said = self._history[:, shown].ravel()
            may = [int(decides[place])] if self._judges(agent) else []
            parts = (state.round, told, said, turns, may)
            observations[agent] = np.concatenate(parts).astype(np.int64)
            infos[agent] = {
                "active": bool(speaks[place].any() or decides[place]),
                "action_mask": self._mask(agent, turns, may),
            }
        return observations, infos

    def _mask(self, agent: str, turns: np.ndarray, may: list[int]) -> tuple[np.ndarray, ...]:
        first = np.arange(self.messages) == 0
        masks = [first | bool(turn) for turn in turns]
        masks += [(np.arange(3) == Verdict.UNDECIDED) | bool(each) for each in may]
        return tuple(mask.astype(np.int8) for mask in masks or [np.ones(1, bool)])

    def _reveal(self, infos: _Infos, outcome: ProtocolOutcome) -> None:
        for info in infos.values():
            info["label"] = int(self._state.label[0])
            info["verdict"] = int(outcome.verdict[0])
