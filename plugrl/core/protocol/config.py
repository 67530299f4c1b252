"""The options that protocols have in common."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError


@dataclass
class VerifierConfig:
    """Rewards of a verifier; what a protocol without provers has."""

    verifier_reward: float = described(1.0, "reward of the verifier for a right verdict")
    verifier_incorrect_penalty: float = described(-1.0, "its reward for a wrong verdict")
    verifier_terminated_penalty: float = described(-1.0, "its reward for none after the last round")
    verifier_no_guess_reward: float = described(0.0, "its reward for each turn without a verdict")
    force_guess: Literal["zero", "one", "y"] | None = described(
        None, "what the verifier decides as soon as it may, whatever it says; y: the label"
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{field.name} must be a number, not {value}")
        if self.verifier_incorrect_penalty > self.verifier_reward:
            raise ConfigError(
                "verifier_incorrect_penalty must not be above verifier_reward; "
                "write a penalty with its minus sign"
            )


@dataclass
class ProtocolConfig(VerifierConfig):
    """Rewards of verifier and provers."""

    prover_reward: float = described(1.0, "reward of a prover for the verdict that it argues for")
    shared_reward: bool = described(False, "provers get the rewards of the verifier instead")


@dataclass
class ProtocolRoundsConfig(ProtocolConfig):
    """Rewards, and how long an episode may take."""

    max_message_rounds: int = described(8, "rounds after which an episode ends undecided")
    min_message_rounds: int = described(1, "rounds before which no decision counts")
    verifier_first: bool = described(True, "the verifier opens, else the provers do")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_message_rounds < 1:
            raise ConfigError("min_message_rounds must be at least 1")
        if self.max_message_rounds < self.min_message_rounds:
            raise ConfigError("max_message_rounds must be at least min_message_rounds")
