"""Trainers of small networks without a run: everything given by hand, nothing written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, Literal

from plugrl.core.config.check import Checker
from plugrl.core.config.schemas.sections import KNOWN
from plugrl.core.config.sources.origins import raise_faults
from plugrl.core.config.view import HyperParameters, plain
from plugrl.core.run.guards import Guards
from plugrl.core.run.progress import Bar
from plugrl.core.run.records.records import plain_numbers
from plugrl.core.wording import did_you_mean


class StandaloneRun:
    """What a trainer asks of its run, kept in memory.

    Attributes:
        metrics: one mapping of numbers a step.
        samples: what was sampled, by name.
    """

    def __init__(self) -> None:
        self.step = 0
        self.metrics: list[dict[str, Any]] = []
        self.samples: dict[str, list[dict[str, Any]]] = {}
        self.guards = Guards()
        self.best_score: float | None = None
        self.hooks = SimpleNamespace(call=lambda name, **arguments: None)
        self.phase_number = 0

    def end_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Keep the numbers of a step and guard them."""
        numbers = plain_numbers(metrics)
        self.guards.metrics(step, numbers)
        self.metrics.append({"step": step, **numbers})
        self.step = step

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Keep a record."""
        self.samples.setdefault(name, []).append(dict(record))

    def report_score(
        self, score: float, metric: str | None = None, *, mode: Literal["max", "min"] = "max"
    ) -> bool:
        """Whether a held-out score is the best so far; it has no headline."""
        if self.best_score is not None and score <= self.best_score:
            return False
        self.best_score = score
        return True

    def phase(self, name: str) -> AbstractContextManager[None]:
        """No deadline: whoever waits can end it."""
        return nullcontext()

    def progress(self, description: str, total: int | None = None) -> Bar:
        """No bar is shown."""
        return Bar()

    def label(self, step: int) -> str:
        """How messages name a step."""
        return f"step {step}"

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        """Made anew: there is only one trainer."""
        return make()


def default_hyper_params(sections: Mapping[str, Any], given: Mapping[str, Any]) -> HyperParameters:
    """Sections with their defaults, changed by what is given.

    Raises:
        ConfigError: what is given has unknown keys or wrong types.
    """
    checker, values = Checker(), plain(given)
    known = {*sections, *KNOWN}
    for name in values.keys() - known:
        checker.fault((name,), f"unknown section{did_you_mean(name, known, 1)}")
    filled = {
        name: checker.value(values.get(name, {}), schema, (name,), {})
        for name, schema in sections.items()
        if isinstance(schema, type) or name in values
    }
    others = {name: value for name, value in values.items() if name not in filled}
    raise_faults(checker.faults, "hyper_params are wrong")
    return HyperParameters({"seed": 0, "agents": {}, **filled, **others}, checked=True)
