"""The settings of episodes between language models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.config.schemas.temperature import check_temperature
from plugrl.core.errors import ConfigError
from plugrl.core.text.rollout.worker import RolloutWorkerConfig


@dataclass
class SpeakerConfig:
    """Who speaks for an agent, and how."""

    model: str | None = described(
        None, "key of `models`; null: `rollout_worker.model`", names="model"
    )
    frozen: bool = described(False, "what it says is not trained, whoever else has its model")
    temperature: float | None = described(
        None, "sampling temperature in training; null: the common", at_least=0, at_most=100
    )
    max_response_length: int | None = described(
        None, "longest reply in tokens; null: the common", at_least=1, at_most=10**8
    )
    script: str | None = described(
        None,
        "column with its replies, which are written, not sampled: a text, or one for each turn",
        names="column",
    )

    def __post_init__(self) -> None:
        if self.temperature is not None:
            check_temperature(self.temperature)


@dataclass
class ProtocolWorkerConfig(RolloutWorkerConfig):
    """A protocol, who speaks for its agents, and how replies are read."""

    protocol: Any = component("protocol", "nip", help="who speaks when, and what it is worth")
    agents: dict[str, SpeakerConfig] = described({}, "who speaks for each agent, by its name")
    prompts: str | None = described(
        None, "folder of prompt templates; null: general ones", file="folder"
    )
    label_key: str = described(
        "label", "column that holds 0 or 1: what a verifier is to find out", names="column"
    )
    solution_key: str = described(
        "solution", "column with what is claimed; it may be missing", names="optional column"
    )
    decision_form: str = described(
        "Decision: {}", "how a verifier decides; {} stands for one of the two words"
    )
    accept_word: str = described("accept", "the word that accepts")
    reject_word: str = described("reject", "the word that rejects")
    channel_header: str = described(
        "To {}:", "what begins the part of a reply for one of several channels, by its name"
    )
    channel_names: dict[str, str] = described({}, "what channels are called, where not as they are")
    max_retries: int = described(
        3,
        "times that a malformed reply is sampled again; then it is an empty message",
        at_least=0,
        at_most=1000,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("decision_form", "channel_header"):
            if getattr(self, name).count("{}") != 1:
                raise ConfigError(f"{name} must hold {{}} once")
        words = [word.strip().casefold() for word in (self.accept_word, self.reject_word)]
        if not all(words) or words[0] == words[1]:
            raise ConfigError("accept_word and reject_word must be two different words")
