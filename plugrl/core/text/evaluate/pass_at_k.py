"""What several samples of each problem say: pass@k, best@k and the majority's answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from plugrl.core.text.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Passing:
    """What counts as a solved attempt: ``metric`` (None: the reward) reaches ``threshold``."""

    metric: str | None = None
    threshold: float = 1.0

    def value(self, trajectory: Trajectory) -> float:
        """The number that decides; an attempt without the metric did not reach it."""
        if self.metric is None:
            return trajectory.reward
        return trajectory.metrics.get(self.metric, float("-inf"))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The chance that one of ``k`` samples drawn from ``samples`` is correct, ``correct`` being so.

    The unbiased estimator 1 - C(n - c, k) / C(n, k) of Chen et al. (2021, arXiv 2107.03374).

    Raises:
        ValueError: ``k`` is not from 1 to ``samples``, or ``correct`` not from 0 to it.
    """
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(f"pass@{k} of {samples} samples, {correct} correct, is not defined")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def best_at_k(rewards: Sequence[float], k: int) -> float:
    """The expected largest of ``k`` rewards drawn from ``rewards`` without putting back.

    The i-th smallest of n is the largest in C(i - 1, k - 1) of the C(n, k) draws.

    Raises:
        ValueError: ``k`` is not from 1 to the number of rewards.
    """
    count = len(rewards)
    if not 1 <= k <= count:
        raise ValueError(f"best@{k} of {count} rewards is not defined")
    ordered = enumerate(sorted(rewards))
    return sum(reward * comb(i, k - 1) for i, reward in ordered) / comb(count, k)


def majority_reward(answers: Sequence[str], rewards: Sequence[float]) -> float:
    """The mean reward of the most frequent answer; of all of them where several tie."""
    by_answer: dict[str, list[float]] = defaultdict(list)
    for answer, reward in zip(answers, rewards, strict=True):
        by_answer[answer].append(reward)
    most = max(map(len, by_answer.values()))
    winners = [sum(own) / len(own) for own in by_answer.values() if len(own) == most]
    return sum(winners) / len(winners)


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4, ... up to ``limit``, and ``limit`` itself."""
    return sorted({limit} | {1 << i for i in range(limit.bit_length()) if 1 << i <= limit})


@dataclass(slots=True)
class _Attempt:
    reward: float
    passed: bool
    answer: str | None


def sample_metrics(
    trajectories: Sequence[Trajectory], samples: int, passing: Passing
) -> dict[str, float]:
    """Means over problems of ``pass@k`` and ``best@k``, for all powers of two k up to ``samples``.

    Invalid attempts are left out: a problem counts for a k when it has k valid ones. An attempt
    of several trajectories has their mean reward. ``majority@samples`` is there when evaluators
    say what they extracted.
    """
    problems = _attempts(trajectories, passing)
    metrics: dict[str, float] = {}
    for k in powers_of_two(samples):
        enough = [attempts for attempts in problems if len(attempts) >= k]
        if not enough:
            continue
        passed = [pass_at_k(len(a), sum(each.passed for each in a), k) for a in enough]
        best = [best_at_k([each.reward for each in a], k) for a in enough]
        metrics[f"pass@{k}"] = sum(passed) / len(enough)
        metrics[f"best@{k}"] = sum(best) / len(enough)
    voted = [
        majority_reward([each.answer for each in a if each.answer is not None], rewards)
        for a in problems
        if (rewards := [each.reward for each in a if each.answer is not None])
    ]
    if voted:
        metrics[f"majority@{samples}"] = sum(voted) / len(voted)
    return metrics


def _attempts(trajectories: Sequence[Trajectory], passing: Passing) -> list[list[_Attempt]]:
    """The valid attempts at each problem."""
    runs: dict[str, dict[int, list[Trajectory]]] = defaultdict(lambda: defaultdict(list))
    for trajectory in trajectories:
        runs[trajectory.group_id][trajectory.run_id].append(trajectory)
    problems = []
    for attempts in runs.values():
        made = [_attempt(parts, passing) for parts in attempts.values()]
        problems.append([attempt for attempt in made if attempt is not None])
    return [attempts for attempts in problems if attempts]


def _attempt(parts: Sequence[Trajectory], passing: Passing) -> _Attempt | None:
    valid = [part for part in parts if part.valid]
    if not valid:
        return None
    # Of an attempt of several trajectories, one alone may have the metric.
    values = [value for value in map(passing.value, valid) if value > float("-inf")]
    value = sum(values) / len(values) if values else float("-inf")
    answers = [part["extracted"] for part in valid if "extracted" in part]
    return _Attempt(
        reward=sum(part.reward for part in valid) / len(valid),
        passed=value >= passing.threshold,
        answer=answers[-1] if answers else None,
    )
