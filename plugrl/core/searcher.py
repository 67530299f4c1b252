"""``Searcher``: proposes the values of a sweep, learns how they did, and ends hopeless runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from plugrl.core.component import Component
from plugrl.core.config.schemas.sweep import ParameterConfig

TrialState = Literal["running", "done", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
        number: counted from 0 in the order of :meth:`Searcher.ask`.
        values: by key of the space, what the run is configured with.
        state: ``running`` until :meth:`Searcher.tell`.
        value: the metric at the end; of a pruned trial the last one reported, if there is one.
    """

    number: int
    values: Mapping[str, Any] = field(default_factory=dict)
    state: TrialState = "running"
    value: float | None = None


class Searcher(Component, ABC):
    """Chooses the values of trials; subclass it for another library or rule.

    All that it knows is in a folder, so that a sweep goes on after its process was killed, and so
    that several processes can work on one: each opens the folder, and their calls of :meth:`ask`
    take turns. What is proposed depends on seed and earlier trials alone.
    """

    @abstractmethod
    def open(
        self, folder: Path, space: Mapping[str, ParameterConfig], *, maximize: bool, seed: int
    ) -> None:
        """Begin a sweep in an empty folder, or go on with the one that it holds.

        Args:
            folder: it exists.
            space: by key, the values that it may take.
            maximize: whether larger values are better.
            seed: of random choices.
        """

    @abstractmethod
    def trials(self) -> Sequence[Trial]:
        """All trials by number, those of other processes included."""

    @abstractmethod
    def ask(self) -> Trial:
        """A new trial, which is ``running``."""

    @abstractmethod
    def report(self, number: int, step: int, value: float) -> bool:
        """Note the metric of a running trial; True: it is hopeless and ends.

        A step that was reported before, by a run that was then killed, is reported again.
        """

    @abstractmethod
    def tell(self, number: int, state: TrialState, value: float | None = None) -> None:
        """A trial is over: ``done`` with its value, ``pruned`` or ``failed``."""
