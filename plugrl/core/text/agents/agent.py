"""``Agent``: talks to a model in turns, calls its tools, and ends with an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plugrl.core.chat_template import Message
from plugrl.core.text.agents.conversation import Asks, Budget, Conversation
from plugrl.core.text.agents.parsing import ParsedReply, Parser, ToolCall, parse_reply
from plugrl.core.text.agents.tools import Toolbox, ToolFailedError
from plugrl.core.text.agents.tracer import InMemoryTracer
from plugrl.core.text.inference.chat import as_messages
from plugrl.core.text.rollout.fibers import wait_for

if TYPE_CHECKING:
    from plugrl.core.errors import UsageError
    from plugrl.core.text.agents.agent_config import AgentDefinition
    from plugrl.core.text.rollout.task import RolloutTask


class Agent:
    """The agent of one attempt.

    Args:
        task: the attempt.
        definition: what it is told, how it samples and which turns it has.
        toolbox: its tools.
        parsers: read its replies, one after the other.
        model: who is asked, unless a call says otherwise.
        budget: how long a conversation may be.
        max_turns: replies of one conversation, unless the definition says otherwise.
        error_message: what the model is told of a call that failed; ``{error}`` is the reason.
        ask: asks models; None: ``task.ask``.

    Attributes:
        conversations: all that were begun, in order; training sees their tokens.
        counts: turns, tool_calls, tool_errors and parse_errors so far.
        refusal: what ends the run although code of the attempt may have caught it; None: nothing.
    """

    def __init__(
        self,
        task: RolloutTask,
        definition: AgentDefinition,
        toolbox: Toolbox,
        parsers: Sequence[Parser],
        *,
        model: str,
        budget: Budget,
        max_turns: int,
        error_message: str = "Error: {error}",
        ask: Asks | None = None,
    ) -> None:
        self.conversations: list[Conversation] = []
        self.counts: Counter[str] = Counter()
        self.refusal: UsageError | None = None
        self._task = task
        self._definition = definition
        self._toolbox = toolbox
        self._parsers = parsers
        self._model = model
        self._budget = budget
        self._max_turns = definition.max_turns or max_turns
        self._error_message = error_message
        self._ask = ask
        self._sampling = definition.sampling.over(task.sampling, is_val=task.is_val)

    def run(self, query: str | Sequence[Message], *, tracer: object = None, **unused: Any) -> str:
        """:meth:`arun` for a plain ``run_agent``; a ``client`` is not needed.

        Args:
            query: text or messages.
            tracer: an :class:`InMemoryTracer` that keeps what is said; others keep nothing.
            unused: what other frameworks need to reach a model.

        Raises:
            UsageError: an ``async`` function or another thread calls it.
        """
        begun = len(self.conversations)
        answer = wait_for(
            self.arun(query),
            "self.agent.run is for a plain run_agent; in an async one write "
            "`await self.agent.arun(query)`",
        )
        if isinstance(tracer, InMemoryTracer):
            tracer.add(self.conversations[begun:])
        return answer

    async def arun(self, query: str | Sequence[Message], *, model: str | None = None) -> str:
        """The final answer to ``query``, text or messages, after as many turns as it takes.

        Each call is a conversation of its own, with the system prompt before it.

        Raises:
            ConfigError: the query is neither, or too long.
        """
        conversation = self.converse(query, model=model)
        reply = ParsedReply()
        for _ in range(self._max_turns):
            said = await conversation.reply(self._sampling)
            if said is None:
                return reply.content
            self.counts["turns"] += 1
            reply = self._read(said, conversation.asked)
            if conversation.truncated or not (reply.calls or reply.error):
                return reply.content
            self._remember(conversation, reply)
            ended = await self._answer(conversation, reply)
            if ended is not None:
                return ended
        conversation.end_truncated()
        return reply.content

    def converse(self, query: str | Sequence[Message], *, model: str | None = None) -> Conversation:
        """Begin a conversation whose turns the caller makes, with ``reply`` and ``add``."""
        name = model or self._model
        limits = self._task.limits.get(name)
        bounds = [self._budget.total, self._definition.limit, limits and limits.context]
        budget = replace(self._budget, total=min(bound for bound in bounds if bound))
        messages = [*self._definition.system, *as_messages(query, "the query of an agent")]
        begun = Conversation(self._task, name, messages, self._toolbox.schemas, budget, self._ask)
        self.conversations.append(begun)
        return begun

    def _read(self, said: str, asked: str) -> ParsedReply:
        reply = parse_reply(self._parsers, said, asked)
        self.counts["parse_errors"] += sum(bool(c.error) for c in reply.calls) + bool(reply.error)
        return reply

    def _remember(self, conversation: Conversation, reply: ParsedReply) -> None:
        """Note the calls in the message that made them."""
        message = conversation.messages[-1]
        message["spoken"] = reply.content
        message["tool_calls"] = [
            {
                "id": self._id(conversation, number),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(reply.calls)
        ]

    @staticmethod
    def _id(conversation: Conversation, number: int) -> str:
        # Nine letters and digits: some templates ask for exactly that.
        return f"call{len(conversation.messages):03d}{number:02d}"[:9]

    async def _answer(self, conversation: Conversation, reply: ParsedReply) -> str | None:
        """Add the results of the calls to the conversation; return a result that ends the run."""
        ended: str | None = None
        ids = [call["id"] for call in conversation.messages[-1]["tool_calls"]]
        for call, identity in zip(reply.calls, ids, strict=True):
            result, good = await self._result(call)
            conversation.add(
                {"role": "tool", "name": call.name, "content": result, "tool_call_id": identity}
            )
            if good and call.name in self._definition.stop_tools and ended is None:
                ended = result
        if reply.error:
            conversation.add({"role": "tool", "name": "", "content": self._error(reply.error)})
        return ended

    async def _result(self, call: ToolCall) -> tuple[str, bool]:
        if not call.error:
            self.counts["tool_calls"] += 1
        try:
            return await self._toolbox.call(call), True
        except ToolFailedError as error:
            if not call.error:
                self.counts["tool_errors"] += 1
            return self._error(str(error)), False

    def _error(self, reason: str) -> str:
        return self._error_message.replace("{error}", reason)
