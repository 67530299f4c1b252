"""Options of a policy-gradient trainer that are written and change nothing, each a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from plugrl.core.text.correction import SamplerCorrectionConfig
from plugrl.core.text.losses import declared_needs
from plugrl.core.text.policy import (
    KlConfig,
    KlLossConfig,
    KlRewardConfig,
    OverlongConfig,
    ValueConfig,
)

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Preflight

logger = logging.getLogger(__name__)


def warn_of_unused(check: Preflight) -> None:
    """Warn of each option that differs from its default and is switched off by another."""
    algorithm = check.section.get("algorithm") or {}
    valued = any(
        "values"
        in declared_needs(check.component(f"trainer.algorithm.{kind}"), algorithm.get(kind))
        for kind in ("advantage", "loss")
    )
    for path, value, reason in _unused(algorithm, valued=valued):
        shown = f"{value:g}" if isinstance(value, float) else value
        logger.warning("trainer.algorithm.%s=%s has no effect: %s", path, shown, reason)
    # Trainers without rewards have no attempts to compare, and may be the phase before values.
    learns = getattr(check.validated.trainer, "uses_rewards", True)
    compares = getattr(check.component("trainer.algorithm.advantage"), "compares_attempts", False)
    if learns and compares and check.root.data.rollout_repeat_n == 1:
        logger.warning(
            "data.rollout_repeat_n=1: advantage %s compares attempts at the same prompt, so that "
            "nothing is learned; write at least 2",
            algorithm["advantage"].get("type"),
        )
    for name, model in check.models.items():
        train = model.get("train")
        if learns and not valued and train is not None and train.get("value_head"):
            logger.warning(
                "models.%s.train.value_head=true has no effect: neither the advantage nor the loss "
                "reads values of states", name,
            )  # fmt: skip


def _unused(algorithm: Mapping[str, Any], *, valued: bool) -> Iterator[tuple[str, Any, str]]:
    length, how = algorithm.get("norm_length"), algorithm.get("aggregation")
    if length is not None and how != "seq-mean-token-sum-norm":
        yield "norm_length", length, f"aggregation is {how}"
    kl, value = algorithm.get("kl"), algorithm.get("value")
    correction, overlong = algorithm.get("sampler_correction"), algorithm.get("overlong")
    if kl is not None:
        off = not kl.reward.coefficient, not kl.loss.coefficient
        yield from _written("kl.reward", kl.reward, KlRewardConfig(), off[0], "coefficient is 0")
        fixed = kl.reward.controller == "fixed" and not off[0]
        yield from _written(
            "kl.reward", kl.reward, KlRewardConfig(), fixed, "controller is fixed",
            ("target", "horizon"),
        )  # fmt: skip
        yield from _written("kl.loss", kl.loss, KlLossConfig(), off[1], "coefficient is 0")
        both = "kl.reward.coefficient and kl.loss.coefficient are 0"
        yield from _written("kl", kl, KlConfig(), all(off), both, ("model",))
    if value is not None:
        why = "no advantage or loss reads values of states"
        yield from _written("value", value, ValueConfig(), not valued, why)
    if correction is not None:
        off_ = correction.level == "none"
        default = SamplerCorrectionConfig()
        yield from _written("sampler_correction", correction, default, off_, "level is none")
    if overlong is not None:
        names = ("penalty", "length")
        none = not overlong.buffer
        yield from _written("overlong", overlong, OverlongConfig(), none, "buffer is 0", names)


def _written(
    path: str, section: Any, default: Any, off: bool, reason: str, names: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any, str]]:
    for name in names or vars(default):
        if off and section[name] != getattr(default, name):
            yield f"{path}.{name}", section[name], reason
