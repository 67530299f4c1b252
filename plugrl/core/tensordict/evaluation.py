"""Evaluation episodes: the same seeds each time, equally many in each environment."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.tensordict.agents.acting import acting_for
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.agents.config import AgentConfig
from plugrl.core.tensordict.collect.episodes import episode_metrics
from plugrl.core.tensordict.environment.film import write_film
from plugrl.core.tensordict.environment.turns import Choose, Turns
from plugrl.core.tensordict.seeding import generator_of
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from plugrl.core.scenario import ScenarioInstance
    from plugrl.core.tensordict.agents.agent import Agent, Policies
    from plugrl.core.tensordict.collect.normalisation import Normalisers
    from plugrl.core.tensordict.environment.vector_environment import (
        AgentSpaces,
        VectorEnvironment,
    )

logger = logging.getLogger(__name__)
#: An episode longer than this is taken to be endless, and one of the second length is warned about.
LONGEST, LONG = 1_000_000, 100_000
#: Steps between two looks at how long episodes are.
_LOOK = 10_000
#: The opponent that acts uniformly at random.
RANDOM = "random"

Record = Callable[[str, Mapping[str, Any]], None]


class Evaluation:
    """Plays episodes with the present policies; training does not notice.

    Args:
        scenario: where the environments come from.
        policies: what is evaluated.
        normalisers: scale observations as in training.
        hyper_params: sections ``validate`` and ``seed``.
    """

    def __init__(
        self,
        scenario: ScenarioInstance,
        policies: Policies,
        normalisers: Normalisers,
        hyper_params: Any,
    ) -> None:
        self._scenario = scenario
        self._policies = policies
        self._normalisers = normalisers
        self._section = hyper_params.validate
        self._seed = int(hyper_params.seed)

    def run(self, iteration: int, record: Record | None = None) -> dict[str, float]:
        """Play ``validate.episodes`` episodes.

        Args:
            iteration: whose policies they are, for records.
            record: is given every episode.

        Returns:
            Metrics under ``validation/``: means over the episodes, of all agents and of each;
            against ``validate.opponent`` those of the trained agents alone.
        """
        environment = self._scenario.test_environment
        ended: dict[str, list[tuple[float, int]]] = {}
        own: list[tuple[str | None, dict[str, float]]] = []
        for lineup, episodes in self._played(self._section.episodes):
            for episode in episodes:
                for agent, (total, length) in episode["agents"].items():
                    if lineup.seat in (None, agent):
                        ended.setdefault(agent, []).append((total, length))
                if record is not None:
                    record("evaluation", {"step": iteration, **episode})
            metrics = lineup.own_metrics(environment.take_metrics(lineup.share))
            own.append((lineup.seat, metrics))
        metrics = episode_metrics(ended, "validation")
        return metrics | {f"validation/{name}": value for name, value in _joined_metrics(own)}

    def episodes(self, count: int) -> Iterator[dict[str, Any]]:
        """Play ``count`` episodes: ``{"episode": i, "agents": {agent: (return, length)}}``.

        Against ``validate.opponent`` each trained agent plays its share of them, and ``seat`` in
        an episode names it.
        """
        for _, episodes in self._played(count):
            yield from episodes

    def _played(self, count: int) -> Iterator[tuple[Lineup, Iterator[dict[str, Any]]]]:
        """Who plays, and their episodes."""
        first = 0
        for lineup in self._lineups(count):
            yield lineup, self._episodes(lineup, first)
            first += lineup.share

    def _lineups(self, count: int) -> list[Lineup]:
        """Who plays ``count`` episodes of an evaluation."""
        own = self._policies.policy_of
        if self._section.opponent is None:
            return [Lineup(own, count)]
        trained = [agent for agent, name in own.items() if self._policies.policies[name].is_trained]
        # Where nothing is trained, such as in an evaluation of a finished run, all are looked at.
        trained = trained or list(own)
        return [
            Lineup(
                {agent: own[agent] if agent == seat else _opponent_of(agent) for agent in own},
                count // len(trained) + (number < count % len(trained)),
                seat,
            )
            for number, seat in enumerate(trained)
        ]

    @cached_property
    def _opponents(self) -> dict[str, Agent]:
        """What takes the other seats, by the names that line-ups have for it."""
        if self._section.opponent is None:
            return {}
        spaces = self._scenario.test_environment.spaces
        policies = opponents_for(spaces, self._section.opponent).policies
        return {_opponent_of(agent): policy for agent, policy in policies.items()}

    def _episodes(self, lineup: Lineup, first: int) -> Iterator[dict[str, Any]]:
        """The episodes of a line-up, numbered from ``first`` on.

        Each environment plays its share, so that short episodes do not crowd out long ones.
        """
        count = lineup.share
        if count == 0:
            return
        environment = self._scenario.test_environment
        played = self._play(environment, lineup)
        shares = [
            count // environment.num_envs + (i < count % environment.num_envs)
            for i in range(environment.num_envs)
        ]
        seat = {} if lineup.seat is None else {"seat": lineup.seat}
        number = 0
        for place, agents in played:
            if shares[place] == 0:
                continue
            shares[place] -= 1
            yield {"episode": first + number, **seat, "agents": agents}
            number += 1
            if number == count:
                return

    def film(self, path: Path) -> None:
        """Write a film of one more episode.

        Raises:
            RunError: the environment shows nothing.
        """
        environment = self._scenario.environment("film")
        frames: list[np.ndarray] = []

        def look() -> None:
            frame = environment.render()
            if frame is None:
                raise RunError(
                    f"scenario {self._scenario.name!r} shows no frames; set validate.film to none"
                )
            frames.append(frame)

        try:
            next(self._play(environment, self._lineups(1)[0], look))
            write_film(path, frames, environment.render_fps)
        finally:
            environment.close()

    def _play(
        self,
        environment: VectorEnvironment,
        lineup: Lineup,
        look: Callable[[], None] | None = None,
    ) -> Iterator[tuple[int, dict[str, tuple[float, int]]]]:
        members: dict[str, list[str]] = {}
        for agent, policy in lineup.policy_of.items():
            members.setdefault(policy, []).append(agent)
        known = self._policies.policies | self._opponents
        policies = {name: known[name] for name in members}
        distributions = {name: agent.distribution for name, agent in policies.items()}
        turns = Turns(environment, members, distributions)
        choose = self._chooser(policies, environment.needs_params)
        return _play(environment, choose, members, self._seed, turns, look)

    def _chooser(self, policies: Mapping[str, Agent], with_params: bool) -> Choose:
        """Maps a policy and its observations to actions; draws depend on the seed alone."""
        actors = {
            name: acting_for(agent, generator_of(self._seed, "evaluation", name))
            for name, agent in policies.items()
        }

        def choose(policy: str, observation: np.ndarray) -> Any:
            seen = observation
            if policy not in self._opponents:
                seen = self._normalisers.observation(policy, observation)
            actor = actors[policy]
            if self._section.deterministic:
                return actor.best(seen), None, actor.params(seen) if with_params else None
            if with_params:
                return actor.act_with_params(seen)
            return (*actor.act(seen), None)

        return choose


@dataclass(frozen=True)
class Lineup:
    """Who plays in some episodes of an evaluation.

    Attributes:
        policy_of: the policy of each agent.
        share: how many episodes.
        seat: the one agent that is evaluated; None: all are.
    """

    policy_of: Mapping[str, str]
    share: int
    seat: str | None = None

    def own_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Numbers of an environment about these episodes; with a seat those that concern it."""
        if self.seat is None:
            return dict(metrics)
        others = tuple(f"{agent}/" for agent in self.policy_of if agent != self.seat)
        concern = {name: value for name, value in metrics.items() if not name.startswith(others)}
        own = f"{self.seat}/"
        return {f"{own}{name.removeprefix(own)}": value for name, value in concern.items()}


