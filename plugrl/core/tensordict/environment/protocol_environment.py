"""``ProtocolEnvironment``: episodes of a protocol between small networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from plugrl.core.errors import ContractError
from plugrl.core.protocol.protocol import Protocol, ProtocolSignals, ProtocolState, Verdict
from plugrl.core.protocol.state import scatter
from plugrl.core.tensordict.environment.labelled_dataset import Labelled
from plugrl.core.tensordict.environment.message_space import SILENCE, MessageSpace
from plugrl.core.tensordict.environment.protocol_metrics import ProtocolMetrics
from plugrl.core.tensordict.environment.protocol_view import Items, ProtocolView
from plugrl.core.tensordict.environment.vector_environment import (
    AgentStep,
    Script,
    VectorEnvironment,
)
from plugrl.core.tensordict.seeding import generator_of


class Ended(NamedTuple):
    """n episodes that ended: labels and seeds ``[n]``, and messages ``[n, rounds, channels]``."""

    label: np.ndarray
    seed: np.ndarray
    history: np.ndarray


class ProtocolEnvironment(VectorEnvironment):
    """N episodes of a protocol about the items of a data set; all agents see the items.

    An observation has the parts, see :class:`Layout`, where S is how many channels the agent
    sees, in the order that it is shown them, and K the number of messages:

    - the arrays of the data set under their own names;
    - ``round`` ``[rounds]``, a one at the round that comes next;
    - ``messages`` ``[rounds, S, K]``, a one at each message so far;
    - ``last_message`` ``[S, K]``, a one at the last message in each channel;
    - ``speaks`` ``[S]``, where the agent speaks next, and ``may_decide`` ``[1]``;
    - ``stance`` ``[2]``, for provers whose stance is random: a one at the verdict that pays;
    - ``action_mask`` ``[S K + 3]``, or ``[S K]`` for agents that do not decide.

    An action has a message for each channel seen and, for those that decide, a verdict.

    Args:
        protocol: who speaks when, and what it is worth.
        data: the items, with labels 0 and 1; results are reported of its groups too.
        messages: what agents can say.
        num_envs: N.
        once: play each item once in its order, as in evaluations; else items come in an order
            that the seed decides, another one each time.
        scripts: hand-made policies that agents can take.

    Raises:
        ContractError: there are no items, or labels other than 0 and 1.

    Attributes:
        listeners: each is given the episodes that end in a step.
    """

    score = "accuracy"

    def __init__(
        self,
        protocol: Protocol,
        data: Labelled,
        messages: MessageSpace,
        *,
        num_envs: int,
        once: bool = False,
        scripts: Mapping[str, Script] | None = None,
    ) -> None:
        if not len(data) or data.labels.max() > 1:
            raise ContractError(
                "a protocol is about items with labels 0 and 1; the data set has "
                + (f"a label {data.labels.max()}" if len(data) else "no items")
            )
        self.protocol, self.data, self.messages = protocol, data, messages
        self.num_envs, self.once = num_envs, once
        self.needs_params = protocol.needs_signals
        self._views = {
            agent: ProtocolView(protocol, agent, data, messages, num_envs, scripts or {})
            for agent in protocol.agent_names
        }
        self.spaces = {agent: view.spaces for agent, view in self._views.items()}
        self._imitates = {
            protocol.index(agent): protocol.index(other)
            for agent, other in protocol.imitates.items()
        }
        self.listeners: list[Callable[[Ended], object]] = []
        self._metrics = ProtocolMetrics(data)
        self._rows = np.arange(num_envs)
        self._params: Mapping[str, np.ndarray] | None = None
        self._seed = self._begun = 0
        self._order: tuple[int, np.ndarray] | None = None

    # Which items

    def _numbers(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of the episodes that begin in some rows, from 0 on."""
        if self.once:
            self._number[rows] += np.where(self._number[rows] < 0, rows + 1, self.num_envs)
        else:
            self._number[rows] = np.arange(self._begun, self._begun + len(rows))
            self._begun += len(rows)
        numbers: np.ndarray = self._number[rows]
        return numbers

    def _items_of(self, numbers: np.ndarray) -> np.ndarray:
        """The places in the data set of what episodes are about."""
        rounds, places = np.divmod(numbers, len(self.data))
        if self.once:
            return places
        items = np.empty_like(places)
        for epoch in np.unique(rounds).tolist():
            if self._order is None or self._order[0] != epoch:
                order = generator_of(self._seed, "items", epoch).permutation(len(self.data))
                self._order = epoch, order
            there = rounds == epoch
            items[there] = self._order[1][places[there]]
        return items

    def _begin(self, rows: np.ndarray) -> ProtocolState:
        """Begin episodes in some rows; give their states."""
        numbers = self._numbers(rows)
        items = self._items[rows] = self._items_of(numbers)
        self._history[rows] = SILENCE
        seeds = (scatter(self._seed, numbers) >> np.uint64(33)).astype(np.int64)
        shown = Items(self.data.arrays, items)
        for view in self._views.values():
            view.begin(rows, seeds, shown)
        return self.protocol.begin(seeds, self.data.labels[items])

    # What happens

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """See the base class."""
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        rounds, channels = self.protocol.max_message_rounds, len(self.protocol.channels)
        self._seed, self._begun = seed, 0
        self._number = np.full(self.num_envs, -1)
        self._items = np.zeros(self.num_envs, np.int64)
        self._history = np.full((self.num_envs, rounds, channels), SILENCE)
        self._metrics.take()
        self._state = self._begin(self._rows)
        self._look()
        return self._observations()

    def _look(self) -> None:
        """Find out whose turn it is, and show it."""
        state = self._state
        self._speaks = self.protocol.active(state)
        deciding = self.protocol.deciding(state)
        for agent, other in self._imitates.items():
            deciding[:, agent] = deciding[:, other]
        self._decides = deciding
        for view in self._views.values():
            turn, choice = self._speaks[:, view.place], deciding[:, view.place]
            view.see(state, turn, choice, self._history, self._items)

    def _observations(self) -> dict[str, np.ndarray]:
        return {agent: view.observation.copy() for agent, view in self._views.items()}

    def acting(self) -> Mapping[str, np.ndarray]:
        """See the base class."""
        turn = self._speaks.any(-1) | self._decides
        return {agent: turn[:, view.place] for agent, view in self._views.items()}

    def take_params(self, params: Mapping[str, np.ndarray]) -> None:
        """See the base class."""
        self._params = params

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        """See the base class."""
        state = self._state
        said, decisions = self._read(actions)
        self._history[self._rows, state.round] = said
        outcome = self.protocol.step(state, decisions, self._signals())
        self._state = outcome.state
        for view in self._views.values():
            view.hear(state.round, said)
        self._look()
        ended, final = outcome.terminated, None
        if ended.any():
            final = self._observations()
            rows = np.flatnonzero(ended)
            self._metrics.add(
                self._number[rows], self._items[rows], outcome.verdict[rows], state.round[rows] + 1
            )
            for listener in self.listeners:
                heard = Ended(outcome.state.label[rows], state.seed[rows], self._history[rows])
                listener(heard)
            self._restart(rows)
        never = np.zeros(self.num_envs, bool)
        return {
            agent: AgentStep(
                seen,
                outcome.rewards[:, self._views[agent].place],
                ended,
                never,
                None if final is None else final[agent],
            )
            for agent, seen in self._observations().items()
        }

    def _restart(self, rows: np.ndarray) -> None:
        begun = self._begin(rows)
        state = {name: value.copy() for name, value in vars(self._state).items()}
        for name, value in state.items():
            value[rows] = getattr(begun, name)
        self._state = ProtocolState(**state)
        self._look()

    def _read(self, actions: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Messages ``[N, C]`` and decisions ``[N, A]`` that have an effect."""
        said = np.full((self.num_envs, len(self.protocol.channels)), SILENCE)
        decisions = np.full(self._decides.shape, int(Verdict.UNDECIDED))
        for agent, view in self._views.items():
            action = actions[agent]
            shown = view.shown
            if view.decides:
                there = self._decides[:, view.place]
                decisions[there, view.place] = action[there, -1]
            turns = np.take_along_axis(self._speaks[:, view.place], shown, 1)
            rows, channels = np.nonzero(turns)
            # No two agents speak in one channel.
            said[rows, shown[rows, channels]] = action[rows, channels]
        return said, decisions

    def _signals(self) -> ProtocolSignals | None:
        """What the protocol compares: the logits of each agent."""
        params, self._params = self._params, None
        if not self.needs_params:
            return None
        if params is None:
            raise ContractError(
                f"protocol {type(self.protocol).__name__} compares what actions are drawn from; "
                "call take_params() before each step()"
            )
        number, size = len(self._views), self.messages.size
        channels = len(self.protocol.channels)
        messages = np.zeros((self.num_envs, number, channels, size), np.float32)
        decisions = np.zeros((self.num_envs, number, 3), np.float32)
        for agent, view in self._views.items():
            count = view.shown.shape[1] * size
            logits = params[agent][:, :count].reshape(self.num_envs, -1, size)
            messages[self._rows[:, None], view.place, view.shown] = logits
            if view.decides:
                decisions[:, view.place] = params[agent][:, count:]
        return ProtocolSignals(messages=messages, decisions=decisions)

    def take_metrics(self, episodes: int | None = None) -> dict[str, float]:
        """Accuracy, where no verdict is a wrong one, how many had none, rounds; of groups too."""
        return self._metrics.take(episodes)

    # State

    def state_dict(self) -> dict[str, Any]:
        """See the base class."""
        return {
            "seed": self._seed,
            "begun": self._begun,
            "number": self._number.copy(),
            "items": self._items.copy(),
            "history": self._history.copy(),
            "state": {name: value.copy() for name, value in vars(self._state).items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See the base class."""
        self._seed, self._begun = int(state["seed"]), int(state["begun"])
        self._number, self._items, self._history = (
            np.array(state[name]) for name in ("number", "items", "history")
        )
        self._order = None
        self._state = ProtocolState(**{k: np.array(v) for k, v in state["state"].items()})
        shown = Items(self.data.arrays, self._items)
        for view in self._views.values():
            view.begin(self._rows, self._state.seed, shown)
            for round in range(self._history.shape[1]):
                view.hear(np.full(self.num_envs, round), self._history[:, round])
        self._look()
