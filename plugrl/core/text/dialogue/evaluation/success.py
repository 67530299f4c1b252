"""Rates of success, when some exchanges have no score: by turn, with bounds and intervals."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

logger = logging.getLogger(__name__)
#: The scores of a dialogue's exchanges, turn by turn; None: there is none.
Scores = Sequence[float | None]
#: The share of dialogues without all scores from which on rates say little.
MANY = 0.1
#: Random numbers that are drawn at once.
_MOST = 4_000_000


@dataclass(frozen=True, slots=True)
class Share:
    """The share of dialogues that succeeded.

    Attributes:
        rate: its estimate; None: the scores do not say.
        low: the share that is known to have succeeded.
        high: the share that may have: those, and all that lack a score.
    """

    rate: float | None
    low: float
    high: float


def first_success(scores: Scores, threshold: float) -> int | None:
    """The first turn with at least ``threshold``, from 1 on; None: none is known."""
    for turn, score in enumerate(scores, 1):
        if score is not None and score >= threshold:
            return turn
    return None


def succeeded(scores: Scores, threshold: float) -> bool | None:
    """Whether an exchange reached ``threshold``; None: one without a score might have."""
    if first_success(scores, threshold) is not None:
        return True
    return None if not scores or None in scores else False


def success_by_turn(dialogues: Sequence[Scores], threshold: float) -> list[Share]:
    """The share of dialogues that had succeeded by turn 1, 2, ..., each from scores up to it.

    A dialogue without a score at some turn is left out there because the score is missing, never
    for what its other scores are: of those that had not succeeded before, the ones with a score
    say how many succeed at a turn, and the rate multiplies these up (the product-limit estimate
    of Kaplan and Meier, 1958). To leave out whole dialogues would keep early successes and drop
    failures, or the other way round, whenever the scorer fails late. The rate is None from a turn
    on at which nobody has a score, and never outside its bounds, which assume nothing.
    """
    asked = [scores or [None] for scores in dialogues]
    shares: list[Share] = []
    #: Without success so far, and with all scores.
    at_risk, others = asked, 1.0
    for turn in range(1, max(map(len, asked), default=0) + 1):
        outcomes = [succeeded(scores[:turn], threshold) for scores in asked]
        low = outcomes.count(True) / len(asked)
        high = 1.0 - outcomes.count(False) / len(asked)
        still = [succeeded(scores[:turn], threshold) for scores in at_risk]
        known = len(still) - still.count(None)
        if known:
            others *= still.count(False) / known
        elif others > 0:
            others = float("nan")
        at_risk = [scores for scores, out in zip(at_risk, still, strict=True) if out is False]
        shares.append(_share(1.0 - others, low, high, certain=None not in outcomes))
    return shares


def _share(rate: float, low: float, high: float, *, certain: bool) -> Share:
    if certain:
        return Share(low, low, low)
    return Share(None if rate != rate else min(max(rate, low), high), low, high)


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


def warn_of_missing(dialogues: Sequence[Scores], reason: str) -> None:
    """Say when many dialogues lack scores; ``reason`` is that of the first."""
    missing = sum(not scores or None in scores for scores in dialogues)
    if dialogues and missing >= MANY * len(dialogues):
        logger.warning(
            "%d of %d dialogues lack a score, so that rates are little more than their bounds; "
            "the first: %s",
            missing,
            len(dialogues),
            reason,
        )
