"""``summary``: what a run that has ended came to, in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from plugrl.core.plugins.user_code.working_folder import display_path
from plugrl.core.run.records.headline import Headline, headline_of
from plugrl.core.run.records.records import METRICS_FILE, read_jsonl, read_status
from plugrl.core.run.report.page import REPORT_FILE
from plugrl.core.run.status_line import duration, short_number


def summary(folder: Path, phases: Sequence[str] = ()) -> list[str]:
    """Four lines at most: how the run ended, its headline, and where folder and report are.

    Args:
        folder: of the run.
        phases: the names of its phases, in order.

    Raises:
        ConfigError: its status is missing or damaged.
    """
    status, metrics = read_status(folder), read_jsonl(folder / METRICS_FILE)
    place = display_path(folder)
    steps = trained_steps(metrics)
    lines = [f"{folder.parent.name}: {status.get('state')}, {steps}{_time(status)}"]
    found = headline_of(status, metrics)
    if found is not None:
        lines.append(headline_line(found, metrics, phases))
    places = {"run": place}
    if (folder / REPORT_FILE).exists():
        places["report"] = place / REPORT_FILE
    return [*lines, *(f"{name:<8}{path}" for name, path in places.items())]


def headline_line(
    headline: Headline, metrics: Sequence[Mapping[str, Any]], phases: Sequence[str] = ()
) -> str:
    """The metric with its first, last and best value, and the step of the best one.

    Args:
        headline: of the run.
        metrics: the lines of ``metrics.jsonl``.
        phases: the names of its phases; a step is counted as its phase counts it.
    """
    first, last, best = (short_number(v) for v in (headline.first, headline.last, headline.best))
    if len(headline.points) == 1:
        return f"{headline.metric}  {last}"
    step = next(step for step, value in headline.points if value == headline.best)
    phase = next(line.get("phase") for line in metrics if line["step"] == step)
    where = f"step {step}"
    if phase is not None:
        name = phases[phase - 1] if phase <= len(phases) else f"phase {phase}"
        where = f"step {step - _beginnings(metrics)[phase]} of {name}"
    return f"{headline.metric}  {first} -> {last}, best {best} at {where}"


def _beginnings(metrics: Sequence[Mapping[str, Any]]) -> dict[Any, int]:
    """The number that the step before the first of each phase has; None is that of no phase."""
    first: dict[Any, int] = {}
    for line in metrics:
        first.setdefault(line.get("phase"), int(line["step"]))
    # A run begins with step 0 or, where nothing is measured before, with step 1.
    return {phase: step - (step == 1) for phase, step in first.items()}


def trained_steps(metrics: Sequence[Mapping[str, Any]]) -> str:
    """How many steps were trained, as the configuration counts them.

    What stands before the first step of a run or of a phase, such as a validation, is a line of
    the metrics, but no step. Trainers in stages are configured in iterations.
    """
    last = {line.get("phase"): int(line["step"]) for line in metrics}
    iterations = [line["iteration"] for line in metrics if line.get("iteration") is not None]
    if iterations and len(last) == 1:
        return _counted(int(max(iterations)), "iteration")
    begins = _beginnings(metrics)
    return _counted(sum(step - begins[phase] for phase, step in last.items()), "step")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _time(status: Mapping[str, Any]) -> str:
    """How long the run took, or since it was resumed last; how long before that is not known."""
    resumed = status.get("resumed")
    try:
        began = datetime.fromisoformat(resumed or status["started"])
        took = (datetime.fromisoformat(status["ended"]) - began).total_seconds()
    except (KeyError, TypeError, ValueError):
        return ""
    return f", {duration(took)} since it was resumed" if resumed else f" in {duration(took)}"
