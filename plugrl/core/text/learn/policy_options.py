"""Options of policy-gradient trainers beside advantage and loss, and the terms that they add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.estimators import clipped_value_loss
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.importance_correction import SamplerCorrectionConfig
from plugrl.core.text.learn.kl import LARGEST_ERROR, KlKind, kl_estimate, kl_loss
from plugrl.core.text.learn.losses import LossOutput, Term, check_has, declared_needs, masked_sum
from plugrl.core.text.preflight import model_findings

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Preflight

_KINDS = "kl, abs, mse or low_var_kl; see the page Options of policy gradients"


@dataclass
class KlRewardConfig:
    """A penalty in rewards for leaving the reference model."""

    coefficient: float = described(0.0, "factor of the penalty; 0: none", at_least=0, at_most=1000)
    kind: KlKind = described("kl", _KINDS)
    controller: Literal["fixed", "adaptive"] = described(
        "fixed", "whether the coefficient stays, or follows the divergence to the target"
    )
    target: float = described(
        6.0, "divergence of a sequence that adaptive holds", above=0, at_most=1e6
    )
    horizon: int = described(
        10000, "sequences over which adaptive adjusts", at_least=1, at_most=10**9
    )

    def __post_init__(self) -> None:
        if self.controller == "adaptive" and not self.coefficient:
            raise ConfigError("controller adaptive multiplies coefficient, so it cannot be 0")


@dataclass
class KlLossConfig:
    """A term of the loss for leaving the reference model."""

    coefficient: float = described(0.0, "factor of the term; 0: none", at_least=0, at_most=1000)
    kind: KlKind = described("low_var_kl", _KINDS)


@dataclass
class KlConfig:
    """How strongly the policy is held to a reference model."""

    model: str = described("reference", "entry of models that is the reference")
    reward: KlRewardConfig = described(KlRewardConfig, "penalty in rewards")
    loss: KlLossConfig = described(KlLossConfig, "term of the loss")


@dataclass
class ValueConfig:
    """The loss of the value head, where the advantage needs one (PPO, arXiv 1707.06347)."""

    coefficient: float = described(0.5, "factor of the value head's loss", above=0, at_most=1000)
    clip: float | None = described(
        0.2, "how far a value moves in an update; null: any way", above=0, at_most=1e6
    )


@dataclass
class OverlongConfig:
    """What happens to answers near the largest length (DAPO, arXiv 2503.14476, section 3.4)."""

    buffer: int = described(
        0, "tokens before the end over which the penalty grows; 0: none", at_least=0, at_most=10**8
    )
    penalty: float = described(
        1.0, "largest penalty, taken from the reward", at_least=0, at_most=1e6
    )
    length: int | None = described(
        None, "largest length; null: rollout_worker.max_response_length", at_least=1, at_most=10**8
    )
    filter: bool = described(False, "answers that were cut off train nothing")

    def __post_init__(self) -> None:
        if self.length is not None and self.length < self.buffer:
            raise ConfigError("length must not be below buffer")


@dataclass
class PolicyOptions:
    """What every policy-gradient trainer can add to its algorithm."""

    entropy_coefficient: float = described(
        0.0, "factor of the entropy that the loss rewards", at_least=0, at_most=1000
    )
    kl: KlConfig = described(KlConfig, "penalty for leaving a reference model")
    value: ValueConfig = described(ValueConfig, "loss of the value head, for advantages with one")
    sampler_correction: SamplerCorrectionConfig = described(
        SamplerCorrectionConfig, "weights for the difference between sampler and trainer"
    )
    overlong: OverlongConfig = described(OverlongConfig, "answers near the largest length")


def terms_of(algorithm: Mapping[str, Any], *, values: bool) -> Iterator[Term]:
    """The terms that the loss of an algorithm has besides its own, those with a coefficient.

    Args:
        algorithm: a section with the keys of :class:`PolicyOptions`, or without some of them.
        values: whether the advantage needs a value head, so that one must be trained.
    """
    entropy = algorithm.get("entropy_coefficient")
    if entropy:
        yield Term("entropy_coefficient", entropy, _entropy, ("entropy",))
    kl = algorithm.get("kl")
    if kl is not None and kl["loss"]["coefficient"]:
        kind = kl["loss"]["kind"]
        yield Term(
            "kl.loss.coefficient",
            kl["loss"]["coefficient"],
            lambda logp, batch: _kl(logp, batch, kind),
        )
    value = algorithm.get("value")
    if values and value is not None:
        clip = value["clip"]
        yield Term(
            "value.coefficient",
            value["coefficient"],
            lambda logp, batch: value_loss(batch, clip),
            ("values",),
        )


def _entropy(logp: torch.Tensor, batch: Batch) -> LossOutput:
    entropy = batch.values["entropy"]
    return -entropy, {"entropy": masked_sum(entropy, batch.values["loss_mask"])}


def _kl(logp: torch.Tensor, batch: Batch, kind: KlKind) -> LossOutput:
    check_has(batch, "loss of kl.loss", "ref_log_probs")
    reference = batch.values["ref_log_probs"]
    mask = batch.values["loss_mask"]
    # Where nothing is trained, both are 0.
    return kl_loss(logp, reference, kind), {
        "kl": masked_sum(kl_estimate(logp, reference, kind), mask)
    }


def value_loss(batch: Batch, clip: float | None) -> LossOutput:
    """Half the squared error of ``values`` to ``returns``, [B, T], as PPO clips it.

    With V the value, V0 that before the update and R the return: max((V - R)^2,
    (V0 + clamp(V - V0, -clip, clip) - R)^2) / 2.

    Raises:
        ContractError: the advantage gave no returns.
    """
    check_has(batch, "loss of the value head", "old_values", "returns")
    values, old_values = batch.values["values"], batch.values["old_values"]
    returns, mask = batch.values["returns"], batch.values["loss_mask"]
    v_loss = half_square(values, returns)
    metrics = {"value_loss": masked_sum(v_loss, mask)}
    if clip is not None:
        v_loss, is_clipped = clipped_value_loss(values, old_values, returns, clip, half_square)
        metrics["value_clip_fraction"] = masked_sum(is_clipped.float(), mask)
    return v_loss, metrics


def half_square(values: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
    """Half the squared error."""
    return 0.5 * (values - returns).square()


def policy_findings(check: Preflight) -> Iterator[tuple[str, str]]:
    """A reference that is no model, and values that no value head gives."""
    algorithm = check.section.get("algorithm") or {}
    kl = algorithm.get("kl")
    if kl is not None and (kl.reward.coefficient or kl.loss.coefficient):
        path = "trainer.algorithm.kl.model"
        yield from model_findings(check, path, kl.model, role="a reference")
    advantage = check.component("trainer.algorithm.advantage")
    if kl is not None and kl.reward.controller == "adaptive":
        sequences = check.root.data.batch_size * check.root.data.rollout_repeat_n
        least = int(LARGEST_ERROR * sequences) + 1
        if kl.reward.horizon < least:
            yield (
                "trainer.algorithm.kl.reward.horizon",
                f"is {kl.reward.horizon}, and {sequences} sequences a step could turn the "
                f"coefficient negative; write at least {least}",
            )
    if kl is not None and not getattr(advantage, "uses_rewards", True):
        yield from _unused_penalties(algorithm)
    yield from _value_findings(check, algorithm)


def _value_findings(check: Preflight, algorithm: Any) -> Iterator[tuple[str, str]]:
    """Trained models without a value head, where values of states are needed."""
    for kind in ("advantage", "loss"):
        path = f"trainer.algorithm.{kind}"
        if "values" not in declared_needs(check.component(path), algorithm.get(kind)):
            continue
        for name, model in check.models.items():
            train = model.get("train")
            if train is not None and not train.get("value_head"):
                what = algorithm[kind].get("type")
                setting = f"models.{name}.train.value_head=true"
                yield path, f"{what} needs values of states, so set {setting}"


def _unused_penalties(algorithm: Any) -> Iterator[tuple[str, str]]:
    """Settings that change rewards, of which the advantage makes nothing."""
    for path, value in (
        ("kl.reward.coefficient", algorithm.kl.reward.coefficient),
        ("overlong.buffer", algorithm.overlong.buffer),
    ):
        if value:
            name = algorithm.advantage.get("type")
            yield (
                f"trainer.algorithm.{path}",
                f"changes rewards, and the advantage {name} does not use them; leave it out",
            )
