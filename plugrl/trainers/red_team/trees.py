"""What the algorithms read of rollout trees: returns, and rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from plugrl.core.errors import ContractError
from plugrl.core.text.batch import Batch, pad_rows

if TYPE_CHECKING:
    import torch

    from plugrl.core.text.dialogue.tree import RolloutNode, RolloutTree
    from plugrl.core.text.trajectory import Trajectory

#: Fields of rows that hold one number for each token.
TOKENWISE = ("ref_log_probs", "advantages", "returns", "old_values")


def returns_of(tree: RolloutTree, gamma: float) -> dict[int, float]:
    """The return of each valid exchange, by ``id``: its reward and those that follow.

    With r the reward and G' the returns of the exchanges that followed: G = r + gamma mean(G').
    Failed exchanges count nowhere.
    """
    returns: dict[int, float] = {}
    for node in reversed(list(tree.nodes())):
        if node.valid:
            later = [returns[id(child)] for child in node.children if child.valid]
            returns[id(node)] = node.reward + (gamma * fmean(later) if later else 0.0)
    return returns


def on_tokens(node: RolloutNode, numbers: Sequence[float]) -> list[float]:
    """Numbers of the probe's tokens, at the places of the prompt 0.0."""
    return [0.0] * len(node.prompt_tokens) + list(numbers)


def reference_of(node: RolloutNode, algorithm: str) -> list[float]:
    """The log-probabilities of a probe under the baseline, as :func:`on_tokens` gives them.

    Raises:
        ContractError: the environment gave none.
    """
    if node.baseline_logprobs is None:
        raise ContractError(
            f"algorithm {algorithm} compares with a baseline, and the environment gave exchanges "
            "without baseline_logprobs; name a baseline in red_team.baseline"
        )
    return on_tokens(node, node.baseline_logprobs)


def rows(trajectories: Sequence[Trajectory]) -> Batch:
    """A batch in which the fields of single tokens are tensors, [B, T]."""
    batch = Batch.from_trajectories(trajectories)
    for name in TOKENWISE:
        if name in batch.metadata:
            batch.values[name] = pad_rows(batch.metadata.pop(name), np.float32, 0.0)
    return batch


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device of what is compared with it."""
    if device.type == "cpu":
        return batch
    values = {name: value.to(device) for name, value in batch.values.items()}
    return Batch(values, dict(batch.metadata))
