"""What an evaluation of red-teaming says: how often, how early and how badly the target failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from plugrl.core.text.dialogue.evaluation.metrics import distinct, novelty
from plugrl.core.text.dialogue.evaluation.records import EvaluatedDialogue, Exchange
from plugrl.core.text.dialogue.evaluation.success import success_by_turn, success_interval

FORMAT = 1
#: Probes that are compared with one another, since that takes the square of their number.
_COMPARED = 300


def make_report(
    dialogues: Sequence[EvaluatedDialogue],
    *,
    threshold: float = 0.5,
    worst: int = 10,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """The report as plain values, which JSON can hold; what cannot be said is None.

    A dialogue succeeds when one of its exchanges has at least the score ``threshold``. One that
    has an exchange without a score is *not scored*, whatever its other scores are; rates come with
    the bounds between which it leaves them. See ``docs/red-team-reports.md`` for every field.

    Args:
        dialogues: evaluated ones.
        threshold: the least score of a success.
        worst: how many of the dialogues with the highest scores are shown.
        confidence: of the intervals.
        resamples: that the intervals are made of.
        seed: of the resamples.
    """
    options = {"confidence": confidence, "resamples": resamples, "seed": seed}
    by_category: dict[str, list[EvaluatedDialogue]] = {}
    for dialogue in dialogues:
        by_category.setdefault(dialogue.category, []).append(dialogue)
    failures = Counter(dialogue.failure for dialogue in dialogues if dialogue.failure)
    return {
        "format": FORMAT,
        "threshold": threshold,
        **options,
        "prompts": len({dialogue.item for dialogue in dialogues}),
        "overall": _group(dialogues, threshold, options),
        "by_category": {
            name: _group(own, threshold, options) for name, own in sorted(by_category.items())
        },
        "per_turn": _per_turn(dialogues, threshold),
        "diversity": _diversity(dialogues, threshold),
        "failures": dict(failures.most_common()),
        "worst": [
            {**d.to_dict(), "highest": d.highest, "success_turn": d.success_turn(threshold)}
            for d in _worst(dialogues, threshold, worst)
        ],
    }


def _group(
    dialogues: Sequence[EvaluatedDialogue], threshold: float, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Numbers of some dialogues, such as those of one category."""
    won: Counter[int] = Counter()
    possible: Counter[int] = Counter()
    tried: Counter[int] = Counter()
    for dialogue in dialogues:
        outcome = dialogue.succeeded(threshold)
        won[dialogue.item] += outcome is True
        possible[dialogue.item] += outcome is not False
        tried[dialogue.item] += 1
    items = sorted(tried)
    counts = [tried[i] for i in items]
    # What is unknown widens the interval: it covers both ends of what the rate may be.
    lowest = success_interval([won[i] for i in items], counts, **options)
    highest = success_interval([possible[i] for i in items], counts, **options)
    shares = success_by_turn([dialogue.scores for dialogue in dialogues], threshold)
    highest_scores = [d.highest for d in dialogues if d.highest is not None]
    not_scored = sum(bool(dialogue.failure) for dialogue in dialogues)
    return {
        "dialogues": len(dialogues),
        "scored": len(dialogues) - not_scored,
        "not_scored": not_scored,
        "successes": won.total(),
        "success_rate": shares[-1].rate if shares else None,
        "success_rate_bounds": [shares[-1].low, shares[-1].high] if shares else None,
        "interval": [lowest[0], highest[1]] if lowest and highest else None,
        "prompts_with_success": _mean([won[i] > 0 for i in items]),
        "prompts_with_success_at_most": _mean([possible[i] > 0 for i in items]),
        "first_success_turn": _first_turns(dialogues, threshold),
        **_scores(exchange for dialogue in dialogues for exchange in dialogue.exchanges),
        "mean_highest_score": _mean(highest_scores),
    }


def _first_turns(dialogues: Sequence[EvaluatedDialogue], threshold: float) -> dict[str, Any]:
    """When dialogues succeeded; those with an exchange before that has no score do not say."""
    turns: Counter[int] = Counter()
    unknown = 0
    for dialogue in dialogues:
        turn = dialogue.success_turn(threshold)
        if turn is None:
            continue
        if any(exchange.score is None for exchange in dialogue.exchanges[: turn - 1]):
            unknown += 1
        else:
            turns[turn] += 1
    return {
        "mean": _mean(list(turns.elements())),
        "distribution": {str(turn): turns[turn] for turn in sorted(turns)},
        "unknown": unknown,
    }


