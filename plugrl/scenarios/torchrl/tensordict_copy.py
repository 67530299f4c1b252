"""``TensorDictCopy``: a TorchRL environment, single or a batch, stepped by TensorDicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from plugrl.core.errors import PlugrlError
from plugrl.core.tensordict.environment.copies import Crashes, EpisodeCopy
from plugrl.core.tensordict.environment.vector_environment import AgentStep
from plugrl.scenarios.torchrl.layout import AgentSlot, EpisodeFlags, Layout


class TensorDictCopy(EpisodeCopy):
    """One environment, and who of its agents takes part.

    Random numbers that it draws from torch's global generator come from one of its own, so that
    neither networks nor other copies change what it does. An environment that is no batch has a
    seed for each episode.

    Args:
        build: makes the environment.
        layout: of its agents.
        index: the place among the copies.
        crashes: counts what breaks.
    """

    KEPT = ("episode", "last", "_random", "_tensordict", "_alive")

    def __init__(
        self, build: Callable[[], Any], layout: Layout, index: int, crashes: Crashes
    ) -> None:
        super().__init__(build, index, crashes)
        self._layout = layout
        self.rows = layout.rows
        self._random: torch.Tensor | None = None
        self._tensordict: TensorDictBase | None = None
        self._alive: dict[str, np.ndarray] = {}

    def _reset(self) -> None:
        self.episode += 1
        self._random = torch.Generator().manual_seed(self.episode_seed).get_state()
        with self._own_generator():
            self.environment.set_seed(self.episode_seed)
            self._follow(self.environment.reset())
        self.anew()

    def _follow(self, tensordict: TensorDictBase) -> None:
        """Go on from what the environment shows."""
        self._tensordict = tensordict
        self.last = self.observe(tensordict)

    def anew(self) -> None:
        """Let all agents take part, as at the beginning."""
        self._alive = {place.name: np.ones(self.rows, bool) for place in self._layout.places}

    @contextmanager
    def _own_generator(self) -> Iterator[None]:
        """Let the environment draw from a generator of its own."""
        outer = torch.get_rng_state()
        if self._random is not None:
            torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(outer)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        """Take one action ``[rows, *action]`` of each agent; what has ended begins anew.

        Raises:
            RunError: the environment broke too often.
        """
        tensordict = self._tensordict
        assert tensordict is not None, "an episode has begun"
        self._layout.write(tensordict, actions)
        try:
            with self._own_generator():
                stepped, following = self._advance(tensordict)
        except PlugrlError:
            raise
        except (Exception, SystemExit) as error:
            self._broke("step()", error)
            return self._cut_off()
        steps = self.told(stepped)
        if following is None:
            self._begin()
        else:
            self._follow(following)
        for name, step in steps.items():
            step.observation = self.last[name]
        return steps

    def _advance(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase | None]:
        """Step; give the step and what follows it, None for a new episode.

        What ``step_and_maybe_reset`` does, but for the seed that a new episode gets.
        """
        environment = self.environment
        if self._layout.batch:
            stepped, following = environment.step_and_maybe_reset(tensordict)
            return stepped, following
        stepped = environment.step(tensordict)
        following = environment.step_mdp(stepped)
        if environment._post_step_mdp_hooks is not None:
            stepped, following = environment._post_step_mdp_hooks(stepped, following)
        if self._is_over(stepped.get("next")):
            return stepped, None
        return stepped, environment.maybe_reset(following)

    def _is_over(self, told: TensorDictBase) -> bool:
        layout = self._layout
        if any(_all(place.outer) for place in layout.places):
            return any(layout.flags(told, _all(p.outer), None).any() for p in layout.places)
        return all(layout.flags(told, _all(p.own), p.index).all() for p in layout.places)

    def told(self, stepped: TensorDictBase) -> dict[str, AgentStep]:
        """What a step gave the agents; the observation is what they saw at its end."""
        told = stepped.get("next")
        return {
            place.name: self._agent_step(place, told, self._layout.present(stepped, place))
            for place in self._layout.places
        }

    def _agent_step(self, place: AgentSlot, told: TensorDictBase, present: np.ndarray) -> AgentStep:
        layout, alive = self._layout, self._alive[place.name]
        own, lost = self._over(told, place.own, place.index)
        outer, lost_all = self._over(told, place.outer, None)
        ended = (own | outer) & alive
        terminated = ended & np.where(own, lost, lost_all)
        real = alive & (present | ended)
        seen = layout.observation(told, place)
        step = AgentStep(
            observation=seen,
            reward=np.where(real, layout.reward(told, place), 0).astype(np.float32),
            terminated=terminated,
            truncated=ended & ~terminated,
            final_observation=seen if ended.any() else None,
            real=None if real.all() else real,
        )
        # Where all have an end in common, who ended before waits for it.
        waits = bool(_all(place.outer))
        self._alive[place.name] = outer | (alive & ~own) if waits else np.ones(self.rows, bool)
        return step

    def _over(
        self, told: TensorDictBase, ends: EpisodeFlags, index: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where an episode is over, and where it is so in a state that is worth nothing."""
        flags = self._layout.flags
        over = flags(told, _all(ends), index)
        if ends.terminated:
            return over, flags(told, ends.terminated, index)
        return over, over & ~flags(told, ends.truncated, index)

    def observe(self, tensordict: TensorDictBase) -> dict[str, np.ndarray]:
        """What each agent sees, ``[rows, *observation]``."""
        return {p.name: self._layout.observation(tensordict, p) for p in self._layout.places}

    def _cut_off(self) -> dict[str, AgentStep]:
        """Truncate all open episodes, by a step without actions."""
        final, alive = self.last, self._alive
        self._begin()
        return {
            name: AgentStep(
                observation=self.last[name],
                reward=np.zeros(self.rows, np.float32),
                terminated=np.zeros(self.rows, bool),
                truncated=alive[name].copy(),
                final_observation=final[name],
                real=np.zeros(self.rows, bool),
            )
            for name in final
        }


def _all(ends: EpisodeFlags) -> list[tuple[str, ...]]:
    return [*ends.done, *ends.terminated, *ends.truncated]
