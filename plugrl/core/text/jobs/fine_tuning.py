"""Fine-tuning jobs: what a service is asked for that trains a model on examples, as a whole.

A job has a name that the caller gives. It is made once: whoever wants it looks for it first, so
that a process that is killed between two calls makes no second one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plugrl.core.chat_template import Message
from plugrl.core.component import Component
from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, ContractError, UsageError
from plugrl.core.renamed_methods import RenamedMethods
from plugrl.core.text.inference.chat import as_messages

if TYPE_CHECKING:
    from plugrl.core.factory import Factory
    from plugrl.core.text.inference.services import InferenceService, ModelSpec
    from plugrl.core.text.inference.tokenizer import Tokenizer

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
#: States that a job leaves by itself.
OPEN_STATES: tuple[JobState, ...] = ("queued", "running")
ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class SupervisedExample:
    """A conversation from which replies are learned.

    Args:
        messages: with ``role`` and ``content``.
        trained: places of the replies that are learned; None: all of the assistant's.

    Raises:
        ContractError: the messages are malformed, or none that is learned is the assistant's.
    """

    messages: Sequence[Message]
    trained: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        messages = _validate_messages(self.messages)
        places = self.replies
        wrong = [place for place in places if not -1 < place < len(messages)]
        wrong = wrong or [p for p in places if messages[p]["role"] != ASSISTANT]
        if wrong or not places:
            what = f"message {wrong[0]} is none of the assistant's" if wrong else "it has none"
            raise ContractError(
                f"an example to learn replies from names the assistant's messages, and {what}"
            )

    @property
    def replies(self) -> tuple[int, ...]:
        """Places of the replies that are learned, in order."""
        if self.trained is not None:
            return tuple(sorted(set(self.trained)))
        return tuple(i for i, m in enumerate(self.messages) if m["role"] == ASSISTANT)


@dataclass(frozen=True, slots=True)
class PreferenceExample:
    """A conversation and two replies to it, of which one is preferred.

    Raises:
        ContractError: the messages are malformed, a reply is no text, or both are equal.
    """

    messages: Sequence[Message]
    preferred: str
    other: str

    def __post_init__(self) -> None:
        _validate_messages(self.messages)
        if not isinstance(self.preferred, str) or not isinstance(self.other, str):
            raise ContractError("the replies of a preference are texts")
        if self.preferred == self.other:
            raise ContractError("the replies of a preference are equal, so none is preferred")


Examples = Sequence[SupervisedExample | PreferenceExample]


def _validate_messages(messages: Sequence[Message]) -> list[Message]:
    try:
        return as_messages(messages, "the conversation of an example")
    except ConfigError as error:
        raise ContractError(str(error)) from None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What a service says of a job.

    Args:
        state: where it is.
        message: what there is to say about it, such as why it failed.
        fine_tuned_model: of a job that succeeded, what :meth:`FineTuneService.use` takes; None:
            the model stays as it is.
        wait: seconds after which it is worth asking again; None: as the settings say.
        metrics: numbers that tell how it goes, such as ``loss``.
    """

    state: JobState
    message: str = ""
    fine_tuned_model: str | None = None
    wait: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether the job goes on by itself."""
        return self.state in OPEN_STATES


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a service gets of the run.

    Args:
        folder: for it alone.
        factory: builds components.
        inference: samples from the model.
    """

    folder: Path
    factory: Factory
    inference: InferenceService


@dataclass
class FineTuneConfig:
    """What all fine-tuning services have settings for."""

    from_scratch: bool = described(
        True, "begin each job with the model's first weights; false: with those of the job before"
    )
    min_examples: int = described(
        1, "jobs with fewer examples are not made", at_least=1, at_most=10**9
    )
    timeout: float = described(86400.0, "seconds in which a job has to end", above=0, at_most=1e8)
    poll_interval: float = described(
        1.0, "seconds before a job is asked about again; they double", above=0, at_most=1e8
    )
    longest_interval: float = described(60.0, "and grow to these at most", above=0, at_most=1e8)

    def __post_init__(self) -> None:
        for name in ("timeout", "longest_interval"):
            if getattr(self, name) < self.poll_interval:
                raise ConfigError(
                    f"{name} is {getattr(self, name):g}, below poll_interval={self.poll_interval:g}"
                    f"; raise {name}, or lower poll_interval"
                )


