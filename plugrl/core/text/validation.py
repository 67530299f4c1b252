"""Held-out evaluation: every problem of some splits, attempted once by the current policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from plugrl.core.errors import RunError
from plugrl.core.scenario import DataItem
from plugrl.core.text.data import attempts
from plugrl.core.text.metrics import rollout_metrics_by_model
from plugrl.core.text.trajectory import Trajectory

if TYPE_CHECKING:
    from plugrl.core.text.data import Prompt
    from plugrl.core.text.rollouts import LockstepRollouts
    from plugrl.core.text.sampling import SamplingParams


class Validation:
    """Evaluates the current policy on fixed problems.

    Args:
        rollouts: makes the attempts.
        datasets: problems by split; the split is the prefix of its metrics.
        sampling: how answers are sampled; ``temperature`` replaces its temperature.
    """

    def __init__(
        self,
        rollouts: LockstepRollouts,
        datasets: Mapping[str, Sequence[DataItem]],
        sampling: SamplingParams,
        *,
        temperature: float,
        keys: tuple[str, str],
    ) -> None:
        self._rollouts = rollouts
        self._sampling = replace(sampling, temperature=temperature, top_p=1.0)
        self._prompts: dict[str, list[Prompt]] = {
            split: [
                prompt
                for index, item in enumerate(items)
                for prompt in attempts(item, index, index, f"{split}/{index}", 1, keys)
            ]
            for split, items in datasets.items()
        }

    def __call__(self, step: int) -> tuple[dict[str, float], list[Trajectory]]:
        """Metrics named ``<split>/<name>``, and the trajectories.

        Raises:
            RunError: not one attempt of a split is valid.
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
            metrics |= rollout_metrics_by_model(trajectories, split)
            everything += trajectories
        return metrics, everything
