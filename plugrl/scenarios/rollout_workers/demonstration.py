"""Demonstrations: trajectories made of a problem's prompt and reference answer."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.chat import encode_reply
from plugrl.core.text.rollout.task import RolloutTask
from plugrl.core.text.rollout.worker import demonstration_of
from plugrl.core.text.trajectory import Trajectory
from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


class DemonstrationRolloutWorker(SingleTurnRolloutWorker):
    """Gives the reference answer as the trajectory to learn from; validation asks the model."""

    gives: ClassVar[Collection[str]] = ()

    asks_now = False
    trains_on_answers: ClassVar[bool] = True

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The column of the answers to learn from."""
        return {} if is_val else {"data.answer_key": data["answer_key"]}

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Only validation needs an evaluator."""
        validate = check.root.get("validate") or {}
        return super().preflight(check) if validate.get("enabled") else ()

    def rollout(self, task: RolloutTask) -> Trajectory | Awaitable[Trajectory]:
        """The demonstration of ``task``, ended as its model ends answers.

        Raises:
            ConfigError: the prompt or the answer is over its limit.
        """
        if task.is_val:
            return super().rollout(task)
        tokenizer = task.tokenizers[self.config.model]
        prompt = self._encode(task)
        answer = encode_reply(tokenizer, task.answer, chat=task.is_chat)
        limit = self.config.max_response_length
        if len(answer) > limit:
            raise ConfigError(
                f"problem {task.item} has an answer of {len(answer)} tokens, more than "
                f"rollout_worker.max_response_length={limit}"
            )
        return demonstration_of(task, self.config.model, prompt, answer)
