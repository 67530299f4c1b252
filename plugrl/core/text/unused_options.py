"""Options that are written and change nothing, each a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from plugrl.core.text.learn.importance_correction import SamplerCorrectionConfig
from plugrl.core.text.learn.losses import declared_needs
from plugrl.core.text.learn.policy_options import (
    KlConfig,
    KlLossConfig,
    KlRewardConfig,
    OverlongConfig,
    ValueConfig,
)

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Preflight

logger = logging.getLogger(__name__)


#: An option by its path within a section, its value, and why it has no effect.
UnusedOption = tuple[str, Any, str]


def warn_of_options(section: str, unused: Iterable[UnusedOption]) -> None:
    """Warn of options below the path ``section``."""
    for path, value, reason in unused:
        shown = f"{value:g}" if isinstance(value, float) else value
        logger.warning("%s.%s=%s has no effect: %s", section, path, shown, reason)


def non_default_options(
    section: Any, default: Any, reason: str, names: Iterable[str] = (), *, path: str = ""
) -> Iterator[UnusedOption]:
    """The options of a section that differ from their defaults.

    Args:
        section: with the options.
        default: an instance of its configuration.
        reason: why they have no effect.
        names: of the options that are meant; none: all.
        path: of the section, with a dot at its end.
    """
    for name in names or vars(default):
        if section[name] != getattr(default, name):
            yield f"{path}{name}", section[name], reason


def warn_of_unused_options(check: Preflight) -> None:
    """Warn of what a policy-gradient trainer does not use: it is switched off by something else."""
    algorithm = check.section.get("algorithm") or {}
    valued = any(
        "values"
        in declared_needs(check.component(f"trainer.algorithm.{kind}"), algorithm.get(kind))
        for kind in ("advantage", "loss")
    )
    warn_of_options("trainer.algorithm", _unused(algorithm, valued=valued))
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


def _unused(algorithm: Mapping[str, Any], *, valued: bool) -> Iterator[UnusedOption]:
    length, how = algorithm.get("norm_length"), algorithm.get("aggregation")
    if length is not None and how != "seq-mean-token-sum-norm":
        yield "norm_length", length, f"aggregation is {how}"
    kl, value = algorithm.get("kl"), algorithm.get("value")
    correction, overlong = algorithm.get("sampler_correction"), algorithm.get("overlong")
    if kl is not None:
        yield from _unused_of_kl(kl)
    if value is not None and not valued:
        why = "no advantage or loss reads values of states"
        yield from non_default_options(value, ValueConfig(), why, path="value.")
    if correction is not None and correction.level == "none":
        default = SamplerCorrectionConfig()
        yield from non_default_options(
            correction, default, "level is none", path="sampler_correction."
        )
    if overlong is not None and not overlong.buffer:
        names = ("penalty", "length")
        yield from non_default_options(
            overlong, OverlongConfig(), "buffer is 0", names, path="overlong."
        )


def _unused_of_kl(kl: Any) -> Iterator[UnusedOption]:
    reward, loss = kl.reward, kl.loss
    if not reward.coefficient:
        yield from non_default_options(
            reward, KlRewardConfig(), "coefficient is 0", path="kl.reward."
        )
    elif reward.controller == "fixed":
        names = ("target", "horizon")
        yield from non_default_options(
            reward, KlRewardConfig(), "controller is fixed", names, path="kl.reward."
        )
    if not loss.coefficient:
        yield from non_default_options(loss, KlLossConfig(), "coefficient is 0", path="kl.loss.")
    if not reward.coefficient and not loss.coefficient:
        both = "kl.reward.coefficient and kl.loss.coefficient are 0"
        yield from non_default_options(kl, KlConfig(), both, ("model",), path="kl.")
