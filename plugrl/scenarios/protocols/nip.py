"""``nip``: a verifier questions a prover, after Hammond and Adam-Day (2025), arXiv:2412.08897."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.protocol.protocol import Protocol, ProtocolRoundsConfig, Turn, Verdict


@dataclass
class NipConfig(ProtocolRoundsConfig):
    """Options of the protocol ``nip``."""

    randomize_prover_stance: bool = described(
        False, "the prover argues for accept or for reject, by the seed, instead of for accept"
    )


class NipProtocol(Protocol):
    """Verifier and prover speak in turn; the prover wants to be accepted."""

    Config: ClassVar[type] = NipConfig
    agent_names = ("prover", "verifier")
    viewers = {"main": ("prover", "verifier")}
    wins = {"prover": Verdict.ACCEPT}

    def turns(self) -> Sequence[Turn]:
        """One speaks after the other."""
        order = ("verifier", "prover") if self.config.verifier_first else ("prover", "verifier")
        return [{agent: ("main",)} for agent in order]
