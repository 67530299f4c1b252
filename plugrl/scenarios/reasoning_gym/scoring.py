"""Datasets of reasoning-gym, and the score that a task gives an answer.

The library is imported here alone: when a scenario builds its problems, and in helper processes.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import reasoning_gym


def dataset(task: str, config: dict[str, Any], seed: int, size: int) -> Any:
    """A dataset of ``size`` problems.

    Raises:
        ValueError: there is no such task.
        TypeError: it has no such option.
        AssertionError: an option has a value that it cannot have.
    """
    return reasoning_gym.create_dataset(task, seed=seed, size=size, **config)


def names() -> list[str]:
    """The tasks that there are."""
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


@lru_cache(maxsize=256)
def _judge(task: str, config: str) -> Any:
    return dataset(task, json.loads(config), seed=0, size=1)


def score(task: str, config: dict[str, Any], answer: str, entry: dict[str, Any]) -> float:
    """The task's own score for ``answer`` to the problem ``entry``, from 0 to 1."""
    judge = _judge(task, json.dumps(config, sort_keys=True))
    return float(judge.score_answer(answer, entry))
