"""Faults of a staged training of text agents that show before it begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import PlugrlError
from plugrl.core.protocol import make_protocol
from plugrl.core.text.preflight import data_findings, model_findings

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


def pure_text_findings(check: Preflight) -> Iterator[Finding]:
    """Faults of models, agents, data and limits."""
    yield from _models(check)
    yield from _worker(check)
    root = check.root
    data, validate = root.data, root.validate
    files = () if data.type == "scenario" else data.data_files
    yield from data_findings(check, "data", files, [data.split], "split")
    if validate.enabled and root.text_rl.test_scheme != "none":
        held_out = validate.data
        files = held_out.data_files
        yield from data_findings(check, "validate.data", files, held_out.splits, "splits")
    for name in root.text_rl.prices:
        yield from model_findings(check, f"text_rl.prices.{name}", name)


def _models(check: Preflight) -> Iterator[Finding]:
    models = check.models
    if not models:
        yield "models", "names no model; give one, such as models.policy, a source"
        return
    for name in models:
        if models[name].get("train") is not None:
            yield (
                f"models.{name}.train",
                "is for trainers that take gradients themselves; agents are fine-tuned by jobs: "
                f"write models.{name}.fine_tune instead",
            )
    if not any(models[name].get("fine_tune") is not None for name in models):
        yield (
            "models",
            "no model is fine-tuned; give one a service, such as models.policy.fine_tune: local",
        )


def _worker(check: Preflight) -> Iterator[Finding]:
    worker = check.component("rollout_worker")
    section = check.root.rollout_worker
    if worker is not None and not hasattr(worker, "begin"):
        yield (
            "rollout_worker.type",
            f"{section.get('type')} plays no episodes of a protocol; write protocol, or a worker "
            "with begin(task)",
        )
        return
    if section.get("processes"):
        yield (
            "rollout_worker.processes",
            "must be 0: finished rollouts are written down by the process that trains",
        )
    if worker is not None and "protocol" in section and not _learners(check, section):
        yield (
            "rollout_worker.agents",
            "all agents are frozen, have a script or a model without fine_tune, so that no job "
            "would be made; let one of them learn",
        )


def _learners(check: Preflight, section: Any) -> list[str]:
    """The agents that learn; those of a faulty configuration are none of the matter here."""
    try:
        names = make_protocol(section.protocol).agent_names
    except PlugrlError:
        return ["unknown"]
    learners = []
    for name in names:
        own = section.agents.get(name) or {}
        model = own.get("model") or section.get("model")
        known = check.models.get(model)
        learns = known is None or known.get("fine_tune") is not None
        if learns and not own.get("frozen") and own.get("script") is None:
            learners.append(name)
    return learners
