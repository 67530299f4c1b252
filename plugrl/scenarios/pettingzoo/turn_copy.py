"""``TurnCopy``: one environment whose agents act one after the other (AEC), and begins anew."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from plugrl.core.errors import PlugrlError
from plugrl.core.tensordict.environment.copies import Crashes
from plugrl.core.tensordict.environment.layout import ACTION_MASK
from plugrl.scenarios.pettingzoo.agents_copy import AgentsCopy, Outcome, Seat, own_copy


class TurnCopy(AgentsCopy):
    """One environment of turns: a step is the move of the agent whose turn it is.

    Who waits takes part too: what it earns and whether it ends by the move of another is told in
    the step in which it happens. Dead agents, which PettingZoo lets take a step of ``None`` before
    they leave, take it within the step in which they died.

    Attributes:
        turn: whose move comes next.
        games: what each agent returned in each episode that ended since they were taken.
    """

    KEPT = ("episode", "last", "turn", "_open", "_returns", "_steps")

    def __init__(
        self,
        build: Callable[[], Any],
        seats: Mapping[str, Seat],
        index: int,
        crashes: Crashes,
        max_episode_steps: int | None = None,
    ) -> None:
        super().__init__(build, seats, index, crashes, max_episode_steps)
        self._returns: dict[str, float] = dict.fromkeys(seats, 0.0)
        self.turn = ""
        self.games: list[dict[str, float]] = []

    def begin(self, seed: int) -> dict[str, Any]:
        """Begin the first episode of ``seed``; give what each agent sees."""
        self.games = []
        return super().begin(seed)

    def _reset(self) -> None:
        self.episode += 1
        self._steps = 0
        self.environment.reset(seed=self.episode_seed)
        agents = self.environment.agents
        if not agents:
            raise self._wrong("reset() leaves no agent in agents; list who takes part")
        self._open = set()
        for name, agent in self._agents.items():
            self._returns[name] = 0.0
            if agent in agents:
                self._open.add(name)
                self.last[name] = self._observed(name, agent)
            else:
                self.last[name] = self._nothing(name)
        selected = self._selected(agents, "reset()")
        self.turn = self._own[selected]
        if self._is_dead(selected):
            raise self._wrong(f"reset() gives the first turn to {self.turn!r}, which has ended")

    def step(self, actions: Mapping[str, Any]) -> dict[str, Outcome]:
        """Let the agent whose turn it is move; begin anew when all have ended.

        Raises:
            RunError: the environment broke too often.
        """
        outcomes = {
            name: Outcome(seen, real=name in self._open) for name, seen in self.last.items()
        }
        try:
            # A copy: an environment may change its actions in place.
            self.environment.step(own_copy(actions[self.turn]))
            self._take_in(outcomes)
            self._bury(outcomes)
            agents = self.environment.agents
            is_over = self._is_late() or not agents
            if is_over:
                self._close(outcomes, agents)
            else:
                self._look(outcomes, agents)
        except PlugrlError:
            raise
        except (Exception, SystemExit) as error:
            self._broke("step()", error)
            return self._cut_off()
        if is_over:
            self._begin()
            for name, outcome in outcomes.items():
                outcome.observation = self.last[name]
        return outcomes

    def _take_in(self, outcomes: Mapping[str, Outcome]) -> None:
        """Rewards of the last call of ``step()``, and who ended in it."""
        environment = self.environment
        rewards, lost, cut = (
            self._by_agent(each) for each in ("rewards", "terminations", "truncations")
        )
        for agent in environment.agents:
            name = self._own.get(agent)
            if name is None:
                raise self._stranger(agent)
            outcome = outcomes[name]
            if not outcome.real:
                continue
            reward = self._number(name, rewards.get(agent, 0.0))
            outcome.reward += reward
            self._returns[name] += reward
            if name not in self._open:
                continue
            outcome.terminated = self._flag(name, "terminations", lost.get(agent, False))
            outcome.truncated = self._flag(name, "truncations", cut.get(agent, False))
            if outcome.terminated or outcome.truncated:
                self._open.discard(name)
                outcome.final = outcome.observation = self.last[name] = self._observed(name, agent)

    def _bury(self, outcomes: Mapping[str, Outcome]) -> None:
        """Let the dead take their last step, which removes them."""
        environment = self.environment
        while agents := environment.agents:
            agent = self._selected(agents, "step()")
            if self._own[agent] in self._open or not self._is_dead(agent):
                return
            environment.step(None)
            if agent in environment.agents:
                raise self._wrong(
                    f"step(None) does not remove agent {self._own[agent]!r}, which has ended, from "
                    "agents; call self._was_dead_step(action) in step()"
                )
            self._take_in(outcomes)

    def _look(self, outcomes: Mapping[str, Outcome], agents: Sequence[Hashable]) -> None:
        """What those who come, and the agent whose turn it is, see now."""
        selected = self.environment.agent_selection
        self.turn = self._own[selected]
        for agent in agents:
            name = self._own[agent]
            comes = name not in self._open and not self._is_dead(agent)
            if comes:
                self._open.add(name)
            if comes or agent == selected:
                outcomes[name].observation = self.last[name] = self._observed(name, agent)

    def _close(self, outcomes: Mapping[str, Outcome], agents: Sequence[Hashable]) -> None:
        """Cut off who has not ended, and keep what each returned."""
        for name in self._open:
            outcome, agent = outcomes[name], self._agents[name]
            if agent in agents:
                self.last[name] = self._observed(name, agent)
            outcome.real = outcome.truncated = True
            outcome.final = self.last[name]
        self.games.append(dict(self._returns))

    def _observed(self, name: str, agent: Hashable) -> Any:
        observation, mask = self.environment.observe(agent), self._seats[name].mask
        if mask is not None:
            info = self._by_agent("infos").get(agent) or {}
            # PettingZoo's players take a missing mask for one that allows all.
            allowed = info.get(ACTION_MASK, np.ones(mask))
            observation = {"observation": observation, ACTION_MASK: allowed}
        return self._shown(name, observation)

    def _is_dead(self, agent: Hashable) -> bool:
        name = self._own[agent]
        return any(
            self._flag(name, each, self._by_agent(each).get(agent, False))
            for each in ("terminations", "truncations")
        )

    def _selected(self, agents: Sequence[Hashable], doing: str) -> Hashable:
        """Whose turn the environment says that it is.

        Raises:
            ContractError: it is that of an agent that takes no part.
        """
        agent: Hashable = self.environment.agent_selection
        if agent not in self._own:
            raise self._stranger(agent)
        if agent not in agents:
            raise self._wrong(
                f"after {doing} agent_selection names {agent!r}, which is not in agents"
            )
        return agent

    def _by_agent(self, name: str) -> Mapping[Hashable, Any]:
        """An attribute that has something for each agent."""
        given = getattr(self.environment, name)
        if not isinstance(given, Mapping):
            raise self._wrong(f"{name} is a {type(given).__name__}, not a mapping by agent")
        return given
