"""The scenario ``reasoning_gym``: problems of named tasks, generated from a seed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.scenario import DataItem, Scenario, ScenarioInstance
from plugrl.core.wording import bounded, did_you_mean

logger = logging.getLogger(__name__)
#: Seed of the held-out problems, which are the same for every run.
_HELD_OUT = 20_250_601


@dataclass
class TaskConfig:
    """One task of reasoning-gym."""

    name: str = described("", "name of the task, such as chain_sum")
    weight: float = described(1.0, "its share of the problems", above=0, at_most=1e6)
    config: dict[str, Any] = described({}, "the task's own options")
    label: str | None = described(None, "value of the column data_source; null: the name")

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("name is missing; name a task of reasoning-gym, such as chain_sum")


@dataclass
class ReasoningGymConfig:
    """Which tasks, and how many problems. Held-out problems do not depend on the seed."""

    tasks: list[TaskConfig] = described([], "tasks with their shares and options")
    train: int = described(
        1000, "problems for training, from the run's seed", at_least=0, at_most=10**8
    )
    validation: int = described(
        128, "held-out problems; none of them is among the others", at_least=0, at_most=10**8
    )
    demonstrations: int = described(
        0, "problems with answers for supervised training", at_least=0, at_most=10**8
    )
    template: str = described("{question}", "the prompt; {question} is filled in")

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ConfigError("tasks is empty; name at least one, such as [{name: chain_sum}]")
        if "{question}" not in self.template:
            raise ConfigError("template has no {question}")


class ReasoningGymScenario(Scenario):
    """Problems of reasoning-gym, with columns ``prompt``, ``answer`` and ``data_source``.

    The evaluator ``reasoning_gym`` scores answers by the rules of each problem's task.
    """

    Config: ClassVar[type] = ReasoningGymConfig

    def build(self, seed: int) -> ScenarioInstance:
        """Generate the problems.

        Raises:
            ConfigError: reasoning-gym is not installed, there is no such task or option, or a
                task has no problem left for training.
        """
        return self._built(seed, {})

    def preview(self, seed: int) -> Mapping[str, Sequence[DataItem]] | None:
        """One problem of each split and task."""
        few = {s: min(1, self.config[s]) for s in ("train", "validation", "demonstrations")}
        return self._built(seed, few).datasets

    def _built(self, seed: int, sizes: Mapping[str, int]) -> ScenarioInstance:
        wanted = {
            s: sizes.get(s, self.config[s]) for s in ("validation", "demonstrations", "train")
        }
        seeds = {"validation": _HELD_OUT, "demonstrations": 2 * seed + 1, "train": 2 * seed}
        datasets: dict[str, list[DataItem]] = {}
        taken: set[tuple[str, str]] = set()
        if not sizes:
            names = ", ".join(task.name for task in self.config.tasks)
            logger.info(
                "scenario reasoning_gym: making %s problems of %s; fewer (scenario.train=100) "
                "take less time",
                f"{sum(wanted.values()):,}",
                bounded(names, 200),
            )
        for number, (split, size) in enumerate(wanted.items()):
            items = self._items(size, seeds[split] * 1_000_003 % 2**31)
            kept = [item for item in items if (item["data_source"], item["prompt"]) not in taken]
            if items and not kept and not sizes:
                raise ConfigError(
                    f"scenario reasoning_gym: each of {size} problems of split {split!r} is held "
                    "out too; the tasks have too few problems, so ask for fewer held-out ones or "
                    "give the tasks wider options"
                )
            if len(kept) < len(items):
                left = len(items) - len(kept)
                logger.info(
                    "scenario reasoning_gym: %s leaves out %d held-out problems", split, left
                )
            datasets[split] = kept or items
            if number == 0:
                taken = {(item["data_source"], item["prompt"]) for item in items}
        return ScenarioInstance(name="reasoning_gym", datasets=datasets)

    def _items(self, size: int, seed: int) -> list[DataItem]:
        tasks = self.config.tasks
        shares = np.array([task.weight for task in tasks], dtype=float)
        ends = np.rint(np.cumsum(shares) / shares.sum() * size).astype(int)
        items: list[DataItem] = []
        for task, count in zip(tasks, np.diff(ends, prepend=0), strict=True):
            items += self._task_items(task, seed, max(int(count), int(size > 0 and count == 0)))
        order = np.random.default_rng(seed).permutation(len(items))
        return [items[i] for i in order]

    def _task_items(self, task: Any, seed: int, count: int) -> list[DataItem]:
        if not count:
            return []
        options = _plain(task.config)
        entries = _entries(task.name, options, seed, count)
        return [
            {
                "prompt": self.config.template.replace("{question}", str(entry["question"])),
                "answer": str(entry["answer"]),
                "data_source": task.label or task.name,
                "reasoning_gym": {"task": task.name, "config": options, "entry": entry},
            }
            for entry in entries
        ]


def _entries(task: str, options: dict[str, Any], seed: int, count: int) -> list[dict[str, Any]]:
    try:
        from plugrl.scenarios.reasoning_gym import scoring
    except ImportError as error:
        raise ConfigError(
            f"scenario reasoning_gym cannot be used ({one_line(error)}); run: "
            'pip install "plugrl[reasoning-gym]"'
        ) from error
    known = scoring.names()
    if task not in known:
        raise ConfigError(f"reasoning-gym has no task {task!r}{did_you_mean(task, known, 3)}")
    try:
        dataset = scoring.dataset(task, options, seed, count)
        return [dict(dataset[i]) for i in range(count)]
    except Exception as error:
        raise ConfigError(
            f"scenario reasoning_gym: task {task!r} with {options} failed: {one_line(error)}"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) or type(value).__name__ == "ListConfig":
        return [_plain(item) for item in value]
    return value
