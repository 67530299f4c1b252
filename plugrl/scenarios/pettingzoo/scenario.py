"""The scenario ``pettingzoo``: environments of several agents that act at once or in turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.config.view import plain
from plugrl.core.errors import ConfigError
from plugrl.core.scenario import Scenario, ScenarioInstance
from plugrl.scenarios.environment_options import copies_in
from plugrl.scenarios.films import film_faults
from plugrl.scenarios.pettingzoo.maker import MISSING, Maker, installed, seats_of, spaces_of

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.environment.vector_environment import Split, VectorEnvironment


@dataclass
class PettingZooConfig:
    """Which environment, and how many copies of it."""

    environment: str = described(
        "",
        "PettingZoo's own by name, such as tictactoe_v3 or sisl/pursuit-v5; a module such as "
        "mpe2.simple_spread_v3, module:factory or file.py:factory",
        file="code",
    )
    env_kwargs: dict[str, Any] = described({}, "what the environment is built with")
    num_envs: int = described(
        4, "copies that are stepped together in training", at_least=1, at_most=10**6
    )
    num_test_envs: int | None = described(
        None, "copies in an evaluation; null: num_envs", at_least=1, at_most=10**6
    )
    actions: Literal["clip", "rescale"] = described(
        "clip", "continuous actions: clip them to the bounds, or rescale them from [-1, 1]"
    )
    max_episode_steps: int | None = described(
        None,
        "cut an episode off after so many steps, moves of a game; null: it ends by itself",
        at_least=1,
        at_most=10**9,
    )
    max_restarts: int = described(
        10, "copies that may break and be built anew in a run", at_least=0, at_most=10**9
    )

    def __post_init__(self) -> None:
        if not self.environment:
            raise ConfigError("environment is missing; name a module such as mpe2.simple_spread_v3")


class PettingZooScenario(Scenario):
    """Agents of a PettingZoo environment, stepped as arrays.

    Agents may differ in what they see and do, may leave before the others, and may join later.
    Each has a policy of its own unless ``agents.NAME.policy`` names one to share. In environments
    of turns (AEC) a step is one move, and only the agent whose turn it is is asked.
    """

    Config: ClassVar[type] = PettingZooConfig

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """The extra, the environment by name, and the spaces of its agents."""
        if not installed():
            yield check.path, MISSING
            return
        section = check.section
        try:
            maker = Maker(section.environment, plain(section.env_kwargs))
        except ConfigError as error:
            yield f"{check.path}.environment", str(error)
            return
        try:
            environment = maker.build()
        except ConfigError as error:
            yield (
                f"{check.path}.{'env_kwargs' if section.env_kwargs else 'environment'}",
                str(error),
            )
            return
        try:
            seats = seats_of(environment, maker.name)
            spaces_of(environment, maker.name, seats, rescale=section.actions == "rescale")
        except ConfigError as error:
            yield f"{check.path}.environment", str(error)
            return
        finally:
            environment.close()
        yield from film_faults(check, lambda: cls(section)._environment(maker, "film"))

    def build(self, seed: int) -> ScenarioInstance:
        """The task; environments are built when a trainer asks for them.

        Raises:
            ConfigError: PettingZoo is missing, or there is no such environment.
        """
        maker = Maker(self.config.environment, plain(self.config.env_kwargs))

        def make(split: Split) -> VectorEnvironment:
            return self._environment(maker, split)

        return ScenarioInstance(name=self.config.environment, make_environment=make)

    def _environment(self, maker: Maker, split: Split) -> VectorEnvironment:
        from plugrl.scenarios.pettingzoo.environment import PettingZooEnvironment

        section = self.config
        return PettingZooEnvironment(
            maker,
            copies_in(section, split) or 1,
            rescale=section.actions == "rescale",
            max_restarts=section.max_restarts,
            render=split == "film",
            max_episode_steps=section.max_episode_steps,
        )

    def preview(self, seed: int) -> None:
        """None: the task has no problems to show."""
        return
