"""What tasks have in common in which small networks talk by a protocol about a data set."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.protocol.protocol import make_protocol
from plugrl.core.scenario import DataItem, Scenario, ScenarioInstance

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.environment.labelled_dataset import Labelled
    from plugrl.core.tensordict.environment.message_space import MessageSpace
    from plugrl.core.tensordict.environment.vector_environment import (
        Script,
        Split,
        VectorEnvironment,
    )


@dataclass
class ProtocolTaskConfig:
    """How agents talk, and how many conversations there are at a time."""

    protocol: Any = component("protocol", "nip", help="who speaks when, and what it is worth")
    num_envs: int = described(
        48, "conversations that are held together in training", at_least=1, at_most=10**6
    )
    num_test_envs: int | None = described(
        None, "conversations in an evaluation; null: num_envs", at_least=1, at_most=10**6
    )


class ProtocolTask(Scenario):
    """A data set with labels 0 and 1, and agents that talk about its items by a protocol.

    A subclass says what the items are, and what can be said.
    """

    Config: ClassVar[type] = ProtocolTaskConfig
    #: How the task is called in messages and metrics.
    name: ClassVar[str]

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Refuse films: nothing shows a conversation in frames."""
        if (check.root.get("validate") or {}).get("film", "none") != "none":
            yield (
                "validate.film",
                "conversations by a protocol have no frames; write validate.film: none",
            )

    @abstractmethod
    def data(self, split: Split, seed: int) -> Labelled:
        """The items of a split; equal configurations and seeds give equal ones."""

    @abstractmethod
    def messages(self, data: Labelled) -> MessageSpace:
        """What can be said about items such as these."""

    def scripts(self) -> Mapping[str, Script]:
        """Hand-made policies that agents can take by name; none unless a subclass has some."""
        return {}

    def build(self, seed: int) -> ScenarioInstance:
        """The task; data are made when they are first asked for, and kept."""
        config, protocol = self.config, make_protocol(self.config.protocol)

        @functools.cache
        def labelled(split: Split) -> Labelled:
            return self.data("test" if split == "film" else split, seed)

        def environment(split: Split) -> VectorEnvironment:
            from plugrl.core.tensordict.environment.protocol_environment import ProtocolEnvironment

            data, tests = labelled(split), config.num_test_envs or config.num_envs
            return ProtocolEnvironment(
                protocol,
                data,
                self.messages(data),
                num_envs=config.num_envs if split == "train" else tests,
                once=split != "train",
                scripts=self.scripts(),
            )

        return ScenarioInstance(
            name=self.name, make_environment=environment, make_labelled=labelled
        )

    def preview(self, seed: int) -> Mapping[str, Sequence[DataItem]] | None:
        """None: what the items are, no line of text can show."""
        return None
