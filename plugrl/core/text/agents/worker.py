"""``AgentRolloutWorker``: problems attempted by an agent with tools, in several turns."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from plugrl.core.chat_template import Message
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError, RunError, UsageError
from plugrl.core.plugins.user_code.error_location import location_suffix
from plugrl.core.text.agents.agent import Agent
from plugrl.core.text.agents.agent_config import AgentDefinition, load_agent
from plugrl.core.text.agents.conversation import Budget, Conversation
from plugrl.core.text.agents.parsing import make_parser
from plugrl.core.text.agents.tools import Toolbox
from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget
from plugrl.core.text.inference.chat import is_messages
from plugrl.core.text.rollout.task import CURRENT, RolloutTask
from plugrl.core.text.rollout.worker import RolloutWorker, RolloutWorkerConfig

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.agents.conversation import Asks
    from plugrl.core.text.agents.parsing import Parser
    from plugrl.core.text.trajectory import Trajectory

logger = logging.getLogger(__name__)
_TOKENS = (
    "tokens are recorded while the model samples them, never made from text; let run_agent return "
    "the final answer of `await self.agent.arun(query)`, and the rest is done"
)


@dataclass
class AgentRolloutWorkerConfig(RolloutWorkerConfig):
    """An agent and the limits of its conversations."""

    agent_config: str | None = described(
        None, "agent_config.yaml; null: no system prompt and no tools", file="file"
    )
    agent_workspace: str | None = described(
        None, "folder of the tools' modules; null: that of agent_config", file="folder"
    )
    tool_parser: Any = component("parser", "hermes", help="reads the calls, if there are tools")
    reasoning_parser: Any = component("parser", help="reads the reasoning; absent: all is content")
    max_turns: int = described(10, "replies of one conversation, if agent_config says nothing")
    tool_timeout: float | None = described(
        None, "seconds that a call may take; null: 30, or half of timeout if that is less"
    )
    error_message: str = described("Error: {error}", "what the model is told of a call that failed")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_turns < 1:
            raise ConfigError("max_turns must be at least 1")
        if self.tool_timeout is not None and self.tool_timeout <= 0:
            raise ConfigError("tool_timeout must be above 0, or null")
        if self.timeout and self.tool_timeout and self.tool_timeout >= self.timeout:
            raise ConfigError("tool_timeout must be below timeout, which ends the whole attempt")


@dataclass(slots=True)
class AgentEvaluationTarget(BaseEvaluationTarget):
    """The final answer of an agent, and ``observation``: all messages of its conversations."""

    observation: list[Message] = field(default_factory=list)


#: The agent of the attempt that the code which runs belongs to.
_AGENT: ContextVar[Agent | None] = ContextVar("plugrl_agent", default=None)


class AgentRolloutWorker(RolloutWorker):
    """Lets an agent work on each problem; subclass it to change a part of that.

    Override :meth:`format_task_query` for what it is asked, :meth:`get_train_loss_mask` for what
    is trained, or :meth:`run_agent` for the whole course. ``self.log_metrics`` adds metrics.
    """

    Config: ClassVar[type] = AgentRolloutWorkerConfig
    asks_now: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        plain = not inspect.iscoroutinefunction(cls.run_agent)
        cls.asks_now = plain and cls.run_agent is not AgentRolloutWorker.run_agent

    def __init__(self, config: Any = None, evaluator: Any = None) -> None:
        super().__init__(config, evaluator)
        options = self.config
        path = options.agent_config
        self._definition = load_agent(path, options.agent_workspace) if path else AgentDefinition()
        seconds = options.tool_timeout or min(30.0, (options.timeout or 60.0) / 2)
        self._toolbox = Toolbox(list(self._definition.tools), seconds)
        # Without tools, what looks like a call is a part of the answer.
        sections = [
            options.reasoning_parser,
            options.tool_parser if self._definition.tools else None,
        ]
        self._parsers: list[Parser] = [make_parser(s) for s in sections if s is not None]

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """The evaluator, and the agent's file with its tools."""
        section = check.section
        if section.get("evaluator") is None:
            remedy = "name what rewards an answer, such as exact_match"
            yield f"{check.path}.evaluator", f"is missing; {remedy}"
        if section.get("agent_config") is None:
            return
        try:
            definition = load_agent(section.agent_config, section.agent_workspace)
        except ConfigError as error:
            for fault in error.faults:
                yield f"{check.path}.agent_config", fault
            return
        for note in definition.notes:
            logger.info("%s", note)

    @property
    def agent(self) -> Agent:
        """The agent of the attempt that calls this.

        Raises:
            UsageError: no attempt runs here.
        """
        agent = _AGENT.get()
        if agent is None:
            raise UsageError("self.agent is for run_agent and what it calls, during an attempt")
        return agent

    def format_task_query(self, task_item: Mapping[str, Any]) -> str | list[Message]:
        """What the agent is asked about a problem: text, or messages; by default its prompt.

        Raises:
            ConfigError: the problem has no prompt.
        """
        task = CURRENT.get()
        if task is None:
            return task_item["prompt"]  # type: ignore[no-any-return]
        if task_item is not task.data:
            return task_item[task.prompt_key]  # type: ignore[no-any-return]
        return task.messages if is_messages(task_item.get(task.prompt_key)) else task.prompt

    def get_train_loss_mask(self, messages: list[Message]) -> Sequence[bool]:
        """Which messages of a conversation are trained: one value each.

        A value holds for all tokens of its message that were sampled; others are never trained.
        A reply also has ``response_message``, itself, and ``prompt_messages``, those before it.
        """
        return [True] * len(messages)

    def run_agent(self, task: RolloutTask) -> Any:
        """The final answer to ``task.data``, or an awaitable of it; None: the attempt failed.

        An override may be ``async`` and await ``self.agent.arun``, or plain and call
        ``self.agent.run``. What was said in all conversations is trained.
        """
        return self.agent.arun(self.format_task_query(task.data))

    def rollout(self, task: RolloutTask) -> Awaitable[list[Trajectory]]:
        """Attempt ``task``: run the agent, judge its answer, and give what it sampled."""
        agent = self._make_agent(task)
        _AGENT.set(agent)
        return self._finish_attempt(task, agent, self.run_agent(task))

    def _make_agent(self, task: RolloutTask, ask: Asks | None = None) -> Agent:
        options = self.config
        whole = options.max_prompt_length + options.max_response_length
        return Agent(
            task,
            self._definition,
            self._toolbox,
            self._parsers,
            model=options.model,
            budget=Budget(options.max_prompt_length, options.max_response_length, whole),
            max_turns=options.max_turns,
            error_message=options.error_message,
            ask=ask,
        )

    async def _finish_attempt(
        self, task: RolloutTask, agent: Agent, answer: Any
    ) -> list[Trajectory]:
        _AGENT.set(agent)
        answer = await answer if inspect.isawaitable(answer) else answer
        if answer is None:
            raise RuntimeError(f"run_agent gave no answer{location_suffix(type(self).run_agent)}")
        if not isinstance(answer, str):
            raise RunError(
                f"{type(self).__name__}.run_agent returned {type(answer).__name__}; the final "
                f"answer as text is expected{location_suffix(type(self).run_agent)}"
            )
        trajectories = [t for c in agent.conversations for t in self._trained_trajectories(c)]
        if not trajectories:
            raise RunError(
                f"{type(self).__name__}.run_agent asked no model; ask it with "
                f"`await self.agent.arun(query)`{location_suffix(type(self).run_agent)}"
            )
        self._count(task, agent, trajectories)
        await self._assign_reward(task, trajectories, answer)
        return trajectories

    @staticmethod
    def _count(task: RolloutTask, agent: Agent, trajectories: list[Trajectory]) -> None:
        """Log what the agent did, unless an override has logged it."""
        for name in ("turns", "tool_calls", "tool_errors", "parse_errors"):
            task.logged.setdefault(name, float(agent.counts[name]))
        task.logged.setdefault("trajectories", float(len(trajectories)))

    def _trained_trajectories(self, conversation: Conversation) -> list[Trajectory]:
        if not conversation.segments:
            return []
        mask = self.get_train_loss_mask(_mask_messages(conversation))
        count = len(conversation.messages)
        if len(mask) != count or any(value not in (0, 1) for value in mask):
            raise RunError(
                f"{type(self).__name__}.get_train_loss_mask returned {list(mask)!r:.80} for "
                f"{count} messages; one True or False for each is expected"
                f"{location_suffix(type(self).get_train_loss_mask)}"
            )
        return conversation.trajectories([bool(value) for value in mask])

    async def _assign_reward(
        self, task: RolloutTask, trajectories: list[Trajectory], answer: str
    ) -> None:
        """Judge the answer once; all trajectories of the attempt share what comes of it."""
        last = trajectories[-1]
        await self.judged(task, last, answer)
        for trajectory in trajectories[:-1]:
            trajectory.reward = last.reward
            trajectory.valid, trajectory.failure = last.valid, last.failure

    def target(self, trajectory: Trajectory, final_answer: str) -> BaseEvaluationTarget:
        """The answer with all messages of the attempt."""
        agent = _AGENT.get()
        conversations = agent.conversations if agent is not None else []
        messages = [dict(message) for each in conversations for message in each.messages]
        return AgentEvaluationTarget(
            final_answer, trajectory.finish_reason == "length", observation=messages
        )

    def _generate_tokens(self, *unused: Any) -> NoReturn:
        """Refuse to make tokens of text; the guides show workers that do.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"self._generate_tokens: {_TOKENS}")

    def _put_trajectory(self, *unused: Any) -> NoReturn:
        """Refuse trajectories that are made by hand; see :meth:`_generate_tokens`.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"self._put_trajectory: {_TOKENS}")

    @property
    def client(self) -> None:
        """None: the guides hand it to the agent, which knows the model by itself."""


def _mask_messages(conversation: Conversation) -> list[Message]:
    """The messages as :meth:`AgentRolloutWorker.get_train_loss_mask` takes them."""
    shown: list[Message] = []
    for number, message in enumerate(conversation.messages):
        copy = dict(message)
        if message["role"] == "assistant":
            copy["response_message"] = dict(message)
            copy["prompt_messages"] = conversation.messages[:number]
            copy["tools"] = conversation.tools
        shown.append(copy)
    return shown
