"""``Scenario``: a task, and ``ScenarioInstance``: the task built for one run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from plugrl.core.component import Component
from plugrl.core.errors import ConfigError

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.labelled_dataset import Labelled
    from plugrl.core.tensordict.environment.vector_environment import (
        AgentSpaces,
        Split,
        VectorEnvironment,
    )

#: One problem: its prompt, its reference answer and whatever else the task needs.
DataItem = Mapping[str, Any]


@dataclass(kw_only=True)
class ScenarioInstance:
    """The components of a task, built for one run.

    Attributes:
        name: the name of the scenario, for messages.
        datasets: the problems of each split, by name.
        make_environment: builds the environments of a task for small networks.
        agents: the configurations of the networks of such a task, by policy name.
        make_labelled: returns the items that the episodes of such a task are about, with labels.
    """

    name: str
    datasets: Mapping[str, Sequence[DataItem]] = field(default_factory=dict)
    make_environment: Callable[[Split], VectorEnvironment] | None = None
    agents: Mapping[str, Any] = field(default_factory=dict)
    make_labelled: Callable[[Split], Labelled] | None = None

    def labelled(self, split: Split) -> Labelled:
        """The items of ``split`` as arrays, with their labels.

        Raises:
            ConfigError: the task has none.
        """
        if self.make_labelled is None:
            raise ConfigError(
                f"scenario {self.name!r} has no labels to learn from; take one that has, such as "
                "scenario: {type: image_classification}"
            )
        return self.make_labelled(split)

    def environment(self, split: Split) -> VectorEnvironment:
        """New environments for ``split``; the caller closes them.

        Raises:
            ConfigError: the task has problems, not environments.
        """
        if self.make_environment is None:
            raise ConfigError(
                f"scenario {self.name!r} has no environment; take one that has, such as "
                "scenario: {type: gymnasium, id: CartPole-v1}"
            )
        return self.make_environment(split)

    @cached_property
    def train_environment(self) -> VectorEnvironment:
        """The training environments; raises what :meth:`environment` raises."""
        return self.environment("train")

    @cached_property
    def test_environment(self) -> VectorEnvironment:
        """The evaluation environments; raises what :meth:`environment` raises."""
        return self.environment("test")

    def close(self) -> None:
        """Close the training and evaluation environments, if there are any."""
        for name in ("train_environment", "test_environment"):
            environment = self.__dict__.pop(name, None)
            if environment is not None:
                environment.close()

    def dataset(self, split: str) -> Sequence[DataItem]:
        """The problems of ``split``.

        Raises:
            ConfigError: the scenario has no such split.
        """
        try:
            return self.datasets[split]
        except KeyError:
            known = ", ".join(sorted(self.datasets)) or "none"
            raise ConfigError(
                f"scenario {self.name!r} has no split {split!r}; it has: {known}"
            ) from None


class Scenario(Component, ABC):
    """A task that builds its problems and components from its section and a seed."""

    @abstractmethod
    def build(self, seed: int) -> ScenarioInstance:
        """Build the task; equal configurations and seeds give equal instances."""

    def preview(self, seed: int) -> Mapping[str, Sequence[DataItem]] | None:
        """At least one problem of each split, for `plugrl validate`; None: unknown.

        By default this builds the task. Override it if that is slow.
        """
        return self.build(seed).datasets

    def preview_agents(self, seed: int) -> Mapping[str, AgentSpaces] | None:
        """The spaces of each agent, for `plugrl validate`; None: the task has no environments.

        By default this makes the evaluation environments. Override it if that is slow.
        """
        instance = self.build(seed)
        if instance.make_environment is None:
            return None
        with closing(instance.environment("test")) as environment:
            turns = environment.takes_turns
            return {
                agent: replace(spaces, takes_turns=turns)
                for agent, spaces in environment.spaces.items()
            }
