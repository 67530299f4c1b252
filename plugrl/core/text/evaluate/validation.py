"""Held-out evaluation: every problem of some splits, attempted by the current policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.scenario import DataItem
from plugrl.core.text.data.loader import attempts_at_all
from plugrl.core.text.evaluate.pass_at_k import Passing, sample_metrics
from plugrl.core.text.rollout.metrics import rollout_metrics_by_model
from plugrl.core.text.trajectory import Trajectory
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.rollout.lockstep import LockstepRollouts

#: Extra field of a validated trajectory: the reference answer of its problem, where it has one.
REFERENCE = "ground_truth"


class Validation:
    """Evaluates the current policy on fixed problems.

    Args:
        rollouts: makes the attempts.
        datasets: problems by split; the split is the prefix of its metrics.
        sampling: how answers are sampled, but for its temperature and with top_p 1.
        temperature: takes the place of that of ``sampling``.
        keys: columns of prompt and reference answer.
        samples: attempts at each problem; several give ``pass@k`` and ``best@k``.
        passing: which attempts have solved their problem.
        source_key: column by whose values metrics are given too, where problems have it.
    """

    def __init__(
        self,
        rollouts: LockstepRollouts,
        datasets: Mapping[str, Sequence[DataItem]],
        sampling: SamplingParams,
        *,
        temperature: float,
        keys: tuple[str, str],
        samples: int = 1,
        passing: Passing = Passing(),  # noqa: B008 - it cannot change
        source_key: str = "data_source",
    ) -> None:
        self._rollouts = rollouts
        self._sampling = replace(sampling, temperature=temperature, top_p=1.0)
        self._prompts: dict[str, list[Prompt]] = {
            split: attempts_at_all(items, split, samples, keys) for split, items in datasets.items()
        }
        self._samples = samples
        self._passing = passing
        self._source_key = source_key
        self._passed_by = False

    def __call__(self, step: int) -> tuple[dict[str, float], list[Trajectory]]:
        """Metrics named ``<split>/<name>`` and ``<split>/<source>/<name>``, and the trajectories.

        Raises:
            RunError: not one attempt of a split is valid.
            ConfigError: no attempt has the metric that says which have passed.
        """
        metrics: dict[str, float] = {}
        everything: list[Trajectory] = []
        for split, prompts in self._prompts.items():
            trajectories = self._rollouts.collect(prompts, step, self._sampling, is_val=True)
            if not any(t.valid for t in trajectories):
                raise RunError(
                    f"none of the {len(trajectories)} attempts of {split} is valid; one of the "
                    f"failures: {trajectories[0].failure}"
                )
            _add_references(prompts, trajectories)
            metrics |= self._by_source(split, prompts, trajectories)
            metrics |= self._metrics(trajectories, split)
            everything += trajectories
        self._check_passing(everything)
        return metrics, everything

    def _check_passing(self, trajectories: Sequence[Trajectory]) -> None:
        name = self._passing.metric
        if self._samples == 1 or name is None or self._passed_by:
            return
        known = sorted({metric for t in trajectories for metric in t.metrics})
        if name not in known:
            raise ConfigError(
                f"validate.pass_metric: no attempt has a metric {name!r}; they have: "
                f"{', '.join(known) or 'none'}{did_you_mean(name, known, 1)}"
            )
        # From here on an evaluator may leave it out.
        self._passed_by = True

    def _metrics(self, trajectories: Sequence[Trajectory], prefix: str) -> dict[str, float]:
        metrics = rollout_metrics_by_model(trajectories, prefix)
        if self._samples > 1:
            sampled = sample_metrics(trajectories, self._samples, self._passing)
            metrics |= {f"{prefix}/{name}": value for name, value in sampled.items()}
        return metrics

    def _by_source(
        self, split: str, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]
    ) -> dict[str, float]:
        key = self._source_key
        sources = {p.group_id: str(p.data[key]) for p in prompts if p.data.get(key) is not None}
        by_source: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            if trajectory.group_id in sources:
                by_source.setdefault(sources[trajectory.group_id], []).append(trajectory)
        metrics: dict[str, float] = {}
        for source, own in sorted(by_source.items()):
            metrics |= self._metrics(own, f"{split}/{source}")
        return metrics


def _add_references(prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> None:
    answers = {p.group_id: p.data.get(p.answer_key) for p in prompts}
    for trajectory in trajectories:
        trajectory.extra_fields.setdefault(REFERENCE, answers.get(trajectory.group_id))
