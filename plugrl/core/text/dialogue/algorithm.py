"""``HarnessAlgorithm``: from rollout trees to a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.component import Component
from plugrl.core.errors import UsageError
from plugrl.core.run.loaded_state import refuse_state

if TYPE_CHECKING:
    import torch

    from plugrl.core.text.dialogue.system import System
    from plugrl.core.text.dialogue.tree import RolloutTree


class HarnessAlgorithm(Component, ABC):
    """Turns rollout trees into steps, steps into batches, and a batch into a loss.

    Steps and batches are whatever the author likes. The :class:`Harness` calls ``flatten`` for each
    tree, ``prepare`` with all steps of an experience, ``collate_fn`` for each batch and ``step``.

    Args:
        config: the section of the algorithm.
        system: the models; the harness gives those of the environment when it is left out.
    """

    #: The least ways to go on after each dialogue, and why, in words that follow "because".
    least_width: ClassVar[int] = 1
    least_width_reason: ClassVar[str] = ""
    #: Whether the baseline is the reference of its loss.
    needs_baseline: ClassVar[bool] = False

    def __init__(self, config: Any = None, system: System | None = None) -> None:
        super().__init__(config)
        self._system = system

    @property
    def system(self) -> System:
        """The tester that is trained, with the target and the baseline.

        Raises:
            UsageError: nobody gave any yet.
        """
        if self._system is None:
            raise UsageError(
                f"{type(self).__name__} has no system; give it one, "
                f"{type(self).__name__}(config, system=system), or to a Harness or trainer"
            )
        return self._system

    @system.setter
    def system(self, system: System) -> None:
        self._system = system

    @property
    def needs_values(self) -> bool:
        """Whether the tester must have a value head."""
        return False

    @property
    def epochs(self) -> int:
        """How many times each experience is trained on."""
        return 1

    @abstractmethod
    def flatten(self, tree: RolloutTree) -> Sequence[Any]:
        """The steps of one tree; none where nothing can be learned from it."""

    def prepare(self, steps: Sequence[Any]) -> Sequence[Any]:
        """The steps of a whole experience before it is split, for what all of them decide."""
        return steps

    @staticmethod
    def collate_fn(steps: Sequence[Any]) -> Any:
        """A batch of steps."""
        return list(steps)

    @abstractmethod
    def step(self, batch: Any) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss of a batch, a scalar with its gradient, and numbers to log."""

    def state_dict(self) -> dict[str, Any]:
        """What of the algorithm changes in training, besides the models."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises:
            UsageError: there is a state and the subclass does not take it.
        """
        refuse_state(self, state)
