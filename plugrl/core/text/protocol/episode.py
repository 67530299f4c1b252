"""``Episode``: an interaction by a protocol between language models, which can be forked."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from plugrl.core.errors import ConfigError
from plugrl.core.protocol.state import ProtocolState, Verdict, scatter
from plugrl.core.text.agents.conversation import Budget, Conversation
from plugrl.core.text.protocol.prompts import ReceivedMessage
from plugrl.core.text.protocol.signals import signals_of
from plugrl.core.text.protocol.speaking import Script, Speaker, Stage, Statement
from plugrl.core.text.trajectory import WRITTEN, Trajectory

if TYPE_CHECKING:
    from plugrl.core.text.agents.conversation import Asks
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.rollout.task import RolloutTask

_WORDS = {Verdict.ACCEPT: "accept", Verdict.REJECT: "reject", Verdict.UNDECIDED: None}


@dataclass(frozen=True, slots=True)
class Round:
    """A round that was played.

    Args:
        before: the state that it began with.
        said: by whoever spoke, in the order of agents.
        rewards: of each agent, ``[A]``.
    """

    before: ProtocolState
    said: tuple[Statement, ...]
    rewards: np.ndarray


class Episode:
    """One episode of a protocol, about one problem.

    Args:
        stage: what it has in common with others.
        task: the attempt that it is.

    Attributes:
        rounds: what has happened.
        state: where the protocol stands, of one episode.

    Raises:
        ConfigError: the problem has no question or no label of 0 or 1.
    """

    def __init__(self, stage: Stage, task: RolloutTask) -> None:
        self.stage, self.task = stage, task
        self.question = task.prompt
        solution = task.data.get(stage.solution_key)
        self.solution = "" if solution is None else str(solution)
        self.label = _label(task, stage.label_key)
        self.seed = _seed(task)
        self.rounds: list[Round] = []
        self.state = stage.protocol.begin([self.seed], [self.label])
        self._conversations: dict[str, Conversation] = {}
        self._masks: tuple[ProtocolState, np.ndarray, np.ndarray] | None = None

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return bool(self.state.ended[0])

    @property
    def verdict(self) -> Verdict:
        """What has been decided."""
        protocol = self.stage.protocol
        return Verdict(int(self.state.decided[0, protocol.index(protocol.verifier_names[0])]))

    @property
    def rewards(self) -> np.ndarray:
        """What each agent has earned so far, ``[A]``."""
        agents = len(self.stage.protocol.agent_names)
        earned: np.ndarray = sum((each.rewards for each in self.rounds), np.zeros(agents))
        return earned

    @property
    def speaks(self) -> np.ndarray:
        """Who speaks where in the round that comes next, ``[A, C]``."""
        return self._next_round()[1]

    def _next_round(self) -> tuple[ProtocolState, np.ndarray, np.ndarray]:
        """The state, who speaks where and whose decisions count: all agents of a round ask."""
        if self._masks is None or self._masks[0] is not self.state:
            protocol, state = self.stage.protocol, self.state
            self._masks = (state, protocol.active(state)[0], protocol.deciding(state)[0])
        return self._masks

    def fork(self, run: int | None = None) -> Self:
        """An episode that was the same so far; it and this one go on by themselves.

        Args:
            run: the run id of its trajectories; None: this one's.
        """
        new = copy.copy(self)
        new.task = self.task if run is None else replace(self.task, run_id=run)
        new.rounds = list(self.rounds)
        new._conversations = {
            agent: each.fork(new.task) for agent, each in self._conversations.items()
        }
        return new

    async def play(self, ask: Asks | None = None) -> Self:
        """Go on to the end; errors as :meth:`advance`."""
        while not self.ended:
            await self.advance(ask)
        return self

    async def advance(self, ask: Asks | None = None) -> None:
        """Play one round; nothing happens after the end.

        Args:
            ask: asks models; None: ``task.ask``.

        Raises:
            ConfigError: a prompt is too long, or a template fails.
        """
        if self.ended:
            return
        protocol, asks = self.stage.protocol, ask or self.task.ask
        active = [agent for agent in protocol.agent_names if self.channels(agent)]
        said = await _speak_concurrently([self._speak(agent, asks) for agent in active])
        decisions = np.full(len(protocol.agent_names), int(Verdict.UNDECIDED))
        for each in said:
            decisions[protocol.index(each.agent)] = int(each.decision)
        signals = signals_of(protocol, said) if protocol.needs_signals else None
        outcome = protocol.step(self.state, decisions[None], signals)
        self.rounds.append(Round(self.state, tuple(said), outcome.rewards[0]))
        self.state = outcome.state

    async def _speak(self, agent: str, ask: Asks) -> Statement:
        """Let one agent speak, again if what it says is malformed."""
        stage = self.stage
        conversation = self._prompted_conversation(agent, ask)
        chat = tuple(dict(message) for message in conversation.messages)
        channels = self.channels(agent)
        decides = self.may_decide(agent)
        must = decides and self.must_decide(agent)
        sampling = self._sampling(agent)
        # A greedy model would say the same again.
        tries, retries = stage.max_retries if sampling.temperature else 0, 0
        while True:
            tried = conversation.fork()
            raw = await tried.reply(sampling)
            reply = stage.reader.read(raw or "", channels, decides=decides, must=must)
            if not reply.fault or raw is None or retries == tries:
                break
            retries += 1
        self._conversations[agent] = tried
        messages = {channel: reply.messages.get(channel, "") for channel in channels}
        return Statement(agent, chat, raw or "", messages, reply.decision, retries, reply.fault)

    def channels(self, agent: str) -> list[str]:
        """Where ``agent`` speaks in the round that comes next."""
        protocol = self.stage.protocol
        speaks = self.speaks[protocol.index(agent)]
        return [channel for channel, here in zip(protocol.channels, speaks, strict=True) if here]

    def may_decide(self, agent: str) -> bool:
        """Whether what ``agent`` decides next is read: it counts, or is compared with another's."""
        protocol = self.stage.protocol
        place = protocol.index(protocol.imitates.get(agent, agent))
        return bool(self._next_round()[2][place])

    def must_decide(self, agent: str) -> bool:
        """Whether this is the last round in which a decision of ``agent`` would count."""
        protocol = self.stage.protocol
        if agent in protocol.imitates:
            return False
        later = np.arange(int(self.state.round[0]) + 1, protocol.max_message_rounds)
        may = protocol.may_decide(later, np.full(len(later), self.seed))
        return not may[:, protocol.index(agent)].any()

    def _prompted_conversation(self, agent: str, ask: Asks) -> Conversation:
        """The conversation of an agent, with the messages that it gets before it speaks."""
        stage, known = self.stage, self._conversations.get(agent)
        facts = template_variables(self, agent)
        speaker, turns = stage.speakers[agent], sum(_spoke(each, agent) for each in self.rounds)
        if speaker.script is not None and self._is_written(speaker):
            ask = Script(self.task, agent, speaker.script, turns)
        if known is not None:
            going_on = known.fork(ask=ask)
            going_on.add(stage.prompts[agent].later(facts))
            return going_on
        context = self.task.limits[speaker.model].context if self.task.limits else 1 << 30
        budget = Budget(stage.max_prompt_length, context, context)
        opening = stage.prompts[agent].opening(facts)
        return Conversation(self.task, speaker.model, opening, [], budget, ask)

    def _is_written(self, speaker: Speaker) -> bool:
        """Whether the replies of an agent are; what is there to be learned is not held out."""
        learned = self.stage.teaches and self.task.is_val
        return speaker.script is not None and not learned

    def _sampling(self, agent: str) -> SamplingParams:
        speaker, common = self.stage.speakers[agent], self.task.sampling
        heat = None if self.task.is_val else speaker.temperature
        return replace(
            common,
            temperature=common.temperature if heat is None else heat,
            max_new_tokens=speaker.max_new_tokens or common.max_new_tokens,
        )

    def trajectories(self) -> list[Trajectory]:
        """What each agent's model has sampled, with what the agent has earned.

        There is one for each agent that spoke, or several where the chat template writes the
        history in another way than it was said. ``agent`` and ``turn_rewards``, what it earned in
        each round, are extra fields. Tokens of frozen agents are not trained.
        """
        return [
            trajectory
            for agent in self.stage.protocol.agent_names
            if agent in self._conversations
            for trajectory in self._of(agent, self.stage.speakers[agent])
        ]

    def _of(self, agent: str, speaker: Speaker) -> list[Trajectory]:
        conversation = self._conversations[agent]
        written = self._is_written(speaker)
        # Beside replies that are written to be learned, those that others sample are not.
        trained = not speaker.frozen and written == self.stage.teaches
        trajectories = conversation.trajectories([trained] * len(conversation.messages))
        place = self.stage.protocol.index(agent)
        for trajectory in trajectories:
            trajectory.reward = float(self.rewards[place])
            trajectory["agent"] = agent
            trajectory["turn_rewards"] = [float(each.rewards[place]) for each in self.rounds]
            if written:
                trajectory.logprobs = trajectory.versions = trajectory.temperature = None
                trajectory.finish_reason = WRITTEN
        return trajectories


