"""Whether what a trainer makes of rollouts is what its loss and advantage read.

Losses and advantages may say what they read of a batch in an attribute ``reads``, a tuple of keys;
trainers what their ``_prepare_batch`` adds, ``gives``, and which of it they train on, ``signal``.
What says nothing is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


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
