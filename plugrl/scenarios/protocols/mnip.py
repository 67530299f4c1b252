"""``mnip``: ``nip`` with two provers, after Hammond and Adam-Day (2025), arXiv:2412.08897."""

from __future__ import annotations

from plugrl.core.protocol.protocol import Verdict
from plugrl.scenarios.protocols.two_provers import TwoProversProtocol


class MnipProtocol(TwoProversProtocol):
    """Both provers argue for accept, and neither hears what the other and the verifier say."""

    viewers = {
        "prover0_channel": ("prover0", "verifier"),
        "prover1_channel": ("prover1", "verifier"),
    }
    wins = {"prover0": Verdict.ACCEPT, "prover1": Verdict.ACCEPT}
