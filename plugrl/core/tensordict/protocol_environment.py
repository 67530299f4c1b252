"""``ProtocolEnvironment``: episodes of a protocol between small networks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from plugrl.core.protocol import Protocol
from plugrl.core.tensordict.environment import AgentStep, VectorEnvironment
from plugrl.core.tensordict.labelled import Labelled
from plugrl.core.tensordict.message_space import MessageSpace


class ProtocolEnvironment(VectorEnvironment):
    """N episodes of a protocol about the items of a data set; all agents see the items.

    An observation has the parts, see :class:`Layout`, where S is how many channels the agent
    sees, in the order that it is shown them, and K the number of messages:

    - the arrays of the data set under their own names;
    - ``round`` ``[rounds]``, a one at the round that comes next;
    - ``messages`` ``[rounds, S, K]``, a one at each message so far;
    - ``last_message`` ``[S, K]``, a one at the last message in each channel;
    - ``speaks`` ``[S]``, where the agent speaks next, and ``may_decide`` ``[1]``;
    - ``stance`` ``[2]``, for provers whose stance is random: a one at the verdict that pays;
    - ``action_mask`` ``[S K + 3]``, or ``[S K]`` for agents that do not decide.

    An action has a message for each channel seen and, for those that decide, a verdict.

    Args:
        protocol: who speaks when, and what it is worth.
        data: the items, with labels 0 and 1; results are reported of its groups too.
        messages: what agents can say.
        num_envs: N.
        once: play each item once in its order, as in evaluations; else items come in an order
            that the seed decides, another one each time.
    """

    score = "accuracy"

    def __init__(
        self,
        protocol: Protocol,
        data: Labelled,
        messages: MessageSpace,
        *,
        num_envs: int,
        once: bool = False,
    ) -> None:
        raise NotImplementedError

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """See the base class."""
        raise NotImplementedError

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        """See the base class."""
        raise NotImplementedError
