"""``ParallelCopy``: one environment of several agents that come, go, and begin anew."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from plugrl.core.errors import ContractError, PlugrlError
from plugrl.core.tensordict.environment.copies import Crashes
from plugrl.scenarios.pettingzoo.agents_copy import AgentsCopy, Outcome, Seat, own_copy

_OF_RESET = ("observations", "infos")
_OF_STEPS = ("observations", "rewards", "terminations", "truncations", "infos")


class ParallelCopy(AgentsCopy):
    """One environment whose agents act at once, and who of them takes part; see the base class."""

    KEPT = ("episode", "last", "_open", "_ended", "_owed", "_steps")

    def __init__(
        self,
        build: Callable[[], Any],
        seats: Mapping[str, Seat],
        index: int,
        crashes: Crashes,
        max_episode_steps: int | None = None,
    ) -> None:
        super().__init__(build, seats, index, crashes, max_episode_steps)
        self._ended: set[str] = set()
        self._owed: dict[str, float] = dict.fromkeys(seats, 0.0)

    def _reset(self) -> None:
        self.episode += 1
        self._steps = 0
        begun = self.environment.reset(seed=self.episode_seed)
        observations = self._mappings("reset", begun, _OF_RESET)[0]
        if not self.environment.agents:
            raise self._wrong("reset() leaves no agent in agents; list who takes part")
        self._open, self._ended = set(), set()
        for name, agent in self._agents.items():
            self._owed[name] = 0.0
            if agent in observations:
                self._open.add(name)
                self.last[name] = self._shown(name, observations[agent])
            elif agent in self.environment.agents:
                raise self._unseen("reset", name)
            else:
                self.last[name] = self._nothing(name)

    def step(self, actions: Mapping[str, Any]) -> dict[str, Outcome]:
        """Take the actions of those who take part; begin anew when all have ended.

        Raises:
            RunError: the environment broke too often.
        """
        # A copy: some environments change the list in place.
        present = list(self.environment.agents)
        try:
            names = [self._own[agent] for agent in present]
        except KeyError as error:
            raise self._stranger(error.args[0]) from None
        # Copies: an environment may change its actions in place.
        given = {self._agents[name]: own_copy(actions[name]) for name in names}
        try:
            stepped = self.environment.step(given)
            answers = self._mappings("step", stepped, _OF_STEPS)
            observations, rewards, terminated, truncated, _ = answers
        except PlugrlError:
            raise
        except (Exception, SystemExit) as error:
            self._broke("step()", error)
            return self._cut_off()
        outcomes = {
            name: self._outcome(
                name, agent, agent in given, observations, rewards, terminated, truncated
            )
            for name, agent in self._agents.items()
        }
        if self._is_late() or self._is_over():
            self._begin_anew(outcomes)
        return outcomes

    def _outcome(
        self,
        name: str,
        agent: Hashable,
        acted: bool,
        observations: Mapping[Hashable, Any],
        rewards: Mapping[Hashable, Any],
        terminated: Mapping[Hashable, Any],
        truncated: Mapping[Hashable, Any],
    ) -> Outcome:
        if name not in self._open:
            self._let_in(name, agent, observations)
            return Outcome(self.last[name], real=False)
        if agent in observations:
            self.last[name] = self._shown(name, observations[agent])
        # What an agent earns while it waits belongs to its next step.
        self._owed[name] += self._number(name, rewards.get(agent, 0.0))
        lost = self._flag(name, "terminated", terminated.get(agent, False))
        cut = self._flag(name, "truncated", truncated.get(agent, False))
        # Who waits or has terminated needs to see nothing; what is cut off is worth what it saw.
        goes_on = not lost and (cut or agent in self.environment.agents)
        if acted and goes_on and agent not in observations:
            raise self._unseen("step", name)
        outcome = Outcome(self.last[name], 0.0, lost, cut, real=acted or lost or cut)
        if outcome.real:
            outcome.reward, self._owed[name] = self._owed[name], 0.0
        if lost or cut:
            outcome.final = self.last[name]
            self._open.discard(name)
            if agent in self.environment.agents:
                self._ended.add(name)
        return outcome

    def _mappings(self, doing: str, given: Any, names: Sequence[str]) -> Sequence[Any]:
        """What ``reset()`` or ``step()`` gave, if each is a mapping from agents."""
        is_row = isinstance(given, (tuple, list)) and len(given) == len(names)
        if is_row and all(isinstance(each, Mapping) for each in given):
            answers: Sequence[Any] = given
            return answers
        raise self._wrong(f"{doing}() must give {len(names)} mappings by agent: {', '.join(names)}")

    def _unseen(self, doing: str, name: str) -> ContractError:
        return self._wrong(f"{doing}() gives no observation of agent {name!r}, which takes part")

    def _let_in(self, name: str, agent: Hashable, observations: Mapping[Hashable, Any]) -> None:
        """Notice an agent that comes, or comes back after it had left."""
        if agent not in self.environment.agents:
            self._ended.discard(name)
        elif agent in observations and name not in self._ended:
            self._open.add(name)
            self._owed[name] = 0.0
            self.last[name] = self._shown(name, observations[agent])

    def _is_over(self) -> bool:
        return all(self._own.get(agent) in self._ended for agent in self.environment.agents)

    def _begin_anew(self, outcomes: Mapping[str, Outcome]) -> None:
        for name in self._open:
            outcome = outcomes[name]
            outcome.real = outcome.truncated = True
            outcome.final = self.last[name]
            outcome.reward += self._owed[name]
        self._begin()
        for name, outcome in outcomes.items():
            outcome.observation = self.last[name]

    def _present(self) -> list[str]:
        return [self._own[agent] for agent in self.environment.agents]