def opponents_for(spaces: Mapping[str, AgentSpaces], opponent: str) -> Policies:
    """What plays the part of each agent for ``validate.opponent``: a policy by each agent's name.

    Raises:
        ConfigError: there is no hand-made policy of that name.
    """
    chosen = {"is_random": True} if opponent == RANDOM else {"scripted": opponent}
    try:
        return build_agents(spaces, {AgentConfig.default_entry: chosen})
    except ConfigError as error:
        said = str(error).removeprefix(f"agents.{AgentConfig.default_entry}.scripted: ")
        close = did_you_mean(opponent, [RANDOM], 1) if ":" not in opponent else ""
        raise ConfigError(f"{said}{close or f'; {RANDOM} is one that every task has'}") from error


def _opponent_of(agent: str) -> str:
    # No policy is called like that: names in the configuration have no spaces.
    return f"opponent as {agent}"


def _joined_metrics(
    own: Sequence[tuple[str | None, Mapping[str, float]]],
) -> Iterator[tuple[str, float]]:
    """Numbers of all line-ups, and the means over the seats of those that have one."""
    means: dict[str, list[float]] = {}
    for seat, metrics in own:
        for name, value in metrics.items():
            yield name, value
            if seat is not None:
                means.setdefault(name.removeprefix(f"{seat}/"), []).append(value)
    for name, values in means.items():
        yield name, float(np.mean(values))


