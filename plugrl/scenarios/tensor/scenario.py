"""The scenario ``tensor``: environments that derive from ``TensorEnvironment``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.config.view import plain
from plugrl.core.errors import ConfigError
from plugrl.core.scenario import Scenario, ScenarioInstance
from plugrl.core.wording import did_you_mean
from plugrl.scenarios.environment_options import copies_in

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.environment.tensor_environment import TensorEnvironment
    from plugrl.core.tensordict.environment.vector_environment import Split, VectorEnvironment

#: Those that are there, by the names that Gymnasium gives the same tasks.
ENVIRONMENTS = {"CartPole-v1": "plugrl.scenarios.tensor.cart_pole:CartPole"}


@dataclass
class TensorConfig:
    """Which environment, and how many copies of it are stepped together."""

    environment: str = described(
        "",
        f"{', '.join(ENVIRONMENTS)}; or module:Class or file.py:Class of a TensorEnvironment",
        file="code",
    )
    env_kwargs: dict[str, Any] = described({}, "what the class is called with, besides num_envs")
    num_envs: int = described(
        1024, "copies that are stepped together in training", at_least=1, at_most=10**7
    )
    num_test_envs: int = described(
        16, "copies that are stepped together in an evaluation", at_least=1, at_most=10**7
    )
    max_episode_steps: int | None = described(
        None, "time limit; null: that of the environment", at_least=1, at_most=10**9
    )

    def __post_init__(self) -> None:
        if not self.environment:
            raise ConfigError("environment is missing; name one, such as CartPole-v1")


class TensorScenario(Scenario):
    """Copies of an environment that are stepped as tensors, on the device of the networks.

    Trainers that learn from whole batches never take a step off the device; the others step the
    copies as arrays.
    """

    Config: ClassVar[type] = TensorConfig

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Build the environment once: unknown names and spaces of wrong kinds show then."""
        try:
            cls(check.section)._environment("test").close()
        except ConfigError as error:
            yield f"{check.path}.environment", str(error)

    def build(self, seed: int) -> ScenarioInstance:
        """The task; copies are seeded when they are reset, not here.

        Raises:
            ConfigError: there is no such environment.
        """
        return ScenarioInstance(name=self.config.environment, make_environment=self._environment)

    def preview(self, seed: int) -> None:
        """None: the task has no problems to show."""
        return

    def _environment(self, split: Split) -> VectorEnvironment:
        from plugrl.core.tensordict.environment.tensor_environment import TensorEnvironment
        from plugrl.scenarios.import_by_name import call, find

        config = self.config
        name = ENVIRONMENTS.get(config.environment, config.environment)
        if ":" not in name and not name.endswith(".py"):
            raise ConfigError(
                f"there is no environment {name!r}{did_you_mean(name, ENVIRONMENTS) or ';'} take "
                f"{' or '.join(ENVIRONMENTS)}, or name one of yours as module:Class"
            )
        factory = find(name)[1]
        if not (isinstance(factory, type) and issubclass(factory, TensorEnvironment)):
            raise ConfigError(
                f"{name} is no subclass of TensorEnvironment; write it as file.py:Class, or take "
                "scenario.type: torchrl for an environment of TorchRL"
            )
        options = {**plain(config.env_kwargs), "num_envs": copies_in(config, split) or 1}
        if config.max_episode_steps is not None:
            options["max_episode_steps"] = config.max_episode_steps
        made: TensorEnvironment = call(name, factory, options)
        if not hasattr(made, "spaces"):
            raise ConfigError(
                f"{name} is not set up; call super().__init__(num_envs) in its __init__"
            )
        return made
