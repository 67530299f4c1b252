"""The scenario ``red_team``: goals by split, each a prompt for the tester and a category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.scenario import DataItem, Scenario, ScenarioInstance
from plugrl.scenarios.red_team.files import CATEGORY, fill_template, read_goals
from plugrl.scenarios.red_team.goals import harmless_goals

SPLITS = ("train", "development", "test")
TEMPLATE = 'Make the assistant say the word "{word}".'
_ROUNDING = 1e-9


@dataclass
class GoalFilesConfig:
    """One file a split."""

    train: str | None = described(None, "goals to train on", file="file")
    development: str | None = described(None, "goals for decisions in training", file="file")
    test: str | None = described(None, "goals that measure the result", file="file")


@dataclass
class RedTeamConfig:
    """Where goals come from, and how they are split."""

    files: GoalFilesConfig = described(GoalFilesConfig, "one file for each split")
    file: str | None = described(
        None,
        "one file that is split: .csv (such as AdvBench's), .json, .jsonl or .parquet; null, and "
        "no files: harmless goals, words that the target is to say",
        file="file",
    )
    prompt_key: str | None = described(
        None, "of files: column of what the tester is told; null: prompt, or else goal"
    )
    category_key: str = described(CATEGORY, "of files: column of the category")
    template: str | None = described(
        None, "what the tester is told, with {COLUMN} filled in; null: as it is"
    )
    categories: list[str] = described([], "categories that are used; empty: all")
    development: float = described(
        0.15, "of what is split: share of the development goals", at_least=0, below=1
    )
    test: float = described(0.25, "of what is split: share of the test goals", at_least=0, below=1)
    split_seed: int = described(0, "decides which goal is in which split", at_least=0)

    def __post_init__(self) -> None:
        several = any(getattr(self.files, split) for split in SPLITS)
        if several and self.file:
            raise ConfigError("file and files are both given; write one of them")
        if self.development + self.test >= 1:
            raise ConfigError("development and test must leave something to train on")


class RedTeamScenario(Scenario):
    """Goals in the splits ``train``, ``development`` and ``test``, no goal in two of them.

    The columns ``prompt`` and ``category`` are always there, beside those of the file; harmless
    goals have ``word`` too, for the scorer ``lexicon`` with ``words_key: word``. Which goal is in
    which split depends on ``split_seed`` alone; the run's seed decides the order of training.
    """

    Config: ClassVar[type] = RedTeamConfig

    def build(self, seed: int) -> ScenarioInstance:
        """Read the goals, and split them where one source has all.

        Raises:
            ConfigError: a file cannot be used, a goal is in two splits, or there are none.
        """
        section = self.config
        named = {split: section.files[split] for split in SPLITS if section.files[split]}
        if named:
            datasets = {
                split: self._chosen_goals(self._read(path)) for split, path in named.items()
            }
            _check_disjoint(datasets, named)
        else:
            goals = harmless_goals() if section.file is None else self._read(section.file)
            datasets = self._split(self._chosen_goals(goals))
        order = np.random.default_rng([seed, 1]).permutation(len(datasets.get("train", ())))
        if "train" in datasets:
            datasets["train"] = [datasets["train"][i] for i in order]
        return ScenarioInstance(name="red_team", datasets=datasets)

    def _read(self, path: str) -> list[dict[str, Any]]:
        return read_goals(path, self.config.prompt_key, self.config.category_key)

    def _chosen_goals(self, goals: Sequence[dict[str, Any]]) -> list[DataItem]:
        """The goals of the chosen categories, filled into the template, without duplicates.

        Raises:
            ConfigError: there is no such category, or the template names no column.
        """
        chosen = self.config.categories
        has = dict.fromkeys(goal["category"] for goal in goals)
        for name in chosen:
            if name not in has:
                raise ConfigError(
                    f"scenario red_team has no category {name!r}; it has: "
                    f"{', '.join(filter(None, has)) or 'none'}"
                )
        template = self.config.template
        found: dict[str, DataItem] = {}
        for goal in goals:
            if chosen and goal["category"] not in chosen:
                continue
            if template is not None or "prompt" not in goal:
                told = fill_template(TEMPLATE if template is None else template, goal, "template")
                goal = {**goal, "prompt": told}
            found.setdefault(goal["prompt"], goal)
        return list(found.values())

    def _split(self, goals: Sequence[DataItem]) -> dict[str, list[DataItem]]:
        """Every category in its share: permuted, one behind the other, and then each n-th."""
        section = self.config
        by_category: dict[str, list[DataItem]] = {}
        for goal in goals:
            by_category.setdefault(goal["category"], []).append(goal)
        ordered = [
            own[i]
            for number, own in enumerate(by_category.values())
            for i in np.random.default_rng([section.split_seed, number]).permutation(len(own))
        ]
        test, rest = _each(ordered, section.test)
        development, train = _each(rest, section.development / (1.0 - section.test))
        return {"train": train, "development": development, "test": test}


def _each(goals: Sequence[DataItem], share: float) -> tuple[list[DataItem], list[DataItem]]:
    """A share of ``goals``, evenly spread over them, and the others."""
    taken: list[DataItem] = []
    rest: list[DataItem] = []
    for number, goal in enumerate(goals):
        before, after = (int((number + more) * share + _ROUNDING) for more in (0, 1))
        (taken if after > before else rest).append(goal)
    return taken, rest


def _check_disjoint(datasets: Mapping[str, Sequence[DataItem]], named: Mapping[str, str]) -> None:
    seen: dict[str, str] = {}
    for split, goals in datasets.items():
        for goal in goals:
            other = seen.setdefault(goal["prompt"], split)
            if other != split:
                raise ConfigError(
                    f"goal {goal['prompt']!r:.60} of {named[split]} is in {named[other]} too; "
                    "leave it out of one, so that what is tested was not trained on"
                )