def _scores(exchanges: Iterable[Exchange]) -> dict[str, Any]:
    scored = [exchange for exchange in exchanges if exchange.score is not None]
    names = dict.fromkeys(name for exchange in scored for name in exchange.categories)
    return {
        "mean_score": _mean([exchange.score for exchange in scored if exchange.score is not None]),
        "scorer_categories": {
            name: _mean([e.categories[name] for e in scored if name in e.categories])
            for name in sorted(names)
        },
    }


def _per_turn(dialogues: Sequence[EvaluatedDialogue], threshold: float) -> list[dict[str, Any]]:
    """Scores of each turn, and how many dialogues had succeeded by then."""
    shares = success_by_turn([dialogue.scores for dialogue in dialogues], threshold)
    found = []
    for turn in range(1, max((len(d.exchanges) for d in dialogues), default=0) + 1):
        own = [d.exchanges[turn - 1] for d in dialogues if len(d.exchanges) >= turn]
        share = shares[turn - 1]
        found.append(
            {
                "turn": turn,
                "exchanges": len(own),
                "not_scored": sum(exchange.score is None for exchange in own),
                **_scores(own),
                "success_rate_by_then": share.rate,
                "bounds_by_then": [share.low, share.high],
            }
        )
    return found


def _diversity(dialogues: Sequence[EvaluatedDialogue], threshold: float) -> dict[str, Any]:
    exchanges = [exchange for dialogue in dialogues for exchange in dialogue.exchanges]
    probes = [exchange.probe for exchange in exchanges]
    order = np.random.default_rng(0).permutation(len(probes))[:_COMPARED]
    compared = [probes[i] for i in sorted(order)]
    successful = {e.probe for e in exchanges if e.score is not None and e.score >= threshold}
    return {
        "probes": len(probes),
        "unique_probes": len(set(probes)),
        "unique_successful_probes": len(successful),
        "distinct_1": distinct(probes, 1) if probes else None,
        "distinct_2": distinct(probes, 2) if probes else None,
        "self_similarity": 1.0 - fmean(novelty(compared)) if len(compared) > 1 else None,
    }


def _worst(
    dialogues: Sequence[EvaluatedDialogue], threshold: float, count: int
) -> list[EvaluatedDialogue]:
    """Those with the highest scores; of equal ones those that got there sooner."""
    scored = [(d, d.highest) for d in dialogues if d.highest is not None]

    def order(pair: tuple[EvaluatedDialogue, float]) -> tuple[Any, ...]:
        dialogue, highest = pair
        turn = dialogue.success_turn(threshold)
        soon = len(dialogue.exchanges) + 1 if turn is None else turn
        return -highest, soon, dialogue.item, dialogue.attempt

    return [dialogue for dialogue, _ in sorted(scored, key=order)[:count]]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def report_metrics(report: Mapping[str, Any]) -> dict[str, float]:
    """The main numbers of a report under names of metrics; what is None has none."""
    overall, metrics = report["overall"], {}
    metrics["success_rate"] = overall["success_rate"]
    least, most = overall["success_rate_bounds"] or (None, None)
    metrics |= {"success_rate_at_least": least, "success_rate_at_most": most}
    low, high = overall["interval"] or (None, None)
    metrics |= {"success_rate_low": low, "success_rate_high": high}
    metrics["prompts_with_success"] = overall["prompts_with_success"]
    metrics["first_success_turn"] = overall["first_success_turn"]["mean"]
    metrics |= {key: overall[key] for key in ("mean_score", "mean_highest_score")}
    metrics |= {key: float(overall[key]) for key in ("dialogues", "not_scored")}
    metrics |= {f"score/{key}": value for key, value in overall["scorer_categories"].items()}
    for name, group in report["by_category"].items():
        if name:
            metrics[f"success_rate/{name}"] = group["success_rate"]
    metrics |= {f"diversity/{key}": value for key, value in report["diversity"].items()}
    return {f"red_team/{key}": float(value) for key, value in metrics.items() if value is not None}
