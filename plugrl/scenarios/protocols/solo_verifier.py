"""``solo_verifier``: a verifier without anybody to ask, as the baseline of the other protocols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from plugrl.core.protocol.protocol import Protocol, Turn, VerifierConfig


class SoloVerifierProtocol(Protocol):
    """The verifier judges at once."""

    Config: ClassVar[type] = VerifierConfig
    agent_names = ("verifier",)
    viewers = {"main": ("verifier",)}
    max_message_rounds = 1

    def turns(self) -> Sequence[Turn]:
        """The only round."""
        return [{"verifier": ("main",)}]
