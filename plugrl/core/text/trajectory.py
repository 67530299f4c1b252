"""``Trajectory``: the tokens of one rollout of one model, and everything known about them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import countOf
from typing import Any, ClassVar, Literal, Self

from plugrl.core.plugins.user_code.copies import own_copy
from plugrl.core.renamed_methods import RenamedMethods

FinishReason = Literal["stop", "length", "abort", "error", "demonstration"]

#: Tokens with this finish reason were written, not sampled, and are trained all the same.
WRITTEN: FinishReason = "demonstration"
#: The policy version of a token that no model sampled.
NOT_SAMPLED = -1
#: A log-probability of a sure token may come out this much above 0.
ROUNDING = 1e-3
_BITS = frozenset((0, 1))


@dataclass(slots=True)
class Trajectory(RenamedMethods):
    """One sequence of tokens as sampled: the truth that training reads.

    It also answers to item access (``traj["advantage"]``); keys that are no field live in
    ``extra_fields``. All per-token lists have the length of ``tokens``; a group is the set of
    rollouts of one prompt, a run is one attempt at it.

    Args:
        tokens: token ids, prompt first.
        loss_mask: 1 where the token is trained, else 0.
        reward: the evaluator's reward; meaningless when ``valid`` is false.
        logprobs: log-probability of each token under the model that sampled it, 0.0 elsewhere;
            a worker's must not be above 0. ``None``: unknown.
        versions: policy version that sampled each token, ``NOT_SAMPLED`` elsewhere. A worker may
            train only tokens that have one; of a ``demonstration`` any.
        model: name of the model, a key of ``models``.
        group_id: which prompt.
        run_id: which attempt at that prompt.
        valid: whether the agent and the evaluator worked; invalid ones are left out of group
            statistics and of training, and ``failure`` says why.
        token_rewards: rewards of single tokens, beside ``reward``, which is for the whole: of steps
            or turns, each at the token that earned it or at the one that answers it. Advantages
            of tokens add ``reward`` at the last trained token; those of whole trajectories add the
            sum to ``reward``. ``None``: there are none.
        temperature: of the distribution that ``logprobs`` belong to. ``None``: the rollout
            worker's.

    Raises:
        ValueError: the lengths disagree, the mask is not 0 or 1, a token or version is no whole
            number, a token is negative, or a log-probability is not finite.
    """

    RENAMED_METHODS: ClassVar[Mapping[str, str]] = {"copied": "clone"}
    tokens: list[int]
    loss_mask: list[int]
    reward: float = 0.0
    logprobs: list[float] | None = None
    versions: list[int] | None = None
    model: str = "policy"
    group_id: str = ""
    run_id: int = 0
    valid: bool = True
    finish_reason: FinishReason = "stop"
    failure: str = ""
    is_val: bool = False
    advantage: float | None = None
    token_advantages: list[float] | None = None
    token_rewards: list[float] | None = None
    temperature: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    extra_fields: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check the invariants; called at construction and by the pool."""
        length = len(self.tokens)
        if length == 0:
            raise ValueError(f"{self._name()} has no tokens")
        self._check_length("loss_mask", self.loss_mask, length)
        if not _BITS.issuperset(self.loss_mask):
            raise ValueError(f"{self._name()}: loss_mask holds values other than 0 and 1")
        if countOf(map(type, self.tokens), int) != length:
            raise ValueError(f"{self._name()}: a token id is no whole number")
        if min(self.tokens) < 0:
            raise ValueError(f"{self._name()}: a token id is negative")
        if self.versions is not None:
            self._check_length("versions", self.versions, length)
            if countOf(map(type, self.versions), int) != length:
                raise ValueError(f"{self._name()}: a version is no whole number")
        if self.logprobs is not None:
            self._check_length("logprobs", self.logprobs, length)
            try:
                total = sum(self.logprobs)
            except TypeError:
                raise ValueError(f"{self._name()}: a log-probability is no number") from None
            if not math.isfinite(total):
                raise ValueError(f"{self._name()}: a log-probability is NaN or infinite")

        if self.token_rewards is not None:
            self._check_length("token_rewards", self.token_rewards, length)
            try:
                finite = math.isfinite(sum(self.token_rewards))
            except TypeError:
                raise ValueError(f"{self._name()}: a token's reward is no number") from None
            if not finite:
                raise ValueError(f"{self._name()}: a token's reward is NaN or infinite")

    @property
    def total_reward(self) -> float:
        """The reward with those of single tokens."""
        return self.reward + sum(self.token_rewards or ())

    def _check_length(self, name: str, values: Sequence[Any], length: int) -> None:
        if len(values) != length:
            raise ValueError(f"{self._name()}: {name} has {len(values)} values for {length} tokens")

    def _name(self) -> str:
        return f"trajectory of group {self.group_id!r}, run {self.run_id}"

    def __getitem__(self, key: str) -> Any:
        if key in _FIELDS:
            return getattr(self, key)
        return self.extra_fields[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key in _FIELDS:
            setattr(self, key, value)
        else:
            self.extra_fields[key] = value

    def __contains__(self, key: object) -> bool:
        return key in _FIELDS or key in self.extra_fields

    def get(self, key: str, default: Any = None) -> Any:
        """The field or extra field ``key``, or ``default`` when there is none."""
        return getattr(self, key) if key in _FIELDS else self.extra_fields.get(key, default)

    def keys(self) -> Iterator[str]:
        """Names of all fields and extra fields."""
        yield from (name for name in _FIELDS if name != "extra_fields")
        yield from self.extra_fields

    def clone(self) -> Self:
        """A copy that shares no lists or mappings with the original."""
        new = copy.copy(self)
        for name in _HELD:
            setattr(new, name, own_copy(getattr(self, name)))
        return new

    def state_dict(self) -> dict[str, Any]:
        """All fields by name; ``Trajectory(**state)`` gives the trajectory back."""
        return {name: getattr(self, name) for name in _FIELDS}

    def items(self) -> Iterator[tuple[str, Any]]:
        """Pairs of all fields and extra fields."""
        return ((key, self[key]) for key in self.keys())


_FIELDS = frozenset(f.name for f in fields(Trajectory))
#: Fields that hold what can be changed.
_HELD = (
    "tokens",
    "loss_mask",
    "logprobs",
    "versions",
    "token_advantages",
    "token_rewards",
    "metrics",
    "extra_fields",
)
