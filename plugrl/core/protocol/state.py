"""Inputs and results of the steps of a protocol: states, signals, outcomes, tallies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np

from plugrl.core.errors import ContractError


class Verdict(IntEnum):
    """The decision of a verifier in a round, and the verdict of an episode."""

    REJECT = 0
    ACCEPT = 1
    UNDECIDED = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class ProtocolState:
    """Where N episodes of a protocol with A agents stand; states are never changed.

    Attributes:
        round: ``[N]``, the round that comes next, from 0.
        seed: ``[N]``, what is random in an episode depends on it alone.
        label: ``[N]``, 0 or 1: what a verifier is to find out.
        decided: ``[N, A]``, the :class:`Verdict` of each agent so far.
        ended: ``[N]``, whether the episode is over.
    """

    round: np.ndarray
    seed: np.ndarray
    label: np.ndarray
    decided: np.ndarray
    ended: np.ndarray

    def __len__(self) -> int:
        return len(self.round)

    def rows(self, index: Any) -> ProtocolState:
        """The episodes of an index, slice or mask over N."""
        return ProtocolState(**{name: value[index] for name, value in vars(self).items()})

    def restarted(self, where: np.ndarray, other: ProtocolState) -> ProtocolState:
        """This state, with the episodes of ``other`` in the rows of the mask ``where`` ``[N]``."""
        return replace(
            self,
            **{
                name: np.where(where.reshape(-1, *[1] * (mine.ndim - 1)), theirs, mine)
                for (name, mine), theirs in zip(
                    vars(self).items(), vars(other).values(), strict=True
                )
            },
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class ProtocolSignals:
    """What agents put out, as vectors that can be compared; K and L are any numbers.

    Small networks give their logits, text something like embeddings. Components that are -inf,
    such as those of choices that are masked, do not count.

    Attributes:
        messages: ``[N, A, C, K]`` for C channels; what is in channels that an agent does not
            speak in is not read.
        decisions: ``[N, A, L]``.
    """

    messages: np.ndarray
    decisions: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class ProtocolOutcome:
    """What a step gave.

    Attributes:
        rewards: ``[N, A]``, float64.
        registered: ``[N, A]``, whether the agent's decision of this step counted.
        verdict: ``[N]``, the :class:`Verdict` of the episode so far.
        terminated: ``[N]``, whether the episode is over, be it decided or at its last round.
        ended_undecided: ``[N]``, whether it ended in this step without a verdict.
        state: the state after the step.
    """

    rewards: np.ndarray
    registered: np.ndarray
    verdict: np.ndarray
    terminated: np.ndarray
    ended_undecided: np.ndarray
    state: ProtocolState


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts of the results of finished episodes; those without a verdict count separately."""

    right: int
    wrong: int
    undecided: int

    @classmethod
    def of(cls, verdict: np.ndarray, label: np.ndarray) -> Tally:
        """Count the verdicts ``[N]`` of episodes with these labels ``[N]``."""
        undecided = np.asarray(verdict) == Verdict.UNDECIDED
        right = np.asarray(verdict) == label
        return cls(
            right=int(right.sum()),
            wrong=int((~right & ~undecided).sum()),
            undecided=int(undecided.sum()),
        )

    @property
    def accuracy(self) -> float:
        """The fraction of right verdicts in all episodes; no verdict counts as a wrong one."""
        return self.right / max(self.right + self.wrong + self.undecided, 1)

    @property
    def decided_accuracy(self) -> float:
        """The fraction of right verdicts among those given; NaN without any."""
        decided = self.right + self.wrong
        return self.right / decided if decided else float("nan")


def initial_state(agents: int, seed: Any, label: Any) -> ProtocolState:
    """The initial state of N episodes.

    Raises:
        ContractError: seeds and labels differ in number, or a label is neither 0 nor 1.
    """
    seeds, labels = np.atleast_1d(np.asarray(seed)), np.atleast_1d(np.asarray(label))
    whole = all(array.ndim == 1 and array.dtype.kind in "iub" for array in (seeds, labels))
    if not whole or seeds.shape != labels.shape:
        raise ContractError(
            f"episodes begin with N whole numbers as seeds and as labels, not with {seeds.dtype} "
            f"of shape {list(seeds.shape)} and {labels.dtype} of shape {list(labels.shape)}"
        )
    if not np.isin(labels, (0, 1)).all():
        raise ContractError(f"labels are 0 or 1, not {int(labels[~np.isin(labels, (0, 1))][0])}")
    number = len(seeds)
    return ProtocolState(
        round=np.zeros(number, np.int64),
        seed=seeds.astype(np.int64),
        label=labels.astype(np.int64),
        decided=np.full((number, agents), int(Verdict.UNDECIDED), np.int64),
        ended=np.zeros(number, bool),
    )


def scatter(*numbers: Any) -> np.ndarray:
    """Pseudo-random 64-bit numbers that depend on ``numbers`` alone, element by element."""
    mixed = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for number in numbers:
            # SplitMix64: Steele, Lea and Flood (2014).
            mixed = mixed + np.asarray(number).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed
