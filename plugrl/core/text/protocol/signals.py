"""Texts as vectors, for protocols that compare what agents put out."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from plugrl.core.protocol.state import ProtocolSignals, Verdict

if TYPE_CHECKING:
    from plugrl.core.protocol.protocol import Protocol
    from plugrl.core.text.protocol.speaking import Statement

#: Length of the vector of a text.
SIZE = 256


def trigram_counts(text: str) -> np.ndarray:
    """How often each run of three characters is in a text, hashed to SIZE places."""
    padded = f"\x02{text}\x03"
    runs = [padded[n : n + 3].encode() for n in range(max(len(padded) - 2, 1))]
    return np.bincount([zlib.crc32(run) % SIZE for run in runs], minlength=SIZE).astype(np.float64)


def signals_of(protocol: Protocol, said: Sequence[Statement]) -> ProtocolSignals:
    """The signals of a round of one episode; agents that did not speak have none."""
    agents, channels = len(protocol.agent_names), len(protocol.channels)
    messages = np.zeros((1, agents, channels, SIZE))
    decisions = np.zeros((1, agents, len(Verdict)))
    for each in said:
        place = protocol.index(each.agent)
        decisions[0, place, int(each.decision)] = 1.0
        for channel, text in each.messages.items():
            messages[0, place, protocol.channels.index(channel)] = trigram_counts(text)
    return ProtocolSignals(messages=messages, decisions=decisions)
