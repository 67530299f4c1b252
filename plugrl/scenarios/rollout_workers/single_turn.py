"""One prompt, one answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from plugrl.core.errors import ConfigError
from plugrl.core.text.rollout.task import RolloutTask
from plugrl.core.text.rollout.worker import RolloutWorker, trajectory_of
from plugrl.core.text.trajectory import Trajectory

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


class SingleTurnRolloutWorker(RolloutWorker):
    """Sends the prompt to the model and lets the evaluator judge the answer."""

    gives: ClassVar[Collection[str]] = ()
    logs: ClassVar[Collection[str]] = ()

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """An evaluator is needed, or nothing rewards an answer."""
        if check.section.get("evaluator") is None:
            remedy = "name what rewards an answer, such as exact_match"
            yield f"{check.path}.evaluator", f"is missing; {remedy}"

    async def rollout(self, task: RolloutTask) -> Trajectory:
        """Attempt ``task`` with one request.

        Raises:
            ConfigError: the prompt is longer than ``max_prompt_length``.
        """
        model = self.config.model
        tokenizer = task.tokenizers[model]
        prompt = self._encode(task)
        completion = await task.ask(model, prompt, task.sampling)
        trajectory = trajectory_of(task, model, prompt, completion)
        return await self.judged(task, trajectory, tokenizer.decode(completion.tokens))

    def _encode(self, task: RolloutTask) -> list[int]:
        prompt = task.prompt_tokens(self.config.model)
        self._check_prompt(task, prompt)
        return prompt

    def _check_prompt(self, task: RolloutTask, prompt: Sequence[int]) -> None:
        limit = self.config.max_prompt_length
        if len(prompt) > limit:
            raise ConfigError(
                f"problem {task.item} has a prompt of {len(prompt)} tokens, more than "
                f"rollout_worker.max_prompt_length={limit}; raise it or set data.filter_prompts"
            )
        if not prompt:
            raise ConfigError(f"problem {task.item} has an empty prompt ({task.prompt_key})")
