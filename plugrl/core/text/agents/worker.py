"""``AgentRolloutWorker``: problems attempted by an agent with tools, in several turns."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.chat_template import Message
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError, RunError, UsageError
from plugrl.core.plugins.user_code.error_location import location_suffix
from plugrl.core.text.agents.agent import Agent
from plugrl.core.text.agents.agent_config import AgentDefinition, load_agent
from plugrl.core.text.agents.conversation import Budget, Conversation
from plugrl.core.text.agents.parsing import make_parser
from plugrl.core.text.agents.tools import Toolbox
from plugrl.core.text.agents.tracer import Reply, Submission, replies_of
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    EvaluationRunResult,
    validate_result,
)
from plugrl.core.text.inference.chat import is_messages
from plugrl.core.text.rollout.task import CURRENT, RolloutTask
from plugrl.core.text.rollout.worker import Judged, RolloutWorker, RolloutWorkerConfig
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.agents.conversation import Asks
    from plugrl.core.text.agents.parsing import Parser
    from plugrl.core.text.trajectory import Trajectory

logger = logging.getLogger(__name__)
_TOKENS = (
    "tokens are recorded while the model samples them, never made from text; let run_agent return "
    "the final answer of `await self.agent.arun(query)`, and the rest is done, or hand over what a "
    "plugrl.InMemoryTracer has kept of all replies"
)


#: What is counted of an agent.
_COUNTS = ("turns", "tool_calls", "tool_errors", "parse_errors")


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
    max_turns: int = described(
        10, "replies of one conversation, if agent_config says nothing", at_least=1, at_most=10**4
    )
    tool_timeout: float | None = described(
        None,
        "seconds that a call may take; null: 30, or half of timeout if that is less",
        above=0,
        at_most=1e8,
    )
    error_message: str = described("Error: {error}", "what the model is told of a call that failed")

    def __post_init__(self) -> None:
        super().__post_init__()
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
    logs: ClassVar[Collection[str]] = (*_COUNTS, "trajectories")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        plain = not inspect.iscoroutinefunction(cls.run_agent)
        cls.asks_now = plain and cls.run_agent is not AgentRolloutWorker.run_agent
        query = vars(cls).get("format_task_query")
        if inspect.isfunction(query):
            cls.format_task_query = _given_problem(query)  # type: ignore[method-assign]

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
        tools = [tool.name for tool in definition.tools]
        called = (section.get("tool_parser") or {}).get("tool")
        if tools and called and called not in tools:
            has = f"it has: {', '.join(tools)}{did_you_mean(called, tools, 1)}"
            yield f"{check.path}.tool_parser.tool", f"the agent has no tool {called!r}; {has}"

    @classmethod
    def training_temperatures(
        cls, section: Mapping[str, Any]
    ) -> Iterable[tuple[str, float | None, str]]:
        """That of the agent's file, if it has one; a file with faults is reported by itself."""
        own, path = None, section.get("agent_config")
        with contextlib.suppress(ConfigError):
            if path is not None:
                own = load_agent(path, section.get("agent_workspace")).sampling.temperature
        if own is None:
            yield from super().training_temperatures(section)
        else:
            yield "agent_config", own, f"write llm_config: {{temperature: 1}} in {path}"

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
        if isinstance(task_item, RolloutTask):
            task_item = task_item.data
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
        if agent.refusal is not None:
            raise agent.refusal
        if answer is None:
            raise RuntimeError(f"run_agent gave no answer{location_suffix(type(self).run_agent)}")
        handed = answer if isinstance(answer, Submission) else None
        if handed is None and not isinstance(answer, str):
            raise RunError(
                f"{type(self).__name__}.run_agent returned {type(answer).__name__}; the final "
                f"answer as text is expected{location_suffix(type(self).run_agent)}"
            )
        mask = None if handed is None or handed.mask is None else iter(handed.mask)
        trajectories = [t for c in agent.conversations for t in self._trained_trajectories(c, mask)]
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
        for name in _COUNTS:
            task.logged.setdefault(name, float(agent.counts[name]))
        task.logged.setdefault("trajectories", float(len(trajectories)))

    def _trained_trajectories(
        self, conversation: Conversation, handed: Iterator[bool] | None = None
    ) -> list[Trajectory]:
        """The trajectories of a conversation; ``handed`` has a mask for replies, one each."""
        if not conversation.segments:
            return []
        if handed is not None:
            numbers = range(len(conversation.messages))
            return conversation.trajectories(
                [bool(conversation.sampled_tokens(n)) and next(handed) for n in numbers]
            )
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
        self, task: RolloutTask, trajectories: list[Trajectory], answer: str | Submission
    ) -> None:
        """Judge the answer once; all trajectories of the attempt share the reward."""
        last = trajectories[-1]
        if isinstance(answer, Submission):
            given = EvaluationRunResult(answer.reward, metrics=dict(answer.metrics))
            self._apply_judgement(task, last, self._checked(given))
        else:
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

    def child_processor(self, child: Mapping[str, Any], trajectories: list[Reply]) -> None:
        """Add to ``trajectories`` each reply of a part of an :class:`InMemoryTracer`'s trace."""
        if "response_message" in child:
            trajectories.append(dict(child))
        for inner in child.get("children", ()):
            self.child_processor(inner, trajectories)

    def _generate_tokens(self, trajectories: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """The tokens of replies as they were sampled; see :meth:`child_processor`.

        Raises:
            UsageError: they are no replies of the trace.
        """
        if not all("tokens" in reply for reply in trajectories):
            raise self._refuse("_generate_tokens")
        return [list(reply["tokens"]) for reply in trajectories]

    def _put_trajectory(self, trajectory: Mapping[str, Any]) -> Submission:
        """Hand over an attempt that ``run_agent`` has judged by itself; it returns what this gives.

        Args:
            trajectory: ``reward``; ``metrics``, ``tokens`` of all replies and ``loss_mask``, one
                value for each of them, if it says so. The rest is known.

        Raises:
            UsageError: its tokens or its mask are not of the replies that were recorded.
        """
        replies = replies_of(self.agent.conversations)
        tokens, mask = trajectory.get("tokens"), trajectory.get("loss_mask")
        if tokens is not None and tokens != [reply["tokens"] for reply in replies]:
            raise self._refuse("_put_trajectory")
        if mask is not None and (
            len(mask) != len(replies) or any(value not in (0, 1) for value in mask)
        ):
            raise self._refuse(
                "_put_trajectory",
                f"loss_mask has {len(mask)} values for {len(replies)} replies; one True or False "
                "for each is expected",
            )
        chosen = None if mask is None else tuple(map(bool, mask))
        return Submission(trajectory.get("reward"), trajectory.get("metrics") or {}, chosen)

    def _refuse(self, name: str, reason: str = _TOKENS) -> UsageError:
        """An error that ends the run, also where the code of the attempt catches it."""
        self.agent.refusal = UsageError(f"self.{name}: {reason}")
        return self.agent.refusal

    def _checked(self, given: EvaluationRunResult) -> Judged:
        try:
            return validate_result(self._judge, given)
        except EvaluationFailedError as error:
            return error

    @property
    def client(self) -> None:
        """None: the guides hand it to the agent, which knows the model by itself."""


def _given_problem(method: Callable[..., Any]) -> Callable[..., Any]:
    """An override of ``format_task_query`` that is given the problem of a task, not the task."""

    @functools.wraps(method)
    def query(self: Any, task_item: Any) -> Any:
        return method(self, task_item.data if isinstance(task_item, RolloutTask) else task_item)

    return query


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
