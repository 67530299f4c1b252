"""Environments whose agents take turns by a script, right and wrong ones, for tests."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text
from pettingzoo import AECEnv
from pettingzoo.classic.tictactoe.tictactoe import raw_env
from pettingzoo.utils.conversions import turn_based_aec_to_parallel
from pettingzoo.utils.wrappers import BaseParallelWrapper


class Talks(AECEnv):
    """``a`` and ``b`` move in turn; what a move gives stands in ``moves``.

    A move maps agents to (reward, terminated, truncated), and ``turn`` to who comes next (the
    other one); the last move of the script comes again for ever. ``seats`` are the agents that
    begin. An observation is the number of moves so far.
    """

    metadata = {"name": "talks"}
    render_mode = None

    def __init__(self, moves, seats=("a", "b"), mask=None):
        super().__init__()
        self.possible_agents = ["a", "b", "c"][: max(2, len(seats))]
        self.moves, self.seats, self.mask = moves, list(seats), mask
        self.calls = []

    def observation_space(self, agent):
        number = Box(0, 1e6, (1,), np.float32)
        if self.mask is None:
            return number
        return Dict({"number": number, "action_mask": Box(0, 1, (3,), np.int8)})

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.place = 0
        self.agents = list(self.seats)
        for name in ("rewards", "_cumulative_rewards"):
            setattr(self, name, dict.fromkeys(self.agents, 0))
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0] if self.agents else None

    def observe(self, agent):
        number = np.array([self.place], np.float32)
        if self.mask is None:
            return number
        return {"number": number, "action_mask": np.array(self.mask, np.int8)}

    def step(self, action):
        agent = self.agent_selection
        self.calls.append((agent, None if action is None else np.array(action).tolist()))
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        move = self.moves[min(self.place, len(self.moves) - 1)]
        self.place += 1
        if move == "crash":
            raise RuntimeError("the board fell off the table")
        told = {key: value for key, value in move.items() if key in self.agents}
        self.rewards = {each: told.get(each, (0,))[0] for each in self.agents}
        for each, (_, lost, cut) in told.items():
            self.terminations[each], self.truncations[each] = lost, cut
        others = [each for each in self.agents if each != agent]
        self.agent_selection = move.get("turn", others[0] if others else agent)
        self._deads_step_first()


class Pushes(Talks):
    """The same, where a move is a real number."""

    def action_space(self, agent):
        return Box(-1, 1, (1,), np.float32)


class Guests(Talks):
    """Agents are numbers, and 2 comes to every other game alone."""

    games = 0

    def __init__(self, moves):
        super().__init__(moves, seats=[0, 1, 2])
        self.possible_agents = [0, 1, 2]

    def reset(self, seed=None, options=None):
        self.seats = [0, 1] if self.games % 2 else [0, 1, 2]
        self.games += 1
        super().reset(seed, options)

    def observe(self, agent):
        return super().observe(agent) + 5


class Undead(Talks):
    """Does not let the dead go."""

    def _was_dead_step(self, action):
        pass


class OneNumber(Talks):
    """Has one reward for all."""

    def step(self, action):
        super().step(action)
        self.rewards = 1.0


class Sizes(Talks):
    """Says that it observes something else than it does."""

    def observe(self, agent):
        seen = super().observe(agent)
        return {**seen, "action_mask": seen["action_mask"][:2]}


class Plain(Talks):
    """Observes no mapping, though it says so."""

    def observe(self, agent):
        return super().observe(agent)["number"]


class Nameless(Talks):
    """Leaves the mask out."""

    def observe(self, agent):
        return {"number": super().observe(agent)["number"]}


class Words(Talks):
    """Observes a part that no network takes."""

    def observation_space(self, agent):
        return Dict({"said": Text(5), "action_mask": Box(0, 1, (3,))})


class Parts(Talks):
    """Observes parts of all kinds, one of which is wrong from the second move on if it says so."""

    def observation_space(self, agent):
        hand = Dict({"suits": MultiDiscrete([2, 3]), "open": Discrete(2, start=1)})
        return Dict({"hand": hand, "phase": Discrete(3), "board": Box(0, 9, (2, 2), np.int8)})

    def observe(self, agent):
        hand = {"suits": np.array([1, 2]), "open": 2}
        phase = 7 if self.place and self.seats == ["b", "a"] else 1
        return {"hand": hand, "phase": phase, "board": np.full((2, 2), self.place)}


class WrongMask(Talks):
    """Has a mask of two for three choices."""

    def observation_space(self, agent):
        return Dict({"number": Box(0, 1, (1,)), "action_mask": Box(0, 1, (2,), np.int8)})


class TwoChoices(Talks):
    """Chooses two things in a move, each under a mask."""

    def action_space(self, agent):
        return MultiDiscrete([2, 1])


class MaskInInfo(Talks):
    """Tells the mask of who moves beside what it observes: the number of the move is forbidden."""

    def observation_space(self, agent):
        return Box(0, 1e6, (1,), np.float32)

    def observe(self, agent):
        mask = [int(choice != self.place % 3) for choice in range(3)]
        self.infos = {each: {} for each in self.agents}
        self.infos[self.agent_selection] = {"action_mask": np.array(mask, np.int8)}
        return np.array([self.place], np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.observe(self.agent_selection)


def at_once(**options):
    """Tic-tac-toe as an environment of agents that act at once, as PettingZoo converts it."""
    return turn_based_aec_to_parallel(raw_env(**options))


def wrapped_at_once(**options):
    """The same under a wrapper, which hides that its agents take turns."""
    return BaseParallelWrapper(at_once(**options))
