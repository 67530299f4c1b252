"""Who won, drew and lost the games that agents played against one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def results(games: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """``AGENT/wins``, ``AGENT/draws`` and ``AGENT/losses``: shares of games that add up to 1.

    An agent has won where it returned more than each of the others, lost where one of them
    returned more than it, and drawn otherwise. Nothing if there are no games or no others.

    Args:
        games: what each agent returned in each of them.
    """
    if not games or len(games[0]) < 2:
        return {}
    shares: dict[str, float] = {}
    for agent in games[0]:
        margins = [
            game[agent] - max(other for name, other in game.items() if name != agent)
            for game in games
        ]
        wins, losses = sum(m > 0 for m in margins), sum(m < 0 for m in margins)
        shares[f"{agent}/wins"] = wins / len(games)
        shares[f"{agent}/draws"] = (len(games) - wins - losses) / len(games)
        shares[f"{agent}/losses"] = losses / len(games)
    return shares
