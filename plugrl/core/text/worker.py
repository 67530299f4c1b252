"""Rollout workers: from a problem to trajectories."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.blame import failure_key, warn_once
from plugrl.core.component import Component
from plugrl.core.config.schema import component, described
from plugrl.core.errors import ConfigError
from plugrl.core.text.evaluation import BaseEvaluationTarget, EvaluationFailedError, evaluate
from plugrl.core.text.sampling import SamplingParams
from plugrl.core.text.trajectory import NOT_SAMPLED, Trajectory

if TYPE_CHECKING:
    from plugrl.core.text.evaluation import Evaluator
    from plugrl.core.text.services import Completion, Tokenizer


@dataclass
class RolloutWorkerConfig:
    """How a problem becomes a prompt and an answer."""

    evaluator: Any = component("evaluator", help="what rewards an answer")
    model: str = described("policy", "the model that is asked, a key of `models`")
    temperature: float = described(1.0, "sampling temperature; 0: greedy")
    top_p: float = described(1.0, "nucleus sampling: keep this probability mass")
    max_prompt_length: int = described(1024, "longest prompt in tokens")
    max_response_length: int = described(256, "longest answer in tokens")

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ConfigError("temperature must not be negative")
        if not 0 < self.top_p <= 1:
            raise ConfigError("top_p must be above 0 and at most 1")
        for name in ("max_prompt_length", "max_response_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")


@dataclass(slots=True)
class RolloutTask:
    """One attempt at one problem.

    ``ask`` sends prompt tokens to a model by name and gives its :class:`Completion`.
    """

    data: Mapping[str, Any]
    item: int
    run_id: int
    group_id: str
    is_val: bool
    sampling: SamplingParams
    ask: Callable[[str, Sequence[int], SamplingParams], Awaitable[Completion]]
    tokenizers: Mapping[str, Tokenizer]
    prompt_key: str = "prompt"
    answer_key: str = "answer"
    turns: int = field(default=0)

    @property
    def prompt(self) -> str:
        """The problem's prompt.

        Raises:
            ConfigError: the problem has no such column.
        """
        return str(self._column(self.prompt_key, "data.prompt_key"))

    @property
    def answer(self) -> str:
        """The problem's reference answer.

        Raises:
            ConfigError: the problem has no such column.
        """
        return str(self._column(self.answer_key, "data.answer_key"))

    def _column(self, name: str, setting: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise ConfigError(
                f"data has no column {name!r} ({setting}); it has: {', '.join(map(str, self.data))}"
            ) from None


class RolloutWorker(Component, ABC):
    """Turns a problem into one trajectory or several; subclass it to write an agent.

    ``rollout`` may be ``async`` or plain. A failure of one attempt raises; it is counted and
    gives an invalid trajectory, never a reward of 0.
    """

    Config: ClassVar[type] = RolloutWorkerConfig

    def __init__(self, config: Any = None, evaluator: Evaluator | None = None) -> None:
        super().__init__(config)
        self.evaluator = evaluator

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The columns that it reads besides the prompt, as :meth:`Evaluator.columns`."""
        return {}

    @abstractmethod
    def rollout(
        self, task: RolloutTask
    ) -> Trajectory | list[Trajectory] | Awaitable[Trajectory | list[Trajectory]]:
        """Attempt ``task`` once."""

    def judge(self, task: RolloutTask, trajectory: Trajectory, final_answer: str) -> Trajectory:
        """Let the evaluator reward ``trajectory``; without a judgement it becomes invalid.

        Raises:
            ConfigError: there is no evaluator.
        """
        if self.evaluator is None:
            raise ConfigError(
                "rollout_worker.evaluator is missing, so nothing rewards an answer; name one, "
                "such as exact_match"
            )
        target = BaseEvaluationTarget(final_answer, trajectory.finish_reason == "length")
        try:
            result = evaluate(self.evaluator, task.data, target)
        except EvaluationFailedError as error:
            trajectory.valid = False
            trajectory.failure = str(error)
            message = f"an attempt is invalid: evaluator {error}; the traceback is in log.txt"
            warn_once(self, failure_key(self.evaluator, error.__cause__ or error), message, error)
            return trajectory
        trajectory.reward = result.reward
        trajectory.metrics.update(result.metrics)
        return trajectory


def trajectory_of(
    task: RolloutTask, model: str, prompt: Sequence[int], completion: Completion
) -> Trajectory:
    """The trajectory of one prompt and one answer, exactly as sampled."""
    before, after = len(prompt), len(completion.tokens)
    return Trajectory(
        tokens=[*prompt, *completion.tokens],
        loss_mask=[0] * before + [1] * after,
        logprobs=[0.0] * before + completion.logprobs,
        versions=[NOT_SAMPLED] * before + [completion.version] * after,
        model=model,
        group_id=task.group_id,
        run_id=task.run_id,
        finish_reason=completion.finish_reason,
        is_val=task.is_val,
    )
