"""Small batches with everything that advantages and losses may read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.advantages import group_numbers
from plugrl.core.text.learn.losses import LOSS_WEIGHTS
from plugrl.core.text.trajectory import NOT_SAMPLED, Trajectory

#: (group, reward, valid, trained tokens) of each row; three prompts, one of them with one attempt.
ROWS: Sequence[tuple[str, float, bool, int]] = (
    ("a", 1.0, True, 3),
    ("a", 0.0, True, 2),
    ("a", 0.5, True, 4),
    ("b", 2.0, True, 1),
    ("b", -1.0, True, 3),
    ("b", 9.0, False, 2),
    ("c", 0.25, True, 2),
)
#: The same of answers to compare: to each prompt one that is preferred and one that is not.
PAIRS: Sequence[tuple[str, float, bool, int]] = (
    ("a", 0.0, True, 3),
    ("a", 1.0, True, 2),
    ("b", 0.0, True, 4),
    ("b", 1.0, True, 1),
)
PROMPT = 2


def trajectories(rows: Sequence[tuple[str, float, bool, int]] = ROWS) -> list[Trajectory]:
    """One trajectory a row: two tokens of a prompt, and those that were sampled."""
    found = []
    attempts: dict[str, int] = {}
    for number, (group, reward, valid, sampled) in enumerate(rows):
        attempts[group] = attempts.get(group, -1) + 1
        found.append(
            Trajectory(
                tokens=[3, 4, *range(5, 5 + sampled)],
                loss_mask=[0] * PROMPT + [1] * sampled,
                reward=reward,
                logprobs=[0.0] * PROMPT + [-0.5 - 0.125 * number] * sampled,
                versions=[NOT_SAMPLED] * PROMPT + [0] * sampled,
                group_id=group,
                run_id=attempts[group],
                valid=valid,
                extra_fields={"preferred": attempts[group] % 2},
            )
        )
    return found


def batch_of(rows: Sequence[Trajectory], prepare: Callable[[Batch], Any] | None = None) -> Batch:
    """A batch with what trainers add: log-probabilities of several models, values, advantages.

    Args:
        rows: its trajectories.
        prepare: adds what else a component reads; changes the batch.
    """
    batch = Batch.from_trajectories(rows)
    mask = batch.values["loss_mask"].to(torch.float32)
    places = torch.arange(mask.shape[1], dtype=torch.float32)
    start = batch.metadata["run_id"].to(torch.float32)[:, None]
    reward = batch.metadata["rewards"].to(torch.float32)[:, None]

    def numbers(shift: float) -> torch.Tensor:
        made: torch.Tensor = mask * (-0.5 - shift - 0.1 * start - 0.05 * places - 0.02 * reward)
        return made

    batch.values["old_log_probs"] = numbers(0.0)
    batch.values["ref_log_probs"] = numbers(0.3)
    batch.values["teacher_log_probs"] = numbers(-0.2)
    batch.values["old_values"] = mask * (0.2 + 0.1 * places)
    batch.values["entropy"] = mask * (1.0 + 0.1 * places)
    batch.values["values"] = mask * (0.3 + 0.1 * places)
    advantages = (reward - 0.5) * batch.metadata["valid"][:, None] * mask
    batch.values["advantages"] = advantages
    batch.values["returns"] = advantages + batch.values["old_values"]
    batch.values[LOSS_WEIGHTS] = mask / mask.sum()
    batch.metadata.setdefault("preferred", batch.metadata["run_id"] % 2)
    batch.metadata["unit"] = group_numbers(batch.metadata["group_id"])
    if prepare is not None:
        prepare(batch)
    return batch


def widened(batch: Batch, columns: int) -> Batch:
    """The same rows with more padding on the right."""
    wide = batch.copy()
    for name, value in list(wide.values.items()):
        wide.values[name] = torch.nn.functional.pad(value, (0, columns))
    return wide


def contents(batch: Batch) -> dict[str, Any]:
    """What a batch holds, copied: to compare with what it holds later."""
    held: dict[str, Any] = {}
    for part, facts in (("values", batch.values), ("metadata", batch.metadata)):
        for name, value in facts.items():
            held[f"{part}.{name}"] = value.clone() if isinstance(value, torch.Tensor) else value
    return held


def changed(batch: Batch, before: Mapping[str, Any]) -> list[str]:
    """Names of what a batch held before and does not hold any longer."""
    now = contents(batch)
    return [
        name
        for name, value in before.items()
        if name not in now
        or (
            not torch.equal(value, now[name])
            if isinstance(value, torch.Tensor)
            else value != now[name]
        )
    ]
