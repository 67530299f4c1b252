"""``MessageSpace``: what agents of a protocol can say where messages are numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

#: In a history: nothing was said there.
SILENCE = -1


class MessageSpace:
    """Messages 0 to ``size`` - 1, all of them always allowed; subclass it for other rules.

    Args:
        size: how many messages there are.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def allowed(
        self, agent: str, items: Mapping[str, np.ndarray], history: np.ndarray
    ) -> np.ndarray | None:
        """What an agent may say next in each channel that it sees.

        At least one message must be allowed everywhere.

        Args:
            agent: who.
            items: what the episodes are about: the arrays of the data set, ``[n, *shape]`` each.
            history: ``[n, rounds, channels]``, the messages of each round in the channels that
                the agent sees, in the order that it is shown them; ``SILENCE`` where there is
                none.

        Returns:
            A mask ``[n, channels, size]`` or, for all channels alike, ``[n, 1, size]``; None:
            everything.
        """
        return None


def last_said(history: np.ndarray) -> np.ndarray:
    """The last message of each channel, ``[n, channels]``, of a history as above."""
    rounds = history.shape[1]
    spoken = history != SILENCE
    latest = rounds - 1 - spoken[:, ::-1].argmax(1)
    last: np.ndarray = np.take_along_axis(history, latest[:, None], 1)[:, 0]
    return last
