"""The scenario ``torchrl``: any environment that derives from TorchRL's ``EnvBase``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.config.view import plain
from plugrl.core.errors import ConfigError
from plugrl.core.scenario import Scenario, ScenarioInstance
from plugrl.scenarios.environment_options import check_named, copies_in, import_path_and_arguments
from plugrl.scenarios.films import film_faults

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.environment.vector_environment import Split, VectorEnvironment
    from plugrl.scenarios.torchrl.maker import Maker


@dataclass
class TorchrlConfig:
    """Which environment, how it is transformed, and how many copies of it there are."""

    environment: str = described(
        "",
        "module:Class such as torchrl.envs:GymEnv, or a function that returns an environment; or "
        "file.py:Class",
        file="code",
    )
    env_kwargs: dict[str, Any] = described({}, "what the environment is built with")
    transforms: list[Any] = described(
        [],
        "import paths of transforms in order, such as torchrl.envs:StepCounter; with arguments: "
        "{path: ..., kwargs: {...}}",
    )
    observation: str | None = described(
        None, "entry that networks see; null: observation, pixels or the only one"
    )
    num_envs: int | None = described(
        None,
        "copies that are stepped together; null: 4, and 1 of what is a batch by itself",
        at_least=1,
        at_most=10**6,
    )
    num_test_envs: int | None = described(
        None, "copies in an evaluation; null: num_envs", at_least=1, at_most=10**6
    )
    actions: Literal["clip", "rescale"] = described(
        "clip", "continuous actions: clip them to the bounds, or rescale them from [-1, 1]"
    )
    collector: Literal["arrays", "torchrl"] = described(
        "arrays",
        "who steps the environment in training: code for arrays, or TorchRL's own collector, which "
        "is slower and cannot be resumed in the middle of episodes",
    )
    max_restarts: int = described(
        10, "copies that may break and be built anew in a run", at_least=0, at_most=10**9
    )

    def __post_init__(self) -> None:
        if not self.environment:
            raise ConfigError("environment is missing; name a class such as torchrl.envs:GymEnv")
        check_named("transforms", self.transforms)


class TorchrlScenario(Scenario):
    """Copies of an environment of TorchRL, with one agent or, in a ``group_map``, several.

    Each agent of a group has its own name and its own policy unless ``agents.NAME.policy`` names
    one to share. Batched environments count all their rows.
    """

    Config: ClassVar[type] = TorchrlConfig

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Build the environment once: unknown names and specs of wrong kinds show then."""
        scenario, path = cls(check.section), check.path
        if scenario.config.collector == "torchrl":
            from plugrl.core.tensordict.collect.torchrl_collector import HELD_NOISE, REFUSAL

            if _learns_between_steps(check):
                yield f"{path}.collector", REFUSAL
            if any(each.policy_head.use_sde for each in check.root.get("agents", {}).values()):
                yield f"{path}.collector", HELD_NOISE
        try:
            maker = scenario._maker()
        except ConfigError as error:
            transforms = str(error).startswith("scenario.transforms")
            yield f"{path}.{'transforms' if transforms else 'environment'}", str(error)
            return
        try:
            scenario._environment(maker, "train").close()
        except ConfigError as error:
            yield path, str(error)
            return
        yield from film_faults(check, lambda: scenario._environment(maker, "film"))

    def build(self, seed: int) -> ScenarioInstance:
        """The task; environments are built when a trainer asks for them.

        Raises:
            ConfigError: there is no such environment or transform.
        """
        maker = self._maker()

        def make(split: Split) -> VectorEnvironment:
            return self._environment(maker, split)

        return ScenarioInstance(name=self.config.environment, make_environment=make)

    def preview(self, seed: int) -> None:
        """None: the task has no problems to show."""
        return

    def _maker(self) -> Maker:
        from plugrl.scenarios.torchrl.maker import Maker

        section = self.config
        transforms = [import_path_and_arguments(each) for each in section.transforms]
        return Maker(section.environment, plain(section.env_kwargs), transforms)

    def _environment(self, maker: Maker, split: Split) -> VectorEnvironment:
        from plugrl.scenarios.torchrl.environment import TorchrlEnvironment

        section = self.config
        return TorchrlEnvironment(
            maker,
            copies_in(section, split),
            observation=section.observation,
            rescale=section.actions == "rescale",
            max_restarts=section.max_restarts,
            render=split == "film",
            collected=split == "train" and section.collector == "torchrl",
        )


def _learns_between_steps(check: Preflight) -> bool:
    from plugrl.core.tensordict.off_policy import OffPolicyTrainer

    trainer = check.component("trainer")
    return isinstance(trainer, type) and issubclass(trainer, OffPolicyTrainer)
