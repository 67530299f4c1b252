"""``multi_channel``: three provers and three channels, to test who hears what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from plugrl.core.protocol.protocol import Protocol, Turn, VerifierConfig


class MultiChannelProtocol(Protocol):
    """Several speak in each round, each in other channels; provers earn nothing of their own."""

    Config: ClassVar[type] = VerifierConfig
    agent_names = ("prover0", "prover1", "prover2", "verifier")
    viewers = {
        "main": ("prover0", "prover1", "prover2", "verifier"),
        "prover0_verifier": ("prover0", "verifier"),
        "prover_chat": ("prover0", "prover1", "prover2"),
    }
    max_message_rounds = 8
    min_message_rounds = 2

    def turns(self) -> Sequence[Turn]:
        """A cycle of three rounds, whose third is the verifier's."""
        return [
            {"prover1": ("main",), "prover0": ("prover_chat",)},
            {
                "prover2": ("main",),
                "prover0": ("prover0_verifier",),
                "prover1": ("prover_chat",),
            },
            {"verifier": ("main", "prover0_verifier"), "prover2": ("prover_chat",)},
        ]
