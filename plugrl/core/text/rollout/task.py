"""``RolloutTask``: one attempt at one problem, and what it may ask for."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, KeysView, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import Any, NoReturn, Protocol

from plugrl.core.chat_template import Message
from plugrl.core.errors import ConfigError, PlugrlError, UsageError
from plugrl.core.text.evaluate.evaluator import (
    EvaluationFailedError,
    EvaluationItem,
    EvaluationRunResult,
)
from plugrl.core.text.inference.chat import (
    answer_fault,
    answer_text,
    as_messages,
    encode_prompt,
    is_messages,
)
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import TokenLimits
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.core.text.rollout.fibers import wait_for


@dataclass(slots=True)
class Judgement:
    """One answer that waits to be judged in a batch, and its outcome."""

    item: EvaluationItem
    outcome: EvaluationRunResult | EvaluationFailedError | None = None


#: Fills in the outcomes of several judgements.
BatchWork = Callable[[Sequence[Judgement]], Awaitable[None]]
#: Has that done on a judgement, along with those of the other open attempts.
BatchJudge = Callable[[Judgement, BatchWork], Awaitable[None]]


class Ask(Protocol):
    """How a rollout asks a model."""

    def __call__(
        self, model: str, tokens: Sequence[int], sampling: SamplingParams | None = None, /
    ) -> Awaitable[Completion]:
        """The answer of ``model`` to prompt ``tokens``; without ``sampling``, as configured."""


class Suspend(Protocol):
    """How an attempt lets the others go on without it."""

    def __call__(self, *, timed: bool = False) -> Callable[[], None]:
        """Begin; what is returned ends it."""


def _stay(*, timed: bool = False) -> Callable[[], None]:
    return lambda: None


_NO_TEXT = (
    "a RolloutTask was made text, of which no prompt is to be made; write task.prompt, "
    'task["column"] or task.data, and {task!r} in a log'
)


@dataclass(slots=True)
class RolloutTask:
    """One attempt at one problem, whose columns it has by name: ``task["prompt"]``.

    It is no text: a prompt that is made of it by mistake is refused.

    ``ask`` sends prompt tokens to a model by name and gives its :class:`Completion`; plain
    functions call :meth:`ask_now` instead. ``park`` says that models are to be asked without the
    attempt, until what it returns is called; its time limit stands still unless it is ``timed``.
    ``limits`` says how long a sequence of each model may be, and ``logged`` holds what
    :meth:`RolloutWorker.log_metrics` was given.
    """

    data: Mapping[str, Any]
    item: int
    run_id: int
    group_id: str
    is_val: bool
    sampling: SamplingParams
    ask: Ask
    tokenizers: Mapping[str, Tokenizer]
    prompt_key: str = "prompt"
    answer_key: str = "answer"
    turns: int = field(default=0)
    seed: tuple[int, ...] = ()
    batch_judge: BatchJudge | None = field(default=None, repr=False)
    park: Suspend = field(default_factory=lambda: _stay, repr=False)
    limits: Mapping[str, TokenLimits] = field(default_factory=dict, repr=False)
    logged: dict[str, float] = field(default_factory=dict)
    engine_faults: list[PlugrlError] = field(default_factory=list, repr=False)
    _random: Random | None = field(default=None, repr=False)

    def __getitem__(self, column: str) -> Any:
        return self.data[column]

    def __contains__(self, column: object) -> bool:
        return column in self.data

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def keys(self) -> KeysView[str]:
        """The columns of the problem, so that ``{**task}`` is a copy of it."""
        return self.data.keys()

    def get(self, column: str, default: Any = None) -> Any:
        """A column of the problem, or ``default``."""
        return self.data.get(column, default)

    def __str__(self) -> NoReturn:
        raise UsageError(_NO_TEXT)

    def __format__(self, spec: str) -> NoReturn:
        raise UsageError(_NO_TEXT)

    @property
    def random(self) -> Random:
        """Random numbers of this attempt alone.

        They depend on the seed, the step, the problem and the run, and not on the process that
        makes the attempt or on what it did before, as those of the module :mod:`random` do.
        """
        if self._random is None:
            self._random = Random(repr(self.seed))
        return self._random

    def ask_now(
        self, model: str, tokens: Sequence[int], sampling: SamplingParams | None = None
    ) -> Completion:
        """``ask`` for plain functions: it returns with the answer, and others go on meanwhile.

        Raises:
            UsageError: an ``async`` function or another thread calls it.
        """

        async def answer() -> Completion:
            return await self.ask(model, tokens, sampling or self.sampling)

        return wait_for(
            answer(),
            "task.ask_now is for plain rollout functions, in the thread that called them; in an "
            "async one write `await task.ask(...)`",
        )

    @property
    def prompt(self) -> str:
        """The problem's prompt.

        Raises:
            ConfigError: the problem has no such column, or what it holds is no text.
        """
        prompt = self._column(self.prompt_key, "data.prompt_key")
        # What is missing in a table is often NaN, and would become the text "nan".
        missing = prompt is None or (isinstance(prompt, float) and math.isnan(prompt))
        if missing or isinstance(prompt, (Mapping, list, tuple)):
            held = "no value" if missing else type(prompt).__name__
            raise ConfigError(
                f"problem {self.item}: {self.prompt_key!r} holds {held}, not text "
                "(data.prompt_key); name another column, or a worker that reads task.data"
            )
        return str(prompt)

    @property
    def messages(self) -> list[Message]:
        """The problem's prompt as messages; text is one message of the user.

        Raises:
            ConfigError: the problem has no such column, or what it holds is neither.
        """
        prompt = self._column(self.prompt_key, "data.prompt_key")
        if not is_messages(prompt):
            prompt = self.prompt
        return as_messages(prompt, f"problem {self.item}: {self.prompt_key!r}")

    @property
    def is_chat(self) -> bool:
        """Whether the problem's prompt is messages, which chat templates write, and not text.

        Raises:
            ConfigError: the problem has no such column.
        """
        return is_messages(self._column(self.prompt_key, "data.prompt_key"))

    def prompt_tokens(self, model: str) -> list[int]:
        """The prompt as tokens of ``model``: text as its tokenizer begins one, messages by the
        chat template.

        Raises:
            ConfigError: as :attr:`messages`, or the tokenizer has no chat template.
        """
        prompt = self.messages if self.is_chat else self.prompt
        return encode_prompt(self.tokenizers[model], prompt, model)

    @property
    def answer(self) -> str:
        """The problem's reference answer: a text, a number, or what one message says.

        Raises:
            ConfigError: the problem has no such column, or it holds something else.
        """
        value = self._column(self.answer_key, "data.answer_key")
        answer = answer_text(value)
        if answer is None:
            raise ConfigError(
                f"problem {self.item}: {self.answer_key!r} holds {answer_fault(value)} "
                "(data.answer_key); leave the problem out, or name another column"
            )
        return answer

    def _column(self, name: str, setting: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise ConfigError(
                f"data has no column {name!r} ({setting}); it has: {', '.join(map(str, self.data))}"
            ) from None


#: The attempt that the code which runs belongs to.
CURRENT: ContextVar[RolloutTask | None] = ContextVar("plugrl_task", default=None)
