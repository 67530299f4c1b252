"""``debate``: provers argue against each other, after Irving et al. (2018), arXiv:1805.00899."""

from __future__ import annotations

from plugrl.core.protocol.protocol import Verdict
from plugrl.scenarios.protocols.two_provers import TwoProversProtocol


class DebateProtocol(TwoProversProtocol):
    """``prover0`` argues for reject and ``prover1`` for accept; all hear everything."""

    viewers = {
        "prover0_channel": ("prover0", "prover1", "verifier"),
        "prover1_channel": ("prover0", "prover1", "verifier"),
    }
    wins = {"prover0": Verdict.REJECT, "prover1": Verdict.ACCEPT}
