"""What protocols with two provers, a channel for each, have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.protocol.protocol import Protocol, ProtocolRoundsConfig, Turn


@dataclass
class TwoProversConfig(ProtocolRoundsConfig):
    """Options of protocols with two provers."""

    sequential: bool = described(False, "provers speak one after the other, not at once")
    prover0_first: bool = described(True, "who begins, where they are sequential")
    randomize_channel_order: bool = described(
        True, "the verifier is shown the channels in an order that depends on the seed"
    )


class TwoProversProtocol(Protocol):
    """The verifier speaks in both channels, each prover in its own."""

    Config: ClassVar[type] = TwoProversConfig
    agent_names = ("prover0", "prover1", "verifier")

    def turns(self) -> Sequence[Turn]:
        """The verifier and both provers, or the verifier and one prover after the other."""
        asking: Turn = {"verifier": self.channels}
        provers = ("prover0", "prover1") if self.config.prover0_first else ("prover1", "prover0")
        answers: list[Turn] = [{prover: (f"{prover}_channel",)} for prover in provers]
        if not self.config.sequential:
            answers = [{**answers[0], **answers[1]}]
        return [asking, *answers] if self.config.verifier_first else [*answers, asking]
