"""Which metrics a run of a trajectory trainer reports, as far as that shows before it begins.

A name is ``FAMILY/...``. What attempts report is known where the worker and its evaluators say what
they give; what a loss or a class of the user reports shows in the first step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from plugrl.core.config.preflight import section_at
from plugrl.core.text.evaluate.pass_at_k import powers_of_two
from plugrl.core.text.rollout.metrics import OF_ATTEMPTS
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

#: How the metrics of each step begin; those of validations begin with their split.
FAMILIES = ("rollout", "train", "pool", "time", "sync")
_EVALUATOR = "rollout_worker.evaluator"


def _says(component: Any, *attributes: str) -> bool:
    """Whether a class says it of its own code: what users inherit says nothing of theirs."""
    return isinstance(component, type) and (
        component.__module__.startswith("plugrl.") or bool(vars(component).keys() & set(attributes))
    )


class MetricNames:
    """The names of metrics that a configuration leads to.

    Args:
        check: the configuration of a trajectory trainer.
    """

    def __init__(self, check: Preflight) -> None:
        self._check = check
        models: Mapping[str, Any] = check.models
        self._models = tuple(models)
        self._trained = [name for name in models if models[name].get("train") is not None]
        validate = check.root.validate
        self.every = validate.every
        self.samples = validate.samples
        self.splits: Sequence[str] = ()
        if validate.enabled:
            files = validate.data.data_files
            self.splits = ["validation"] if files else list(validate.data.splits)

    @cached_property
    def of_evaluators(self) -> Collection[str] | None:
        """What the worker and its evaluators add to an attempt; None: anything."""
        worker = self._check.component("rollout_worker")
        logged = worker.logs if _says(worker, "logs") else None
        judged = self._of_evaluator(_EVALUATOR)
        return None if logged is None or judged is None else {*logged, *judged}

    def _of_evaluator(self, path: str) -> Collection[str] | None:
        try:
            section = section_at(self._check.root, path)
        except (KeyError, IndexError, TypeError):
            return None
        if section is None:
            return ()
        evaluator = self._check.component(path)
        if not _says(evaluator, "metric_names", "possible_metrics"):
            return None
        names: Collection[str] | None = evaluator.possible_metrics(
            section, lambda place: self._of_evaluator(f"{path}.{place}")
        )
        return names

    @cached_property
    def _of_attempts(self) -> Collection[str] | None:
        own = self.of_evaluators
        if own is None:
            return None
        clashing = {f"evaluator/{name}" for name in own if name in OF_ATTEMPTS}
        return {*OF_ATTEMPTS, *own, *clashing}

    @cached_property
    def _of_splits(self) -> Collection[str] | None:
        known = self._of_attempts
        if known is None or not getattr(self._check.validated.trainer, "validates_attempts", True):
            return None
        if self.samples == 1:
            return known
        ks = powers_of_two(self.samples)
        sampled = {f"{kind}@{k}" for kind in ("pass", "best") for k in ks}
        return {*known, *sampled, f"majority@{self.samples}"}

    def fault(self, name: str) -> str | None:
        """Why no such metric will be reported; None: it will, or that cannot be known yet."""
        family, _, rest = name.partition("/")
        if family in self.splits:
            # The value of a column may stand before the name, and so may a model after it.
            known, outer = self._of_splits, 2
        elif family == "rollout":
            known, outer = self._of_attempts, 1
            known = None if known is None else {*known, "worker_restarts", "worker_timeouts"}
        elif family in FAMILIES:
            if family == "train" and len(self._trained) > 1:
                return self._fault_of_model(name, rest)
            return None if rest else self._unknown(name)
        else:
            own = self._check.validated.trainer.__module__.startswith("plugrl.")
            return self._unknown(name) if own else None
        parts = rest.split("/")
        ends = {"/".join(parts[skipped:]) for skipped in range(min(outer + 1, len(parts)))}
        if not rest or (known is not None and not ends & set(known)):
            return self._unknown(name)
        return None

    def _fault_of_model(self, name: str, rest: str) -> str | None:
        if rest.partition("/")[0] in self._trained:
            return None
        each = ", ".join(f"train/{model}/..." for model in self._trained)
        return f"no metric {name!r}: several models are trained, so that it is one of {each}"

    def _unknown(self, name: str) -> str:
        known = [
            f"{family}/{metric}"
            for family, own in (
                ("rollout", self._of_attempts),
                *((split, self._of_splits) for split in self.splits),
            )
            for metric in (OF_ATTEMPTS if own is None else own)
        ]
        close = did_you_mean(name, [*known, "train/loss"], 1)
        families = ", ".join(f"{family}/" for family in (*self.splits, *FAMILIES))
        return f"this run reports no metric {name!r}{close or f'; names begin with {families}'}"


def metric_findings(check: Preflight) -> Iterator[Finding]:
    """Settings of a trajectory trainer that name a metric which the run does not report."""
    names = MetricNames(check)
    for name in check.root.trainer.get("stop_at") or {}:
        path = "trainer.stop_at" if "." in name else f"trainer.stop_at.{name}"
        if name.partition("/")[0] in names.splits and not names.every and not names.fault(name):
            yield (
                path,
                "is measured by validations, and validate.every=0 has none during training; set "
                "validate.every, such as 10",
            )
    validate = check.root.validate
    if validate.score is not None and names.splits:
        fault = names.fault(validate.score)
        if fault is None and validate.score.partition("/")[0] not in names.splits:
            begins = ", ".join(f"{split}/" for split in names.splits)
            fault = f"is no metric of a validation; their names begin with {begins}"
        if fault is not None:
            yield "validate.score", fault
    known, passing = names.of_evaluators, validate.pass_metric
    if passing is not None and known is not None and passing not in known:
        yield (
            "validate.pass_metric",
            f"no evaluator gives a metric {passing!r}; they give: "
            f"{', '.join(sorted(known)) or 'none'}{did_you_mean(passing, known, 1)}",
        )
