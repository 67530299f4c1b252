"""``ProtocolRolloutWorker``: problems about which agents talk by a protocol."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.errors import ConfigError, PlugrlError
from plugrl.core.protocol.protocol import make_protocol
from plugrl.core.protocol.state import Verdict
from plugrl.core.text.preflight import model_findings, stop_findings
from plugrl.core.text.protocol.episode import Episode
from plugrl.core.text.protocol.prompts import load_prompts
from plugrl.core.text.protocol.replies import ReplyReader
from plugrl.core.text.protocol.settings import ProtocolWorkerConfig, SpeakerConfig
from plugrl.core.text.protocol.speaking import Speaker, Stage
from plugrl.core.text.rollout.task import RolloutTask
from plugrl.core.text.rollout.worker import RolloutWorker
from plugrl.core.text.unused_options import non_default_options, warn_of_options
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.protocol.protocol import Protocol
    from plugrl.core.text.trajectory import Trajectory


class ProtocolRolloutWorker(RolloutWorker):
    """Plays an episode about each problem: agents talk, and a verifier judges its label.

    There is no evaluator: the protocol rewards. An attempt gives a trajectory for each agent that
    spoke, whose reward is the sum of what the agent earned, with the metrics of the episode.

    Attributes:
        protocol: who speaks when, and what it is worth.
    """

    Config: ClassVar[type] = ProtocolWorkerConfig
    gives: ClassVar[Collection[str]] = ("agent", "turn_rewards")
    #: And the reward of each agent, as ``AGENT/reward``.
    logs: ClassVar[Collection[str]] = (
        *("accuracy", "accuracy_of_0", "accuracy_of_1", "undecided", "accepted"),
        *("rounds", "malformed", "retries"),
    )
    asks_now: ClassVar[bool] = False
    checks_models: ClassVar[bool] = True
    #: Whether written replies are there to be learned.
    teaches: ClassVar[bool] = False

    def __init__(self, config: Any = None, evaluator: Any = None) -> None:
        super().__init__(config, evaluator)
        section = self.config
        self.protocol: Protocol = make_protocol(section.protocol)
        for where, message in _name_faults(section, self.protocol):
            raise ConfigError(f"rollout_worker.{where}: {message}")
        self._stage = Stage(
            protocol=self.protocol,
            speakers={agent: self._speaker(agent) for agent in self.protocol.agent_names},
            prompts=load_prompts(section.prompts, self.protocol, _names(section.protocol)),
            reader=ReplyReader(section),
            max_retries=section.max_retries,
            max_prompt_length=section.max_prompt_length,
            label_key=section.label_key,
            solution_key=section.solution_key,
            teaches=self.teaches,
        )

    def _speaker(self, agent: str) -> Speaker:
        own = self.config.agents.get(agent) or {}
        return Speaker(
            model=own.get("model") or self.config.model,
            frozen=bool(own.get("frozen")),
            temperature=own.get("temperature"),
            max_new_tokens=own.get("max_response_length"),
            script=own.get("script"),
        )

    @classmethod
    def training_temperatures(
        cls, section: Mapping[str, Any]
    ) -> Iterable[tuple[str, float | None, str]]:
        """The common one, and those of agents that have their own and are trained."""
        yield from super().training_temperatures(section)
        for agent, own in section["agents"].items():
            if not own.get("frozen") and own.get("script") is None:
                yield f"agents.{agent}.temperature", own.get("temperature"), "write 1"

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Agents that the protocol lacks, models that are not there, and prompts."""
        section, path = check.section, check.path
        if section.get("evaluator") is not None:
            yield f"{path}.evaluator", "is not used: the protocol rewards; leave it out"
        try:
            protocol = make_protocol(section.protocol)
        except PlugrlError:
            # It says itself what is wrong with it.
            return
        for where, message in _name_faults(section, protocol):
            yield f"{path}.{where}", message
        for agent, own in section.agents.items():
            if own.get("script") is not None:
                why = "its replies are written, not sampled"
                warn_of_options(
                    f"{path}.agents.{agent}",
                    non_default_options(own, SpeakerConfig(), why, ["temperature"]),
                )
        owners = {agent for agent, own in section.agents.items() if own.get("model") is not None}
        if check.models and not owners.issuperset(protocol.agent_names):
            yield from model_findings(check, f"{path}.model", section.model)
        asked = {
            (section.agents.get(agent) or {}).get("model") or section.model
            for agent in protocol.agent_names
            if (section.agents.get(agent) or {}).get("script") is None
        }
        yield from stop_findings(check, path, sorted(asked))
        try:
            load_prompts(section.prompts, protocol, _names(section.protocol))
        except ConfigError as error:
            yield f"{path}.prompts", str(error)

    @classmethod
    def trajectories_per_attempt(cls, section: Mapping[str, Any]) -> int:
        """One for each agent, if all get to speak."""
        try:
            return len(make_protocol(section["protocol"]).agent_names)
        except PlugrlError:
            return 1

    @property
    def models(self) -> dict[str, str]:
        """The model of each agent that one is sampled for, by agent."""
        speakers = self._stage.speakers
        return {agent: each.model for agent, each in speakers.items() if each.script is None}

    @property
    def frozen(self) -> tuple[str, ...]:
        """The agents that are not trained."""
        speakers = self._stage.speakers
        return tuple(agent for agent, each in speakers.items() if each.frozen or each.script)

    def decision_text(self, verdict: Verdict | int) -> str:
        """The reply that decides so."""
        return self._stage.reader.decision(verdict)

    def begin(self, task: RolloutTask) -> Episode:
        """The episode of an attempt, before its first round; see :class:`Episode` for errors."""
        return Episode(self._stage, task)

    async def rollout(self, task: RolloutTask) -> list[Trajectory]:
        """Play one episode to its end."""
        episode = await self.begin(task).play()
        for name, value in metrics_of(episode).items():
            task.logged.setdefault(name, value)
        return episode.trajectories()


def metrics_of(episode: Episode) -> dict[str, float]:
    """An episode in numbers; an episode without a verdict is as good as a wrong one."""
    verdict, protocol = episode.verdict, episode.stage.protocol
    said = [each for played in episode.rounds for each in played.said]
    metrics = {
        "accuracy": float(verdict == episode.label),
        f"accuracy_of_{episode.label}": float(verdict == episode.label),
        "undecided": float(verdict == Verdict.UNDECIDED),
        "accepted": float(verdict == Verdict.ACCEPT),
        "rounds": float(len(episode.rounds)),
        "malformed": sum(bool(each.fault) for each in said) / max(len(said), 1),
        "retries": float(sum(each.retries for each in said)),
    }
    for agent, reward in zip(protocol.agent_names, episode.rewards, strict=True):
        metrics[f"{agent}/reward"] = float(reward)
    return metrics


def _names(section: Any) -> tuple[str, ...]:
    """What the folder of a protocol's prompts may be called; a wrapper has those of its base."""
    if isinstance(section, str):
        return (section,)
    own = section.get("type") or section.get("custom_protocol_class_name") or ""
    base = section.get("base")
    return (str(own),) if base is None else (str(own), *_names(base))


def _name_faults(section: Any, protocol: Protocol) -> Iterator[tuple[str, str]]:
    """Agents and channels that the protocol lacks, and names of channels that are no use."""
    for kind, given, there in (
        ("agent", section.agents, protocol.agent_names),
        ("channel", section.channel_names, protocol.channels),
    ):
        for name in given:
            if name not in there:
                close = did_you_mean(name, there, 1)
                has = f"it has: {', '.join(there)}{close}"
                key = "agents" if kind == "agent" else "channel_names"
                yield f"{key}.{name}", f"the protocol has no such {kind}; {has}"
    known: dict[str, str] = {}
    for channel in protocol.channels:
        called = str(section.channel_names.get(channel, channel))
        # Headers are found whatever their case.
        other = known.setdefault(called.strip().casefold(), channel)
        if not called.strip():
            yield f"channel_names.{channel}", "must not be blank: agents name the channel by it"
        elif other != channel:
            where = channel if channel in section.channel_names else other
            yield (
                f"channel_names.{where}",
                f"channels {other!r} and {channel!r} are both called {called!r}; rename one",
            )
