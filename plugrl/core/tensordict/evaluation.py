"""Evaluation episodes: the same seeds each time, equally many in each environment."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.errors import RunError
from plugrl.core.tensordict.agents.acting import acting_for
from plugrl.core.tensordict.collect.episodes import episode_metrics
from plugrl.core.tensordict.environment.film import write_film
from plugrl.core.tensordict.environment.turns import Choose, Turns
from plugrl.core.tensordict.seeding import generator_of

if TYPE_CHECKING:
    from pathlib import Path

    from plugrl.core.scenario import ScenarioInstance
    from plugrl.core.tensordict.agents.agent import Policies
    from plugrl.core.tensordict.collect.normalisers import Normalisers
    from plugrl.core.tensordict.environment.vector_environment import VectorEnvironment

logger = logging.getLogger(__name__)
#: An episode longer than this is taken to be endless, and one of the second length is warned about.
LONGEST, LONG = 1_000_000, 100_000
#: Steps between two looks at how long episodes are.
_LOOK = 10_000

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
            Metrics under ``validation/``: means over the episodes, of all agents and of each.
        """
        ended: dict[str, list[tuple[float, int]]] = {}
        for episode in self.episodes(self._section.episodes):
            for agent, (total, length) in episode["agents"].items():
                ended.setdefault(agent, []).append((total, length))
            if record is not None:
                record("evaluation", {"step": iteration, **episode})
        metrics = episode_metrics(ended, "validation")
        own = self._scenario.test_environment.take_metrics(self._section.episodes)
        return metrics | {f"validation/{name}": value for name, value in own.items()}

    def episodes(self, count: int) -> Iterator[dict[str, Any]]:
        """Play ``count`` episodes: ``{"episode": i, "agents": {agent: (return, length)}}``.

        Each environment plays its share, so that short episodes do not crowd out long ones.
        """
        if count == 0:
            return
        environment = self._scenario.test_environment
        played = self._play(environment)
        shares = [
            count // environment.num_envs + (i < count % environment.num_envs)
            for i in range(environment.num_envs)
        ]
        number = 0
        for place, agents in played:
            if shares[place] == 0:
                continue
            shares[place] -= 1
            yield {"episode": number, "agents": agents}
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
            next(self._play(environment, look))
            write_film(path, frames, environment.render_fps)
        finally:
            environment.close()

    def _play(
        self, environment: VectorEnvironment, look: Callable[[], None] | None = None
    ) -> Iterator[tuple[int, dict[str, tuple[float, int]]]]:
        policies = self._policies.policies
        distributions = {name: agent.distribution for name, agent in policies.items()}
        turns = Turns(environment, self._members, distributions)
        choose = self._chooser(environment.needs_params)
        return _play(environment, choose, self._members, self._seed, turns, look)

    def _chooser(self, with_params: bool) -> Choose:
        """Maps a policy and its observations to actions; draws depend on the seed alone."""
        actors = {
            name: acting_for(agent, generator_of(self._seed, "evaluation", name))
            for name, agent in self._policies.policies.items()
        }

        def choose(policy: str, observation: np.ndarray) -> Any:
            seen = self._normalisers.observation(policy, observation)
            actor = actors[policy]
            if self._section.deterministic:
                return actor.best(seen), None, actor.params(seen) if with_params else None
            if with_params:
                return actor.act_with_params(seen)
            return (*actor.act(seen), None)

        return choose

    @property
    def _members(self) -> dict[str, list[str]]:
        members: dict[str, list[str]] = {}
        for agent, policy in self._policies.policy_of.items():
            members.setdefault(policy, []).append(agent)
        return members


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
