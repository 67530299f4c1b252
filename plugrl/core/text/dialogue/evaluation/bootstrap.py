"""Confidence intervals by resampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Random numbers that are drawn at once.
_MOST = 4_000_000


def success_interval(
    successes: Sequence[int],
    counts: Sequence[int],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Percentile bootstrap (Efron, 1979) of the rate ``sum(successes) / sum(counts)``.

    Prompts are resampled, not attempts: attempts at one prompt are alike, and to count them as
    independent would make the interval too narrow. The rate of a resample is that of its prompts
    together.

    Args:
        successes: of each prompt, how many attempts succeeded.
        counts: of each prompt, how many attempts have a score; prompts with none are left out.
        confidence: of the interval.
        resamples: how many are drawn.
        seed: of the draws; equal seeds give equal intervals.

    Returns:
        Both ends; None: nothing has a score.
    """
    pairs = [(s, n) for s, n in zip(successes, counts, strict=True) if n]
    if not pairs:
        return None
    won, tried = np.asarray(pairs, dtype=np.int64).T
    draws = np.random.default_rng(seed)
    rates = np.empty(resamples)
    rows = max(1, _MOST // len(pairs))
    for start in range(0, resamples, rows):
        some = min(rows, resamples - start)
        picked = draws.integers(len(pairs), size=(some, len(pairs)))
        rates[start : start + some] = won[picked].sum(1) / tried[picked].sum(1)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(rates, [tail, 1.0 - tail])
    return float(low), float(high)
