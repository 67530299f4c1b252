"""Problems in an order that follows their difficulty and what was learned of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plugrl.core.errors import ConfigError
from plugrl.core.scenario import DataItem
from plugrl.core.text.data.loader import Epochs, Order

_UNBOUNDED = float("inf")


def difficulty_buckets(
    items: Sequence[DataItem], column: str | None, edges: Sequence[float]
) -> list[list[int]]:
    """Indexes of the problems by difficulty, the easiest bucket first; empty ones are left out.

    Args:
        items: the problems.
        column: holds the difficulty; None: there is one bucket.
        edges: numbers between buckets, in order; an edge belongs to the bucket above it. Without
            edges each value of the column is a bucket.

    Raises:
        ConfigError: a problem has no such column, or no number in it where edges are given.
    """
    if column is None:
        return [list(range(len(items)))]
    buckets: dict[Any, list[int]] = {}
    for index, item in enumerate(items):
        value = item.get(column)
        # NaN has no place in any order.
        number = isinstance(value, (int, float)) and value == value
        if value is None or not (number or (isinstance(value, str) and not edges)):
            wanted = "a number" if edges else "a number or a text"
            raise ConfigError(
                f"data.curriculum.column: problem {index} has {value!r:.60} in {column!r}; "
                f"{wanted} is needed"
            )
        key = int(np.searchsorted(edges, value, side="right")) if edges else value
        buckets.setdefault(key, []).append(index)
    try:
        return [buckets[key] for key in sorted(buckets)]
    except TypeError:
        raise ConfigError(
            f"data.curriculum.column: {column!r} holds both numbers and texts, which have no order"
        ) from None


class Curriculum(Order):
    """Problems by difficulty and by what was learned of them.

    A bucket is drawn for each problem, then a problem in it: the next of the bucket's epoch, or,
    with ``resample``, one at random whose weight is ``floor`` plus the rest times a score from
    0 to 1. ``spread``: the standard deviation of its rewards over the largest one, so that
    problems from which a group-relative advantage learns come more often (Foster et al. 2025,
    arXiv 2502.12272, for rewards 0 and 1). ``failure``: how far its mean reward is from the best
    one. Problems that were never given have score 1.

    Args:
        items: the problems.
        config: the section ``data.curriculum``.
        shuffle: whether a bucket's epoch is permuted.
        seed: what all draws depend on, with their number.
    """

    def __init__(self, items: Sequence[DataItem], config: Any, *, shuffle: bool, seed: int) -> None:
        self._buckets = difficulty_buckets(items, config.column, config.edges)
        self._bucket_of = {i: n for n, bucket in enumerate(self._buckets) for i in bucket}
        if config.weights is not None and len(config.weights) != len(self._buckets):
            raise ConfigError(
                f"data.curriculum.weights has {len(config.weights)} numbers for "
                f"{len(self._buckets)} buckets"
            )
        self._config = config
        self._seed = seed
        self._orders = [
            Epochs(len(bucket), shuffle=shuffle, seed=[seed, number])
            for number, bucket in enumerate(self._buckets)
        ]
        self._open = len(self._buckets) if config.advance_at is None else 1
        self._recent: list[float] = []
        self._given = np.zeros(len(items), dtype=np.int64)
        self._means = np.full(len(items), np.nan)
        self._spreads = np.full(len(items), np.nan)
        self._draws = 0

    def draw(self) -> tuple[int, int]:
        """A problem of an open bucket."""
        generator = np.random.default_rng([self._seed, self._draws])
        self._draws += 1
        number = int(generator.choice(self._open, p=self._shares()))
        bucket = self._buckets[number]
        if self._config.resample == "none":
            index = bucket[self._orders[number].draw()[0]]
        else:
            weights = self._weights(np.asarray(bucket))
            index = bucket[int(generator.choice(len(bucket), p=weights / weights.sum()))]
        before = int(self._given[index])
        self._given[index] += 1
        return index, before

    def _shares(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        sizes = [len(bucket) for bucket in self._buckets]
        shares = np.asarray((self._config.weights or sizes)[: self._open], dtype=np.float64)
        # A curriculum that has opened only buckets without weight has to draw from them.
        return shares / shares.sum() if shares.sum() > 0 else np.full(self._open, 1 / self._open)

    def _weights(self, bucket: Any) -> Any:
        if self._config.resample == "spread":
            held, best = self._spreads[bucket], np.nanmax(self._spreads, initial=0.0)
            scores = held / best if best > 0 else np.zeros(len(bucket))
        else:
            held = self._means[bucket]
            low = np.nanmin(self._means, initial=_UNBOUNDED)
            high = np.nanmax(self._means, initial=-_UNBOUNDED)
            scores = (high - held) / (high - low) if high > low else np.zeros(len(bucket))
        floor = self._config.floor
        return floor + (1 - floor) * np.where(np.isnan(held), 1.0, scores)

    def observe(self, index: int, rewards: Sequence[float]) -> None:
        """Remember what a problem's attempts earned, and open the next bucket when it is time."""
        if not rewards:
            return
        mean, spread = float(np.mean(rewards)), float(np.std(rewards))
        self._means[index] = self._smoothed(self._means[index], mean)
        self._spreads[index] = self._smoothed(self._spreads[index], spread)
        config = self._config
        if config.advance_at is None or self._bucket_of[index] != self._open - 1:
            return
        self._recent = [*self._recent, mean][-config.window :]
        full = len(self._recent) == config.window
        if full and np.mean(self._recent) >= config.advance_at and self._open < len(self._buckets):
            self._open += 1
            self._recent = []

    def _smoothed(self, held: float, new: float) -> float:
        return (
            new if np.isnan(held) else self._config.memory * held + (1 - self._config.memory) * new
        )

    def metrics(self) -> dict[str, float]:
        """Open buckets, the mean reward of each, and the share of problems that were given."""
        found = {
            "data/open_buckets": float(self._open),
            "data/given": float((self._given > 0).mean()),
        }
        if len(self._buckets) > 1:
            for number, bucket in enumerate(self._buckets[: self._open]):
                means = self._means[bucket]
                if not np.isnan(means).all():
                    found[f"data/bucket_{number}/reward"] = float(np.nanmean(means))
        return found

    def state_dict(self) -> dict[str, Any]:
        """All that was given and learned."""
        seen = np.flatnonzero((self._given > 0) | ~np.isnan(self._means))
        return {
            "draws": self._draws,
            "open": self._open,
            "recent": list(self._recent),
            "orders": [order.state_dict() for order in self._orders],
            "problems": {
                str(i): [
                    int(self._given[i]),
                    *(
                        None if np.isnan(v[i]) else float(v[i])
                        for v in (self._means, self._spreads)
                    ),
                ]
                for i in seen
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position."""
        self._draws, self._open = state["draws"], state["open"]
        self._recent = list(state["recent"])
        for order, saved in zip(self._orders, state["orders"], strict=True):
            order.load_state_dict(saved)
        for text, (given, mean, spread) in state["problems"].items():
            index = int(text)
            self._given[index] = given
            self._means[index] = np.nan if mean is None else mean
            self._spreads[index] = np.nan if spread is None else spread
