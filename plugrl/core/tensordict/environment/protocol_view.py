"""What one agent of a protocol sees of N episodes, as vectors with a layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from gymnasium.spaces import MultiDiscrete

from plugrl.core.errors import ContractError
from plugrl.core.protocol.protocol import Protocol, ProtocolState, Verdict
from plugrl.core.tensordict.environment.layout import ACTION_MASK, Layout
from plugrl.core.tensordict.environment.message_space import SILENCE, MessageSpace
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces, Script

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.labelled_dataset import Labelled


class Items(Mapping[str, np.ndarray]):
    """The arrays of some items of a data set, taken out when they are asked for."""

    def __init__(self, arrays: Mapping[str, np.ndarray], places: np.ndarray) -> None:
        self._arrays, self._places = arrays, places

    def __getitem__(self, name: str) -> np.ndarray:
        array: np.ndarray = self._arrays[name][self._places]
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


class ProtocolView:
    """The observations of one agent, which are kept and changed where something happens.

    Args:
        protocol: what is played.
        agent: who sees.
        data: what the episodes are about.
        messages: what can be said.
        num_envs: N.
        scripts: hand-made policies that the agent can take.

    Attributes:
        observation: ``[N, size]``, what the agent sees; whoever gives it away copies it.
        shown: ``[N, S]``, the channels that the agent sees, in the order that it is shown them.
        decides: whether its actions have a verdict.
        spaces: what it sees and does.
    """

    def __init__(
        self,
        protocol: Protocol,
        agent: str,
        data: Labelled,
        messages: MessageSpace,
        num_envs: int,
        scripts: Mapping[str, Script],
    ) -> None:
        self.protocol, self.agent, self.messages = protocol, agent, messages
        self.place = protocol.index(agent)
        self.decides = agent in protocol.verifier_names or agent in protocol.imitates
        self._data = data
        self._seen = np.array([protocol.channels.index(c) for c in protocol.sees(agent)], int)
        self._told_stance = protocol.stances_are_random and agent in protocol.prover_names
        self.layout = self._laid_out()
        choices = [messages.size] * len(self._seen) + [3] * self.decides
        self.spaces = AgentSpaces(self.layout.space(), MultiDiscrete(choices), self.layout, scripts)
        self.observation = np.zeros((num_envs, self.layout.size), np.float32)
        self.shown = np.tile(self._seen, (num_envs, 1))
        self._rows = np.arange(num_envs)
        self._parts = {
            name: self.layout.view(self.observation, name)
            for name in self.layout.fields
            if name not in data.arrays
        }

    def _laid_out(self) -> Layout:
        rounds, seen, size = self.protocol.max_message_rounds, len(self._seen), self.messages.size
        own = {"round": (rounds,), "messages": (rounds, seen, size), "last_message": (seen, size)}
        own |= {"speaks": (seen,), "may_decide": (1,)}
        if self._told_stance:
            own["stance"] = (2,)
        own[ACTION_MASK] = (seen * size + 3 * self.decides,)
        taken = sorted(own.keys() & self._data.arrays.keys())
        if taken:
            raise ContractError(
                f"arrays of a data set are called {', '.join(taken)}, which observations of a "
                "protocol have of their own; rename them"
            )
        arrays = {name: tuple(array.shape[1:]) for name, array in self._data.arrays.items()}
        return Layout({**arrays, **own})

    def begin(self, rows: np.ndarray, seed: np.ndarray, items: Items) -> None:
        """New episodes begin in some rows, with these seeds and about these items."""
        self.observation[rows] = 0
        for name in items:
            flat = items[name].reshape(len(rows), -1)
            self.observation[rows, self.layout.slices[name]] = flat
        self.shown[rows] = self._seen[self.protocol.channel_order(self.agent, seed)]
        if self._told_stance:
            stance = self.protocol.stances(seed)[:, self.place]
            self._parts["stance"][rows, stance] = 1

    def hear(self, round: np.ndarray, said: np.ndarray) -> None:
        """Take in messages ``[N, C]`` that were said in these rounds ``[N]``."""
        heard = np.take_along_axis(said, self.shown, 1)
        rows, channels = np.nonzero(heard != SILENCE)
        if len(rows):
            numbers = heard[rows, channels]
            self._parts["messages"][rows, round[rows], channels, numbers] = 1
            last = self._parts["last_message"]
            last[rows, channels] = 0
            last[rows, channels, numbers] = 1

    def see(
        self,
        state: ProtocolState,
        speaks: np.ndarray,
        deciding: np.ndarray,
        history: np.ndarray,
        items: np.ndarray,
    ) -> None:
        """Whose turn it is now.

        Args:
            state: of the episodes.
            speaks: ``[N, C]``, where the agent speaks next.
            deciding: ``[N]``, whether it decides next.
            history: ``[N, rounds, C]``, all that was said.
            items: ``[N]``, the places of what the episodes are about in the data set.
        """
        parts = self._parts
        parts["round"][:] = 0
        open_rows = np.flatnonzero(state.round < self.protocol.max_message_rounds)
        parts["round"][open_rows, state.round[open_rows]] = 1
        turns = np.take_along_axis(speaks, self.shown, 1)
        parts["speaks"][:] = turns
        parts["may_decide"][:, 0] = deciding
        count = len(self._seen) * self.messages.size
        mask = parts[ACTION_MASK]
        allowed = mask[:, :count].reshape(len(turns), -1, self.messages.size)
        # A choice without effect is always the same one, so that it tells nothing.
        allowed[:] = turns[..., None]
        allowed[..., 0] = 1
        rows = np.flatnonzero(turns.any(1))
        if len(rows):
            self._restrict(allowed, turns, rows, history, items)
        if self.decides:
            mask[:, count:] = deciding[:, None]
            mask[:, count + Verdict.UNDECIDED] = 1

    def _restrict(
        self,
        allowed: np.ndarray,
        turns: np.ndarray,
        rows: np.ndarray,
        history: np.ndarray,
        items: np.ndarray,
    ) -> None:
        heard = np.take_along_axis(history[rows], self.shown[rows, None], 2)
        said = self.messages.allowed(self.agent, Items(self._data.arrays, items[rows]), heard)
        if said is None:
            return
        shape = (len(rows), len(self._seen), self.messages.size)
        said = np.asarray(said, bool)
        if said.shape not in (shape, (len(rows), 1, self.messages.size)):
            raise ContractError(
                f"{type(self.messages).__name__}.allowed() gave shape {list(said.shape)}; give "
                f"{list(shape)}"
            )
        if not said.any(-1).all():
            raise ContractError(
                f"{type(self.messages).__name__}.allowed() leaves {self.agent} nothing to say; "
                "allow at least one message"
            )
        allowed[rows] = np.where(turns[rows][..., None], said, allowed[rows])
