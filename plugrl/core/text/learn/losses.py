"""The loss contract: a loss gives a number per token; core masks, weighs and sums it.

A loss is ``f(logp, batch, config) -> (per_token, metrics)`` with ``logp`` and ``per_token`` of
shape [B, T] and metrics as (sum, count). Position t is about token t given the ones before it.
The denominator is that of the whole optimizer step, so the gradient does not depend on how the
rows are split into micro-batches.

A loss may say with the attribute ``reads`` which keys of the batch it cannot do without, as an
advantage may; a trainer says what its ``_prepare_batch`` adds, ``gives``, and which of it it learns
from, ``signal``. What says nothing is not compared (:func:`compatibility_findings`). A loss with
the attribute ``needs``, a tuple of names in :data:`NEEDS` or a function that makes one
of its section, finds those tensors in ``batch.values``, with their gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.errors import ContractError
from plugrl.core.plugins.user_code.error_location import location_suffix
from plugrl.core.text.batch import Batch

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


Metrics = dict[str, tuple[float, float]]
#: Numbers per token, [B, T], and metrics as (sum, count).
LossOutput = tuple[torch.Tensor, dict[str, tuple[torch.Tensor, torch.Tensor]]]
Loss = Callable[[torch.Tensor, Batch, Any], LossOutput]

#: Key of the per-token weights, [B, T], that ``attach_loss_weights`` adds to a batch.
LOSS_WEIGHTS = "loss_weights"
#: Key of per-token factors, [B, T], of the loss but not of its terms; absent: 1.
SAMPLER_WEIGHTS = "sampler_weights"
#: What a loss may need besides log-probabilities: entropies of the distributions that tokens were
#: drawn from, and values of states.
NEEDS = ("entropy", "values")


def declared_needs(function: Any, section: Any = None) -> Any:
    """What the attribute ``needs`` of a loss or an advantage says, of one with this section."""
    needs = getattr(function, "needs", ())
    return needs(section) if callable(needs) else needs


@dataclass(frozen=True)
class Term:
    """Something that is added to the loss of every token, such as an entropy bonus.

    ``path`` is the setting of its coefficient below ``trainer.algorithm``; ``function`` answers as
    a loss does and is multiplied by ``coefficient``; ``needs`` are names in :data:`NEEDS`.
    """

    path: str
    coefficient: float
    function: Callable[[torch.Tensor, Batch], LossOutput]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class WeightedLoss:
    """A loss function with its section of the configuration, ready to be applied.

    ``terms`` are added to it, unaffected by the weights that correct for the sampler.
    """

    function: Loss
    config: Any
    terms: tuple[Term, ...] = ()

    @property
    def skips_zero_advantage(self) -> bool:
        """Whether rows whose advantages are all zero have no gradient."""
        return not self.terms and bool(getattr(self.function, "skips_zero_advantage", False))

    @property
    def needs(self) -> tuple[str, ...]:
        """What the train service must compute besides log-probabilities.

        Raises:
            ContractError: a name is not in :data:`NEEDS`.
        """
        declared = declared_needs(self.function, self.config)
        wrong = declared if isinstance(declared, str) else [n for n in declared if n not in NEEDS]
        if wrong:
            raise ContractError(
                f"loss {self.name} has needs={declared!r}; a tuple of names is expected, among: "
                f"{', '.join(NEEDS)}"
            )
        extra = (name for term in self.terms for name in term.needs)
        return tuple(dict.fromkeys((*declared, *extra)))

    def __call__(self, logp: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, Metrics]:
        """The weighted sum over ``batch`` and the metrics.

        Raises:
            ContractError: the batch lacks what the loss reads, or the loss function does not
                answer with [B, T] and metrics, or changes what it is given in place.
        """
        check_reads(batch, self.function, "loss")
        before = _tensors(logp, batch)
        answer = self.function(logp, batch, self.config)
        self._check_unchanged(before)
        per_token, metrics = self._validate_output(answer, logp)
        if SAMPLER_WEIGHTS in batch.values:
            per_token = per_token * batch.values[SAMPLER_WEIGHTS]
        for term in self.terms:
            added, more = term.function(logp, batch)
            per_token = per_token + term.coefficient * added
            metrics |= more
        weights = batch.values[LOSS_WEIGHTS]
        # Masked positions may hold anything, inf and NaN included: zero times NaN is NaN.
        total = torch.where(weights > 0, per_token * weights, 0.0).sum()
        return total, {name: self._pair(name, value) for name, value in metrics.items()}

    @property
    def name(self) -> str:
        """The function's name and place, for messages."""
        return getattr(self.function, "__name__", type(self.function).__name__) + location_suffix(
            self.function
        )

    def _check_unchanged(self, before: Mapping[str, tuple[torch.Tensor, int]]) -> None:
        """Refuse a change of what later terms, metrics and passes read too."""
        for name, (tensor, version) in before.items():
            if tensor._version != version:
                raise ContractError(
                    f"loss {self.name} changed {name} in place, which others read after it; make "
                    "a new tensor, such as x = x.clamp(max=1) in place of x.clamp_(max=1)"
                )

    def _validate_output(
        self, result: Any, logp: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        expected = f"(per_token, metrics) with per_token of shape {tuple(logp.shape)} is expected"
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise ContractError(f"loss {self.name} returned {type(result).__name__}; {expected}")
        per_token = result[0]
        if not isinstance(per_token, torch.Tensor):
            kind = type(per_token).__name__
            raise ContractError(f"loss {self.name} returned {kind} per token; {expected}")
        if per_token.shape != logp.shape:
            raise ContractError(
                f"loss {self.name} returned shape {tuple(per_token.shape)}; one number per "
                f"token, {tuple(logp.shape)}, is expected"
            )
        if logp.requires_grad and not per_token.requires_grad:
            raise ContractError(
                f"loss {self.name} gives no gradient: its numbers per token are detached from logp"
            )
        return per_token, dict(result[1])

    def _pair(self, name: str, value: Any) -> tuple[float, float]:
        try:
            total, count = value
            return float(total), float(count)
        except (TypeError, ValueError, RuntimeError):
            raise ContractError(
                f"loss {self.name} gave metric {name!r} as {type(value).__name__}; a pair "
                "(sum, count) of numbers is expected"
            ) from None


def _tensors(logp: torch.Tensor, batch: Batch) -> dict[str, tuple[torch.Tensor, int]]:
    """What a loss is given, by name, with the number of changes that torch has counted so far."""
    given = {"logp": logp}
    for part, facts in (("values", batch.values), ("metadata", batch.metadata)):
        given |= {f"batch.{part}[{name!r}]": value for name, value in facts.items()}
    return {
        name: (value, value._version)
        for name, value in given.items()
        if isinstance(value, torch.Tensor) and not value.is_inference()
    }


#: What a batch lacks, and what to do about it, where the general remedy would not help.
_REMEDIES = {
    "advantages": "`batch = self._compute_advantage(batch)`",
    "old_log_probs": "`batch.values['old_log_probs'] = self._compute_old_log_probs(batch)`",
    "teacher_log_probs": "`batch = self._add_teachers(batch)`, as trainer self_hosted_opd does,",
}
_OTHER_TRAINER = {
    "ref_log_probs": (
        "batch.values['ref_log_probs'], the log-probabilities of the reference model; take trainer "
        "self_hosted_dpo, or add them in _prepare_batch"
    ),
    "preferred": (
        "batch.metadata['preferred'], 1 or 0 for each row; take trainer self_hosted_dpo or "
        "reward_model with rollout_worker preference, or give the trajectories of another worker "
        "the extra field `preferred`"
    ),
}


def check_reads(batch: Batch, function: Any, kind: str) -> None:
    """Refuse a batch that lacks what the attribute ``reads`` of a loss or an advantage names.

    Args:
        batch: as the function gets it.
        function: of any kind; without the attribute nothing is checked.
        kind: what it is, for messages.

    Raises:
        ContractError: a key is missing; the message says what a trainer writes to add it.
    """
    who = f"{kind} {getattr(function, '__name__', type(function).__name__)}"
    check_has(batch, who, *(getattr(function, "reads", None) or ()))


def check_has(batch: Batch, who: str, *names: str) -> None:
    """Refuse a batch that lacks one of these keys, as :func:`check_reads` does."""
    for name in names:
        if name not in batch.values and name not in batch.metadata:
            raise ContractError(f"{who} needs {missing(name)}")


def missing(name: str) -> str:
    """What to say of a key that a batch lacks."""
    if name in _OTHER_TRAINER:
        return _OTHER_TRAINER[name]
    remedy = _REMEDIES.get(name, f"`batch.values[{name!r}] = ...`")
    return (
        f"batch.values[{name!r}], which the trainer did not set; write {remedy} in its "
        "_prepare_batch, or choose another trainer.algorithm.loss"
    )


def masked_sum(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(sum, count) of ``values`` where ``mask`` is not 0, for a loss's metrics."""
    selected = mask != 0
    return torch.where(selected, values.detach(), 0.0).sum(), selected.sum()


def compatibility_findings(check: Preflight, trainer: type[Any]) -> Iterator[Finding]:
    """A loss or advantage that needs what ``trainer`` does not make, or reads nothing of it."""
    owner = next(cls for cls in trainer.__mro__ if "_prepare_batch" in vars(cls))
    gives = vars(owner).get("gives")
    if gives is None:
        return
    name = check.section.get("type") or trainer.__name__
    algorithm, reads = check.section.algorithm, {}
    for kind in ("advantage", "loss"):
        component = check.component(f"trainer.algorithm.{kind}")
        reads[kind] = getattr(component, "reads", None)
        missing = [key for key in reads[kind] or () if key not in gives]
        if missing:
            yield (
                f"trainer.algorithm.{kind}",
                f"{algorithm[kind].get('type')} reads {' and '.join(missing)} of a batch, which "
                f"trainer {name} does not add; take another {kind} or trainer",
            )
            return
    signal, loss, advantage = vars(owner).get("signal"), reads["loss"], reads["advantage"]
    if signal is None or loss is None or signal in loss:
        return
    # An advantage may make its advantages of the signal, and the loss reads those.
    through = signal != "advantages" and "advantages" in loss
    if through and (advantage is None or signal in advantage):
        return
    kind = "advantage" if through else "loss"
    yield (
        f"trainer.algorithm.{kind}",
        f"{algorithm[kind].get('type')} does not read {signal}, which trainer {name} learns from; "
        f"take another {kind} or trainer",
    )
