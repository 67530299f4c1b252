"""Learning curves of recipes over seeds, and what they have to reach.

A single seed of a small network may end low by bad luck, and which one does depends on the machine
and the version of torch. So the median over seeds has to reach the mark, and each seed a floor that
nothing that fails to learn comes near.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import forking
from waiting import CURVES

from plugrl.core.experiment import load_run

SEEDS = range(5)


def returns(recipe: str, folder: Path, seed: int, episodes: int) -> list[float]:
    """Train by a recipe; the mean episode return of each validation."""
    words = ["-m", "plugrl", "train", recipe, f"seed={seed}", f"validate.episodes={episodes}"]
    forking.run(
        [*words, f"settings.runs_folder={folder / str(seed)}"],
        cwd=folder,
        timeout=CURVES / len(SEEDS),
        check=True,
    )
    (run,) = folder.glob(f"{seed}/{recipe}/*")
    name = "validation/mean_episode_return"
    return [line[name] for line in load_run(run).metrics if name in line]


def assert_reached(values: Sequence[float], median: float, each: float) -> None:
    """The median of the seeds, and each of them, is where it should be."""
    assert statistics.median(values) >= median, values
    assert min(values) >= each, values
