"""Options that all protocols share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError


@dataclass
class VerifierConfig:
    """The rewards of a verifier, for protocols without provers."""

    verifier_reward: float = described(
        1.0, "reward of the verifier for a right verdict", at_least=-1e6, at_most=1e6
    )
    verifier_incorrect_penalty: float = described(
        -1.0, "its reward for a wrong verdict", at_least=-1e6, at_most=1e6
    )
    verifier_terminated_penalty: float = described(
        -1.0, "its reward for none after the last round", at_least=-1e6, at_most=1e6
    )
    verifier_no_guess_reward: float = described(
        0.0, "its reward for each turn without a verdict", at_least=-1e6, at_most=1e6
    )
    force_guess: Literal["zero", "one", "y"] | None = described(
        None, "what the verifier decides as soon as it may, whatever it says; y: the label"
    )

    def __post_init__(self) -> None:
        if self.verifier_incorrect_penalty > self.verifier_reward:
            raise ConfigError(
                "verifier_incorrect_penalty must not be above verifier_reward; "
                "write a penalty with its minus sign"
            )


@dataclass
class ProtocolConfig(VerifierConfig):
    """The rewards of verifier and provers."""

    prover_reward: float = described(
        1.0, "reward of a prover for the verdict that it argues for", at_least=-1e6, at_most=1e6
    )
    shared_reward: bool = described(False, "provers get the rewards of the verifier instead")


@dataclass
class ProtocolRoundsConfig(ProtocolConfig):
    """Rewards and the length of an episode."""

    max_message_rounds: int = described(
        8, "rounds after which an episode ends undecided", at_least=1, at_most=10**4
    )
    min_message_rounds: int = described(
        1, "rounds before which no decision counts", at_least=1, at_most=10**4
    )
    verifier_first: bool = described(True, "the verifier opens, else the provers do")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_message_rounds < self.min_message_rounds:
            raise ConfigError("max_message_rounds must be at least min_message_rounds")
