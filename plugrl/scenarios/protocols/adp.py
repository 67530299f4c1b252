"""``adp``: the abstract decision problem of Anil et al. (2021), arXiv:2108.12099."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.protocol.protocol import Protocol, ProtocolConfig, Turn, Verdict


@dataclass
class AdpConfig(ProtocolConfig):
    """Options of the protocol ``adp``."""

    randomize_prover_stance: bool = described(
        False, "the prover argues for accept or for reject, by the seed, instead of for accept"
    )


class AdpProtocol(Protocol):
    """A prover sends one message, and a verifier judges."""

    Config: ClassVar[type] = AdpConfig
    agent_names = ("prover", "verifier")
    viewers = {"main": ("prover", "verifier")}
    wins = {"prover": Verdict.ACCEPT}
    max_message_rounds = 2

    def turns(self) -> Sequence[Turn]:
        """The prover, then the verifier."""
        return [{"prover": ("main",)}, {"verifier": ("main",)}]
