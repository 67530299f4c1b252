"""The scenario ``gymnasium``: any environment that is registered with gymnasium."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.factory import make_component
from plugrl.core.scenario import DataItem, Scenario, ScenarioInstance
from plugrl.core.tensordict.environment.vector_environment import AGENT
from plugrl.scenarios.environment_options import check_named, copies_in, import_path_and_arguments

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.environment.spaces import Spaces
    from plugrl.core.tensordict.environment.vector_environment import (
        AgentSpaces,
        Split,
        VectorEnvironment,
    )
    from plugrl.scenarios.gymnasium.recipe import Recipe

logger = logging.getLogger(__name__)
#: From how many copies on code of the environment's own is faster than one step after the other.
MANY = 8
#: The executor whose name is a value of `vectorization`.
RAY = "ray"


@dataclass
class GymnasiumConfig:
    """Which environment, and how its copies are stepped."""

    id: str = described("", "registered id, such as CartPole-v1; or package.module:Id-v0")
    env_kwargs: dict[str, Any] = described({}, "keyword arguments of the environment")
    wrappers: list[Any] = described(
        [],
        "import paths of wrappers, the innermost first, such as "
        "gymnasium.wrappers:FlattenObservation; with arguments: {path: ..., kwargs: {...}}",
    )
    num_envs: int = described(
        4, "copies that are stepped together in training", at_least=1, at_most=10**6
    )
    num_test_envs: int | None = described(
        None, "copies in an evaluation; null: num_envs", at_least=1, at_most=10**6
    )
    vectorization: Literal["auto", "native", "sync", "async", "ray"] = described(
        "auto",
        "native: by the environment's own code for many copies; sync: one after the other; async: "
        "each in a process of its own; ray: the same on the machines of a Ray cluster; auto: "
        "native where there is one and from 8 copies on, else sync",
    )
    max_episode_steps: int | None = described(
        None, "time limit; null: the registered one", at_least=1, at_most=10**9
    )
    actions: Literal["clip", "rescale"] = described(
        "clip",
        "continuous actions: clip to the bounds, or let policies act in [-1, 1] and rescale",
    )
    max_restarts: int = described(
        10, "how often copies that break are built anew in a run", at_least=0, at_most=10**9
    )
    step_timeout: float = described(
        60.0,
        "seconds that a copy in a process of its own may take for a step",
        above=0,
        at_most=1e8,
    )

    def __post_init__(self) -> None:
        if not self.id:
            raise ConfigError("id is missing; name an environment, such as CartPole-v1")
        check_named("wrappers", self.wrappers)


class GymnasiumScenario(Scenario):
    """Copies of an environment that is registered with gymnasium, for small networks.

    Observations and actions may be numbers, images, or choices. An episode that reaches its time
    limit is truncated, and its last observation is kept, so that it can be given a value.
    """

    Config: ClassVar[type] = GymnasiumConfig

    def build(self, seed: int) -> ScenarioInstance:
        """The task; environments are seeded when they are reset, not here.

        Raises:
            ConfigError: there is no such environment or wrapper.
        """
        return ScenarioInstance(name=self.config.id, make_environment=self._environment)

    def preview(self, seed: int) -> Mapping[str, Sequence[DataItem]] | None:
        """None: the task has no problems to show."""
        return None

    def preview_agents(self, seed: int) -> Mapping[str, AgentSpaces]:
        """The spaces of one copy."""
        return {AGENT: self._spaces(self._recipe("train")).agent}

    def _recipe(self, split: Split) -> Recipe:
        from plugrl.scenarios.gymnasium.recipe import Recipe, find_spec

        config = self.config
        recipe = Recipe(
            id=config.id,
            spec=find_spec(config.id),
            options=config.env_kwargs.to_dict(),
            wrappers=tuple(import_path_and_arguments(wrapper) for wrapper in config.wrappers),
            max_episode_steps=config.max_episode_steps,
        )
        return recipe.with_frames() if split == "film" else recipe

    def _environment(self, split: Split) -> VectorEnvironment:
        from plugrl.scenarios.gymnasium.stepped import SteppedEnvironment

        config, recipe = self.config, self._recipe(split)
        count = copies_in(config, split) or 1
        spaces = self._spaces(recipe)
        if split != "film" and self._is_native(recipe, count):
            from plugrl.scenarios.gymnasium.native import NativeEnvironment

            try:
                return NativeEnvironment(recipe, count, spaces, config.max_restarts)
            except ConfigError as error:
                if config.vectorization == "native":
                    raise
                logger.info("%s; its copies are stepped one after the other", error)
        is_async = split != "film" and config.vectorization in ("async", RAY)
        seconds = config.step_timeout if is_async else None
        executor = None
        if is_async and config.vectorization == RAY:
            executor = make_component("executor", RAY)
        return SteppedEnvironment(recipe, count, spaces, config.max_restarts, seconds, executor)

    def _is_native(self, recipe: Recipe, count: int) -> bool:
        wanted = self.config.vectorization
        if wanted == "native" and not recipe.has_vector:
            why = "with wrappers" if self.config.wrappers else "of its own"
            raise ConfigError(
                f"environment {recipe.id} has no native vector environment {why}; write "
                "scenario.vectorization: sync"
            )
        return wanted == "native" or (wanted == "auto" and recipe.has_vector and count >= MANY)

    def _try_native(self, recipe: Recipe) -> None:
        """Make a native vector environment of one copy, where it must be one."""
        from plugrl.scenarios.gymnasium.native import autoreset_mode

        if self.config.vectorization == "native" and self._is_native(recipe, 1):
            vector = recipe.make_vector(1)
            try:
                autoreset_mode(vector, recipe.id)
            finally:
                vector.close()

    def _spaces(self, recipe: Recipe) -> Spaces:
        from plugrl.core.tensordict.environment.spaces import Spaces

        made = recipe.make()
        try:
            return Spaces(
                recipe.id,
                made.observation_space,
                made.action_space,
                rescale=self.config.actions == "rescale",
            )
        finally:
            made.close()

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Make the environment once: unknown ids, missing packages and spaces show then."""
        scenario = cls(check.section)
        try:
            scenario._recipe("train")
        except ConfigError as error:
            yield f"{check.path}.id", str(error)
            return
        yield from scenario._faults(check)

    def _faults(self, check: Preflight) -> Iterable[Finding]:
        path = check.path
        recipe = self._recipe("train")
        try:
            self._spaces(recipe)
        except ConfigError as error:
            yield path, str(error)
            return
        try:
            self._try_native(recipe)
        except ConfigError as error:
            yield f"{path}.vectorization", str(error)
        if self.config.vectorization == RAY:
            yield from check.registry.get("executor", RAY).unplaced(check, "num_envs")
        film = (check.root.get("validate") or {}).get("film", "none")
        if film != "none":
            from plugrl.core.tensordict.environment.film import missing

            fault = missing(film) or self._undrawn()
            if fault is not None:
                yield "validate.film", fault

    def _undrawn(self) -> str | None:
        """Why no frame of the environment can be drawn."""
        from plugrl.scenarios.gymnasium.rendering import rendering_fault

        return rendering_fault(self._recipe("film"))
