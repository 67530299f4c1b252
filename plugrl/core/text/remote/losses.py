"""The values of losses that services know by name, from the log-probabilities that they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from plugrl.core.errors import ContractError
from plugrl.core.text.remote.service import NAMED_LOSSES, Datum


def loss_value(
    loss_fn: str,
    options: Mapping[str, float],
    datums: Sequence[Datum],
    logprobs: Sequence[Sequence[float]],
) -> float:
    """A loss of :data:`NAMED_LOSSES`, summed over the trained targets of all datums.

    Args:
        loss_fn: its name.
        options: numbers that are not as by default.
        datums: what it was taken over.
        logprobs: of each datum, those of its targets.

    Raises:
        ContractError: there is no such loss.
    """
    if loss_fn not in NAMED_LOSSES:
        raise ContractError(f"no loss {loss_fn!r}; there are: {', '.join(NAMED_LOSSES)}")
    numbers = {**NAMED_LOSSES[loss_fn].options, **options}
    return sum(
        _loss_of_datum(loss_fn, numbers, datum, np.asarray(row, np.float64))
        for datum, row in zip(datums, logprobs, strict=True)
    )


def _loss_of_datum(
    loss_fn: str, options: Mapping[str, float], datum: Datum, logp: npt.NDArray[np.float64]
) -> float:
    """One datum's share of the loss, in the symbols of :data:`NAMED_LOSSES`."""
    inputs = {name: np.asarray(values) for name, values in datum.loss_fn_inputs.items()}
    trained = inputs["mask"] != 0 if "mask" in inputs else np.ones(len(logp), bool)
    logp, inputs = logp[trained], {name: values[trained] for name, values in inputs.items()}
    if loss_fn == "cross_entropy":
        return float(-(inputs["weights"] * logp).sum())
    advantages = inputs["advantages"]
    logratio = logp - inputs["logprobs"]
    ratio = np.exp(logratio)
    if loss_fn == "importance_sampling":
        return float(-(advantages * ratio).sum())
    if loss_fn == "dro":
        return float(-(advantages * logp - options["beta"] / 2 * logratio**2).sum())
    clipped = np.clip(ratio, options["clip_low_threshold"], options["clip_high_threshold"])
    if loss_fn == "ppo":
        return float(-np.minimum(ratio * advantages, clipped * advantages).sum())
    # cispo: the clipped ratio is a weight without a gradient.
    return float(-(clipped * advantages * logp).sum())