def _spoke(played: Round, agent: str) -> bool:
    return any(said.agent == agent for said in played.said)


async def _speak_concurrently(
    speaking: Sequence[Coroutine[Any, Any, Statement]],
) -> list[Statement]:
    """What all say, at once; where one fails, the others are not waited for."""
    tasks = [asyncio.ensure_future(each) for each in speaking]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _label(task: RolloutTask, column: str) -> int:
    label = task.data.get(column)
    if label is None or isinstance(label, (str, bytes)) or label not in (0, 1):
        raise ConfigError(
            f"problem {task.item}: {column!r} holds {label!r:.40}; 0 or 1 is expected "
            "(rollout_worker.label_key)"
        )
    return int(label)


def _seed(task: RolloutTask) -> int:
    """Of the problem's turn, so that all attempts at it have the same roles."""
    seed, _, turn, _ = task.seed if len(task.seed) == 4 else (0, 0, task.item, 0)
    return int(scatter(seed, turn) >> np.uint64(1))


def template_variables(episode: Episode, agent: str) -> dict[str, Any]:
    """What templates of ``agent`` may use before its next turn."""
    stage, protocol = episode.stage, episode.stage.protocol
    place, turn = protocol.index(agent), int(episode.state.round[0])
    channels = episode.channels(agent)
    deciding = episode.may_decide(agent)
    stance = Verdict(int(protocol.stances(episode.state.seed)[0, place]))
    return {
        "question": episode.question,
        "solution": episode.solution,
        "item": episode.task.data,
        "agent": agent,
        "provers": list(protocol.prover_names),
        "verifiers": list(protocol.verifier_names),
        "stance": _WORDS[stance],
        "round": turn + 1,
        "rounds": protocol.max_message_rounds,
        "channels": [stage.reader.channel_name(channel) for channel in channels],
        "headers": [stage.reader.header(channel) for channel in channels],
        "heard": messages_for(episode, agent),
        "accept": stage.reader.decision(Verdict.ACCEPT),
        "reject": stage.reader.decision(Verdict.REJECT),
        "may_decide": deciding,
        "must_decide": deciding and episode.must_decide(agent),
    }


def messages_for(episode: Episode, agent: str) -> list[ReceivedMessage]:
    """What others have said to ``agent`` since it was asked last, in the order that it is shown."""
    stage, protocol = episode.stage, episode.stage.protocol
    turns = [n for n, each in enumerate(episode.rounds) if any(s.agent == agent for s in each.said)]
    sees = protocol.sees(agent)
    order = protocol.channel_order(agent, np.array([episode.seed]))[0]
    heard = []
    # Whoever spoke at the same time as the agent was not heard then.
    for played in episode.rounds[turns[-1] if turns else 0 :]:
        for channel in (sees[number] for number in order):
            heard += [
                ReceivedMessage(
                    stage.reader.channel_name(channel), said.agent, said.messages[channel]
                )
                for said in played.said
                if said.agent != agent and channel in said.messages
            ]
    return heard
