"""A guard: numbers in a loss's configuration that reach no gradient.

A penalty that is computed and then forgotten, or switched off by a detached tensor, trains as if
it were not there. Each number of the loss's section is doubled in turn and the gradient with
respect to the log-probabilities is taken again, on a probe in which every term has a gradient. A
loss may have an attribute ``fill_probe``, a function f(probe, logp) that changes the probe to this
end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from plugrl.core.config.view import ConfigView
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, Term, WeightedLoss
from plugrl.core.text.learn.minibatches import UNIT, repeated_units

#: Trained tokens that a probe has at least, so that each side of each clip has some.
PROBE_TOKENS = 1024


def dead_coefficients(loss: WeightedLoss, batch: Batch) -> dict[str, float]:
    """The numbers above or below 0 in the loss's section that change no gradient, by key.

    Args:
        loss: what is probed.
        batch: a batch as the loss gets it, with :data:`LOSS_WEIGHTS`; rows without a trained
            token are left out.
    """
    coefficients = dict(_coefficients(loss.config))
    if not coefficients:
        return {}
    probe, logp = _probe(batch)
    if not logp.numel():
        return {}
    fill = getattr(loss.function, "fill_probe", None)
    if fill is not None:
        fill(probe, logp)
    plain = _gradient(loss, probe, logp)
    return {
        key: value
        for key, value in coefficients.items()
        if torch.equal(plain, _gradient(_with_doubled(loss, key), probe, logp))
    }


def dead_terms(loss: WeightedLoss, batch: Batch) -> dict[str, float]:
    """The coefficients of the loss's terms that change no gradient, by their settings."""
    if not loss.terms:
        return {}
    probe, logp = _probe(batch)
    if not logp.numel():
        return {}
    with_terms = _gradient(loss, probe, logp)
    return {
        term.path: term.coefficient
        for term in loss.terms
        if torch.equal(with_terms, _gradient(_doubled_term(loss, term), probe, logp))
    }


def _doubled_term(loss: WeightedLoss, term: Term) -> WeightedLoss:
    twice = replace(term, coefficient=2 * term.coefficient)
    return replace(loss, terms=tuple(twice if each is term else each for each in loss.terms))


def _coefficients(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _coefficients(value, f"{prefix}{key}.")
        elif isinstance(value, float) and value:
            yield f"{prefix}{key}", value


def _with_doubled(loss: WeightedLoss, key: str) -> WeightedLoss:
    values = loss.config.to_dict()
    *parents, last = key.split(".")
    section = values
    for parent in parents:
        section = section[parent]
    section[last] *= 2
    return replace(loss, config=ConfigView(values, checked=True))


def _probe(batch: Batch) -> tuple[Batch, torch.Tensor]:
    """Rows repeated, with advantages of both signs and ratios far from 1: what clips do is seen."""
    trained = batch.values[LOSS_WEIGHTS] > 0
    rows = trained.any(1).nonzero().flatten()
    tokens = int(trained.sum())
    copies = -(-PROBE_TOKENS // tokens) if tokens else 0
    whole = batch.select(rows)
    probe = whole.select(torch.arange(len(rows)).repeat(copies)).copy()
    if UNIT in batch.metadata and copies:
        probe.metadata[UNIT] = repeated_units(whole, copies)
    generator = torch.Generator().manual_seed(0)

    def uniform(low: float, high: float) -> torch.Tensor:
        shape = probe.values["loss_mask"].shape
        return low + (high - low) * torch.rand(shape, generator=generator)

    mask = probe.values["loss_mask"].to(torch.float32)
    if "advantages" in probe.values:
        probe.values["advantages"] = uniform(-1.5, 1.5) * mask
    behaviour = probe.values.setdefault("old_log_probs", uniform(-4.0, -2.5)) * mask
    logp = (behaviour + uniform(-2.0, 2.0) * mask).requires_grad_()
    # What a service would compute beside log-probabilities.
    probe.values["entropy"] = (uniform(0.5, 2.0) * mask).requires_grad_()
    values = probe.values.get("old_values", torch.zeros_like(mask)) + uniform(-2.0, 2.0) * mask
    probe.values["values"] = values.requires_grad_()
    return probe, logp


def _gradient(loss: WeightedLoss, probe: Batch, logp: torch.Tensor) -> torch.Tensor:
    total, _ = loss(logp, probe)
    inputs = [logp, *(probe.values[name] for name in loss.needs)]
    gradients = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    return torch.stack(gradients)