def _play(
    environment: VectorEnvironment,
    choose: Choose,
    members: Mapping[str, list[str]],
    seed: int,
    turns: Turns,
    look: Callable[[], None] | None = None,
) -> Iterator[tuple[int, dict[str, tuple[float, int]]]]:
    """Step environments; give the place and the agents' outcomes of each episode that ends.

    An episode ends when none of its agents goes on.
    """
    count = environment.num_envs
    seen = environment.reset(seed)
    returns = {agent: np.zeros(count) for agent in seen}
    lengths = {agent: np.zeros(count, np.int64) for agent in seen}
    ongoing = {agent: np.ones(count, bool) for agent in seen}
    began, takes_turns = np.zeros(count, np.int64), environment.acting() is not None
    for number in itertools.count(1):
        if look is not None:
            look()
        actions: dict[str, np.ndarray] = {}
        together = {policy: _joined(seen, agents) for policy, agents in members.items()}
        if takes_turns:
            answers = turns.ask(partial(_picked, together), choose)
            chosen = {policy: answer.action for policy, answer in answers.items()}
        else:
            chosen = {policy: choose(policy, rows)[0] for policy, rows in together.items()}
        for policy, agents in members.items():
            for i, agent in enumerate(agents):
                actions[agent] = chosen[policy][i * count : (i + 1) * count]
        steps = environment.step(actions)
        for agent, step in steps.items():
            real = ongoing[agent] if step.real is None else ongoing[agent] & step.real
            returns[agent] += np.where(real, step.reward, 0)
            lengths[agent] += real
            ongoing[agent] &= ~(step.terminated | step.truncated)
        for place in np.flatnonzero(~np.logical_or.reduce(list(ongoing.values()))):
            yield (
                int(place),
                {a: (float(returns[a][place]), int(lengths[a][place])) for a in seen},
            )
            for agent in seen:
                returns[agent][place] = lengths[agent][place] = 0
                ongoing[agent][place] = True
            began[place] = number
        seen = {agent: step.observation for agent, step in steps.items()}
        if number % _LOOK == 0:
            _check_length(number - int(began.min()))


def _joined(seen: Mapping[str, np.ndarray], agents: Sequence[str]) -> np.ndarray:
    return np.concatenate([seen[agent] for agent in agents])


def _picked(together: Mapping[str, np.ndarray], policy: str, rows: np.ndarray) -> np.ndarray:
    picked: np.ndarray = together[policy][rows]
    return picked


def _check_length(steps: int) -> None:
    remedy = "give the environment a time limit, such as scenario.max_episode_steps"
    if steps >= LONGEST:
        raise RunError(f"an episode of the evaluation did not end within {steps:,} steps; {remedy}")
    if LONG <= steps < LONG + _LOOK:
        logger.warning(
            "an episode of the evaluation goes on after %s steps; it may be endless: %s",
            f"{steps:,}",
            remedy,
        )
