"""Faults of a staged training of text agents that show before it begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from plugrl.core.text.preflight import data_findings
from plugrl.core.text.staged.plan import learners
from plugrl.core.text.staged.sections import HeldOutConfig, TextRlConfig
from plugrl.core.text.staged.stats import OF_AGENTS, OF_EPISODES
from plugrl.core.text.unused_options import UnusedOption, non_default_options, warn_of_options
from plugrl.core.wording import did_you_mean

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
    scheme = root.text_rl.test_scheme
    if scheme != "none" and not validate.enabled:
        yield (
            "text_rl.test_scheme",
            f"is {scheme}, and validate.enabled=false leaves all tests out; write "
            "text_rl.test_scheme=none, or validate.enabled=true",
        )
    elif scheme != "none":
        held_out, off = validate.data, "text_rl.test_scheme=none"
        files = held_out.data_files
        yield from data_findings(check, "validate.data", files, held_out.splits, "splits", off=off)
    if validate.score is not None and validate.enabled and scheme != "none":
        yield from _score(check, str(validate.score))
    prices = root.text_rl.prices.values()
    if root.text_rl.max_cost is not None and not any(each.input or each.output for each in prices):
        yield "text_rl.max_cost", "is never reached: all prices are 0; raise one, or write null"
    warn_of_options("text_rl", _unused(root.text_rl))
    if scheme == "none":
        none = "text_rl.test_scheme is none"
        warn_of_options(
            "validate",
            non_default_options(validate, HeldOutConfig(), none, ("score", "score_mode")),
        )


def _score(check: Preflight, score: str) -> Iterator[Finding]:
    """A score that no test gives; trainers of users may report anything of a test."""
    known = [f"test/{name}" for name in OF_EPISODES]
    own = check.validated.trainer.__module__.startswith("plugrl.")
    by_agent = score.startswith("test/") and score.count("/") > 1 and score.endswith(OF_AGENTS)
    if not score.startswith("test/") or (own and not by_agent and score not in known):
        close = did_you_mean(score, known, 1) or f"; it gives: {', '.join(known)}"
        yield "validate.score", f"a test gives no metric {score!r}{close}"


def _unused(section: Any) -> Iterator[UnusedOption]:
    """Options of ``text_rl`` that others switch off."""
    default, replaced = TextRlConfig(), "verifier_guess_replacement"
    annealing = f"{replaced}_annealing"
    if not section[f"{replaced}_proportion"]:
        names = (annealing, f"{annealing}_rate")
        yield from non_default_options(section, default, f"{replaced}_proportion is 0", names)
    elif section[annealing] == "none":
        yield from non_default_options(
            section, default, f"{annealing} is none", (f"{annealing}_rate",)
        )
    if not section.save_transcripts:
        yield from non_default_options(
            section, default, "save_transcripts is false", ("transcript_format",)
        )


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
    written = "finished rollouts are written down by the process that trains"
    if section.get("processes"):
        yield "rollout_worker.processes", f"must be 0: {written}"
    if section.get("executor") is not None:
        yield "rollout_worker.executor", f"must be left out: {written}"
    if worker is not None and "protocol" in section and learners(check.models, section) == {}:
        yield (
            "rollout_worker.agents",
            "all agents are frozen, have a script or a model without fine_tune, so that no job "
            "would be made; let one of them learn",
        )
