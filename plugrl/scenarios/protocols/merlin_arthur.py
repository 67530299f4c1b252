"""``merlin_arthur``: the classifier of Waeldchen et al. (2022), arXiv:2206.00759."""

from __future__ import annotations

from collections.abc import Sequence

from plugrl.core.protocol.protocol import Protocol, Turn, Verdict


class MerlinArthurProtocol(Protocol):
    """One of two provers, picked by the seed, sends one message, and a verifier judges.

    ``prover0``, which speaks where the seed is even, argues for reject, ``prover1`` for accept.
    """

    agent_names = ("prover0", "prover1", "verifier")
    viewers = {"main": ("prover0", "prover1", "verifier")}
    wins = {"prover0": Verdict.REJECT, "prover1": Verdict.ACCEPT}
    max_message_rounds = 2

    def turns(self) -> Sequence[Turn | Sequence[Turn]]:
        """Either prover, then the verifier."""
        return [[{"prover0": ("main",)}, {"prover1": ("main",)}], {"verifier": ("main",)}]
