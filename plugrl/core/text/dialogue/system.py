"""``System``: the models of red-teaming, and how each is shown a dialogue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.renamed_methods import RenamedMethods
from plugrl.core.run.loaded_state import refuse_state

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from plugrl.core.text.batch import Batch
    from plugrl.core.text.dialogue.dialogue import Dialogue
    from plugrl.core.text.dialogue.tree import RolloutNode

#: What seeds the random numbers of one request: equal streams give equal texts.
Stream = tuple[int, int, int, int, int]


@dataclass(slots=True)
class Utterance:
    """A message as a model said it; ``prompt_tokens`` is what it was asked with.

    ``logprobs`` may be empty where the model gives none, which a target need not. ``failure`` says
    why there is no message.
    """

    text: str
    prompt_tokens: list[int]
    tokens: list[int]
    logprobs: list[float]
    finish_reason: Any = "stop"
    version: int = 0
    temperature: float = 1.0
    failure: str = ""


class System(RenamedMethods, ABC):
    """Tester, target and baseline behind the few things that are asked of them.

    The tester is trained. Of the target nothing is needed but answers. The baseline, which may be
    missing, says how likely a text is: for the fluency of probes, and as the reference of
    preference losses.
    """

    RENAMED_METHODS: ClassVar[Mapping[str, str]] = {
        "updated": "sync_weights",
        "stepped": "after_optimizer_step",
    }

    @abstractmethod
    def probes(self, contexts: Sequence[Dialogue], streams: Sequence[Stream]) -> list[Utterance]:
        """What the tester says next, one probe for each context: one list of requests."""

    @abstractmethod
    def responses(
        self, dialogues: Sequence[Dialogue], streams: Sequence[Stream]
    ) -> list[Utterance]:
        """What the target answers to the last probe of each dialogue: one list of requests."""

    @abstractmethod
    def baseline_log_probs(self, nodes: Sequence[RolloutNode]) -> list[list[float]] | None:
        """Log-probabilities of the probes' tokens under the baseline; None: there is none."""

    @abstractmethod
    def log_probs(
        self, batch: Batch, needs: Sequence[str] = ()
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Log-probabilities of the tester with their gradient, [B, T]; 0.0 where masked.

        Args:
            batch: probes after their prompts, as ``Batch.from_trajectories`` makes it.
            needs: what else is wanted of the same forward pass, [B, T] each: "entropy", and
                "values" of the state before each token where the tester has a value head.
        """

    @abstractmethod
    def parameters(self) -> list[torch.nn.Parameter]:
        """What an optimizer changes: the tester's weights, and its value head's."""

    @abstractmethod
    def sync_weights(self) -> None:
        """Let the tester sample with its weights as they are now; called before rollouts."""

    @abstractmethod
    def after_optimizer_step(self) -> None:
        """Take over what an optimizer changed of :meth:`parameters`; called after its steps."""

    @property
    def tester(self) -> Any:
        """The tester itself, such as a model of ``transformers``."""
        raise NotImplementedError(f"{type(self).__name__} does not show its tester")

    @property
    def attacker(self) -> Any:
        """Another name of :attr:`tester`."""
        return self.tester

    @property
    def tokenizer(self) -> Any:
        """The tester's tokenizer, in the form that :attr:`tester` goes with."""
        raise NotImplementedError(f"{type(self).__name__} does not show its tokenizer")

    def save_pretrained(self, folder: str | Path) -> None:
        """Write tester and tokenizer to ``folder``, as ``from_pretrained`` reads them."""
        self.tester.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes of the models."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises:
            UsageError: there is a state and the subclass does not take it.
        """
        refuse_state(self, state)
