"""Which nodes of two graphs were named together in a conversation."""

from __future__ import annotations

import torch


def exchanges(messages: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of nodes that belong together, and those that have no partner yet.

    The n-th node named in one graph belongs to the n-th one named in the other, in each channel.

    Args:
        messages: ``[N, rounds, channels, 2 * nodes]``, ones at what was named in each round.
        count: pairs that there can be at most, ``rounds // 2``.

    Returns:
        ``[N, count, channels, 2, nodes]``, ones at the nodes of each pair, and ``[N, channels,
        2, nodes]``, ones at nodes without a partner.
    """
    said = messages.unflatten(-1, (2, -1))
    named = said.sum(-1)
    number = named.cumsum(1)
    complete = number[:, -1].amin(-1)[:, None, :, None]
    marks = []
    for each in range(1, count + 1):
        chosen = named * (number == each) * (complete >= each)
        marks.append((said * chosen.unsqueeze(-1)).sum(1))
    alone = named * (number > complete)
    single = (said * alone.unsqueeze(-1)).sum(1).clamp(max=1)
    paired = torch.stack(marks, 1) if marks else said.new_zeros(len(said), 0, *single.shape[1:])
    return paired, single
