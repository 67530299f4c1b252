"""Demonstrations of an agent: replies that are written, with the results that tools really give."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.agents.worker import AgentRolloutWorker, AgentRolloutWorkerConfig
from plugrl.core.text.inference.chat import encode_reply
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.rollout.task import RolloutTask
from plugrl.core.text.trajectory import WRITTEN, Trajectory

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


@dataclass
class AgentDemonstrationConfig(AgentRolloutWorkerConfig):
    """The agent, and where its replies are written."""

    demonstration_key: str = described("demonstration", "column with the list of replies")


class AgentDemonstrationRolloutWorker(AgentRolloutWorker):
    """Gives written replies as what to learn from, each ended as its model ends them.

    Calls in them are carried out, so that the results which stand between are those that the agent
    will meet. Validation asks the model.
    """

    Config: ClassVar[type] = AgentDemonstrationConfig

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The column of the replies."""
        return {} if is_val else {f"{path}.demonstration_key": section["demonstration_key"]}

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Only validation needs an evaluator."""
        validate = check.root.get("validate") or {}
        for where, message in super().preflight(check):
            if validate.get("enabled") or where != f"{check.path}.evaluator":
                yield where, message

    def rollout(self, task: RolloutTask) -> Awaitable[list[Trajectory]]:
        """The demonstration of ``task``, or in validation an attempt.

        Raises:
            ConfigError: there are no replies, they do not lead to an answer, or they are too long.
        """
        return super().rollout(task) if task.is_val else self._replay_demonstration(task)

    async def _replay_demonstration(self, task: RolloutTask) -> list[Trajectory]:
        agent = self._make_agent(task, _Script(task, self.config.demonstration_key))
        await agent.arun(self.format_task_query(task.data))
        (conversation,) = agent.conversations
        if conversation.truncated:
            raise ConfigError(
                f"problem {task.item}: its demonstration passes max_turns or "
                f"rollout_worker.max_response_length={self.config.max_response_length}"
            )
        trajectories = self._trained_trajectories(conversation)
        for trajectory in trajectories:
            trajectory.logprobs = trajectory.versions = trajectory.temperature = None
            trajectory.finish_reason = WRITTEN
        self._count(task, agent, trajectories)
        return trajectories


class _Script:
    """Answers with the replies of a problem, one after the other."""

    def __init__(self, task: RolloutTask, column: str) -> None:
        replies = task.data.get(column)
        if not isinstance(replies, (list, tuple)) or not all(isinstance(r, str) for r in replies):
            raise ConfigError(
                f"problem {task.item}: {column!r} holds {replies!r:.60}; a list of the agent's "
                "replies is expected (rollout_worker.demonstration_key)"
            )
        self._task = task
        self._left = list(replies)

    async def __call__(self, model: str, tokens: list[int], sampling: SamplingParams) -> Completion:
        if not self._left:
            raise ConfigError(
                f"problem {self._task.item}: its demonstration ends with a call, not an answer"
            )
        tokenizer = self._task.tokenizers[model]
        reply = encode_reply(tokenizer, self._left.pop(0), chat=True)
        if len(reply) > sampling.max_new_tokens:
            raise ConfigError(
                f"problem {self._task.item}: a reply of its demonstration has {len(reply)} tokens, "
                f"and {sampling.max_new_tokens} are left of rollout_worker.max_response_length"
            )
        return Completion(reply, [0.0] * len(reply), "stop", 0)
