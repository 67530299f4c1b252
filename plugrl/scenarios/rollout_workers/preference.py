"""Preferences: trajectories made of a prompt and answers that somebody has judged."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.chat import encode_reply
from plugrl.core.text.learn.pairs import PREFERRED
from plugrl.core.text.rollout.task import RolloutTask
from plugrl.core.text.rollout.worker import RolloutWorkerConfig, demonstration_of
from plugrl.core.text.trajectory import Trajectory
from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


@dataclass
class PreferenceConfig(RolloutWorkerConfig):
    """Options of the rollout worker ``preference``."""

    layout: Literal["pairs", "labels"] = described(
        "pairs", "pairs: a chosen and a rejected answer a row; labels: one answer and its label"
    )
    chosen_key: str = described("chosen", "column with the preferred answer of a pair")
    rejected_key: str = described("rejected", "column with the other answer of a pair")
    completion_key: str = described("completion", "column with the answer, of layout labels")
    label_key: str = described("label", "column that says whether it is a good one, true or false")
    margin_key: str | None = described(
        None, "column with how much better the chosen answer is; null: no margins"
    )


class PreferenceRolloutWorker(SingleTurnRolloutWorker):
    """Gives judged answers as trajectories to learn from; sampled validation asks the model."""

    Config: ClassVar[type] = PreferenceConfig
    asks_now = False
    judges_training: ClassVar[bool] = False

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The columns of the layout."""
        return _columns(section, path)

    @classmethod
    def trajectories_per_attempt(cls, section: Mapping[str, Any]) -> int:
        """Two for a pair."""
        return 2 if section["layout"] == "pairs" else 1

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """An evaluator is optional; attempts at one problem would all be alike."""
        if check.root.data.rollout_repeat_n > 1:
            yield (
                "data.rollout_repeat_n",
                "must be 1 with rollout_worker preference: its answers come from the data",
            )
        if check.section.margin_key is not None and check.section.layout != "pairs":
            yield f"{check.path}.margin_key", "is for layout pairs; leave it out"

    def rollout(self, task: RolloutTask) -> list[Trajectory] | Awaitable[Trajectory]:
        """The judged answers of ``task``, each ended as its model ends answers.

        Raises:
            ConfigError: a column or a text is missing, the answers of a pair are equal, a label is
                neither true nor false, a margin is no number, or something is too long.
        """
        if task.is_val:
            return super().rollout(task)
        for setting, column in _columns(self.config, "rollout_worker").items():
            if task.data.get(column) is None:
                has = ", ".join(str(k) for k, value in task.data.items() if value is not None)
                raise ConfigError(
                    f"problem {task.item} has nothing in column {column!r} ({setting}); it has: "
                    f"{has or 'nothing'}"
                )
        prompt = self._encode(task)
        fields = self._margin(task)
        return [
            demonstration_of(
                task,
                self.config.model,
                prompt,
                self._answer(task, key),
                **{PREFERRED: liked, **fields},
            )
            for key, liked in self._answers(task)
        ]

    def _answers(self, task: RolloutTask) -> list[tuple[str, float]]:
        """The columns of the answers, and 1.0 for a preferred one, else 0.0."""
        config = self.config
        if config.layout == "labels":
            return [(config.completion_key, _label(task, config.label_key))]
        if task.data[config.chosen_key] == task.data[config.rejected_key]:
            raise ConfigError(
                f"problem {task.item} has equal answers in {config.chosen_key!r} and "
                f"{config.rejected_key!r}, so none is preferred; leave the row out"
            )
        return [(config.chosen_key, 1.0), (config.rejected_key, 0.0)]

    def _answer(self, task: RolloutTask, key: str) -> list[int]:
        where = f"problem {task.item} has"
        text = task.data[key]
        if not isinstance(text, str):
            kind = type(text).__name__
            raise ConfigError(f"{where} {kind} in column {key!r}; a text is expected")
        tokenizer = task.tokenizers[self.config.model]
        tokens = encode_reply(tokenizer, text, chat=task.is_chat)
        if len(tokens) == 1:
            raise ConfigError(f"{where} an empty answer in column {key!r}; leave the row out")
        limit = self.config.max_response_length
        if len(tokens) > limit:
            raise ConfigError(
                f"{where} an answer of {len(tokens)} tokens in column {key!r}, more than "
                f"rollout_worker.max_response_length={limit}; raise it or leave the row out"
            )
        return tokens

    def _margin(self, task: RolloutTask) -> dict[str, float]:
        key = self.config.margin_key
        if key is None:
            return {}
        margin = _number(task.data.get(key))
        if margin is None:
            raise ConfigError(
                f"problem {task.item} has {repr(task.data.get(key))[:40]} in column {key!r} "
                "(rollout_worker.margin_key); a finite number is expected"
            )
        return {"margin": margin}


def _columns(section: Mapping[str, Any], path: str) -> dict[str, str]:
    names = ["chosen_key", "rejected_key"]
    if section["layout"] == "labels":
        names = ["completion_key", "label_key"]
    if section["margin_key"] is not None:
        names.append("margin_key")
    return {f"{path}.{name}": section[name] for name in names}


#: What files write for true and false.
_LABELS = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}


def _label(task: RolloutTask, key: str) -> float:
    value = task.data[key]
    label = _LABELS.get(str(value).strip().lower())
    if label is None:
        raise ConfigError(
            f"problem {task.item} has {repr(value)[:40]} in column {key!r} "
            "(rollout_worker.label_key); true or false is expected"
        )
    return label


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