class FineTuneService(RenamedMethods, Component, ABC):
    """Trains one model by jobs: examples go out, and a fine-tuned model comes back.

    Jobs belong to the service, not to the process: a job that :meth:`create` made is found again
    by its name after a restart.
    """

    RENAMED_METHODS: ClassVar[Mapping[str, str]] = {
        "hand_over": "export_weights",
        "take_over": "import_weights",
        "again": "retry",
    }
    Config: ClassVar[type] = FineTuneConfig
    #: As of :class:`InferenceService`.
    loads_weights: ClassVar[bool] = False

    @abstractmethod
    def load(self, spec: ModelSpec, context: JobContext) -> None:
        """Take the model that jobs begin with; called once, before everything else.

        Raises:
            ConfigError: the source, or a setting of the service, cannot be used.
        """

    @abstractmethod
    def find(self, name: str) -> str | None:
        """The id of the job called ``name``; None: there is none."""

    @abstractmethod
    def create(self, name: str, examples: Examples, base: str | None) -> str:
        """Make the job ``name`` and give its id; called when :meth:`find` knows none.

        Args:
            name: letters, digits and ``._-``, other than those of all other jobs.
            examples: at least ``min_examples`` of one sort.
            base: a fine-tuned model of an earlier job; None: the model of :meth:`load`.

        Raises:
            RunError: the service refuses it.
        """

    def retry(self, name: str, job: str, base: str | None) -> str:
        """Make the job ``name`` with the examples of ``job``, which failed; give its id.

        Raises:
            UsageError: this service keeps no examples.
        """
        raise UsageError(
            f"{type(self).__name__} cannot repeat job {job}, which failed; start a new run"
        )

    @abstractmethod
    def status(self, job: str) -> JobStatus:
        """What there is to say about a job.

        Services that train in this process do so here, a part at a time.

        Raises:
            RunError: the service cannot be asked, or knows no such job.
        """

    @abstractmethod
    def cancel(self, job: str) -> None:
        """End a job that is open; it is cancelled from now on."""

    def use(self, inference: InferenceService, model: str, version: int) -> None:
        """Let ``inference`` sample from a fine-tuned model, as ``version``.

        Raises:
            RunError: the model is no longer there.
            ConfigError: that service cannot sample from models of this one.
        """
        inference.use_saved_weights(model, version)

    def import_weights(self, handed: Mapping[str, Any]) -> None:
        """Begin with what an earlier phase handed over, in place of the source.

        Raises:
            ConfigError: jobs of this service cannot begin with it.
        """
        raise ConfigError(
            f"{type(self).__name__} cannot begin with what an earlier phase trained; give the "
            "model another name than in that phase"
        )

    def export_weights(self, model: str) -> Mapping[str, Any]:
        """What a later phase begins with, of a fine-tuned model.

        Raises:
            ConfigError: its weights cannot be had.
        """
        raise ConfigError(
            f"{type(self).__name__} keeps the weights of {model}, which no other phase can begin "
            "with; let the sequence end with this phase"
        )

    def export(
        self, model: str | None, folder: Path, tokenizer: Tokenizer, *, adapter: bool = False
    ) -> None:
        """Write a fine-tuned model to a new folder, for other software.

        Args:
            model: of a job; None: the model of :meth:`load`.
            folder: is there and empty.
            tokenizer: of the model.
            adapter: write an adapter alone.

        Raises:
            UsageError: this service has no weights to write.
        """
        raise UsageError(
            f"{type(self).__name__} keeps the weights of {model or 'its model'}, so there are none "
            "to export; ask the service for them"
        )

    def close(self) -> None:
        """End what the service runs in the background."""
