"""Preferences: trajectories made of a prompt and answers that somebody has judged."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.data.columns import Form, check_forms, extract_prompt, rows_with, tools_of
from plugrl.core.text.inference.chat import (
    as_messages,
    encode_conversation,
    encode_reply,
    is_messages,
)
from plugrl.core.text.learn.pairs import PREFERRED
from plugrl.core.text.rollout.task import RolloutTask
from plugrl.core.text.rollout.worker import RolloutWorkerConfig, demonstration_of
from plugrl.core.text.trajectory import Trajectory
from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.scenario import DataItem


@dataclass
class PreferenceConfig(RolloutWorkerConfig):
    """Options of the rollout worker ``preference``."""

    layout: Literal["auto", "pairs", "labels"] = described(
        "auto",
        "pairs: a chosen and a rejected answer a row; labels: one answer and its label; auto: as "
        "the columns say",
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
        return 1 if section["layout"] == "labels" else 2

    @classmethod
    def read_rows(
        cls,
        items: Sequence[DataItem],
        section: Mapping[str, Any],
        data: Mapping[str, Any],
        place: str,
        *,
        is_val: bool,
    ) -> Sequence[DataItem]:
        """The rows; a prompt that both answers begin with becomes one of its own.

        Raises:
            ConfigError: a row has no form that is known, or another than those before it, or two
                answers begin with nothing in common.
        """
        keys = data["prompt_key"], section["chosen_key"], section["rejected_key"]
        pairs, implicit = Form(keys, keys[1:]), Form(keys[1:], keys[1:])
        completion, label = section["completion_key"], section["label_key"]
        labels = Form((keys[0], completion, label), (completion,))
        accepted = {
            "pairs": [pairs, implicit],
            "labels": [labels],
            "auto": [pairs, labels, implicit],
        }
        form = check_forms(items, accepted[section["layout"]], place)
        if form == implicit or (form == pairs and any(_is_beginning(item, keys) for item in items)):
            return rows_with(items, lambda row, where: _explicit(row, where, keys))
        return items

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """An evaluator is optional; attempts at one problem would all be alike."""
        if check.root.data.rollout_repeat_n > 1:
            yield (
                "data.rollout_repeat_n",
                "must be 1 with rollout_worker preference: its answers come from the data",
            )
        if check.section.margin_key is not None and check.section.layout == "labels":
            yield f"{check.path}.margin_key", "is for layout pairs; leave it out"

    def rollout(self, task: RolloutTask) -> list[Trajectory] | Awaitable[Trajectory]:
        """The judged answers of ``task``, each ended as its model ends answers.

        Raises:
            ConfigError: a column or a text is missing, the answers of a pair are equal, a label is
                neither true nor false, a margin is no number, or something is too long.
        """
        if task.is_val:
            return super().rollout(task)
        layout = self._layout(task)
        for setting, column in _columns(
            {**self.config, "layout": layout}, "rollout_worker"
        ).items():
            if task.data.get(column) is None:
                has = ", ".join(str(k) for k, value in task.data.items() if value is not None)
                raise ConfigError(
                    f"problem {task.item} has nothing in column {column!r} ({setting}); it has: "
                    f"{has or 'nothing'}"
                )
        fields = self._margin(task)
        return [
            self._trajectory(task, key, **{PREFERRED: liked, **fields})
            for key, liked in self._answers(task, layout)
        ]

    def _layout(self, task: RolloutTask) -> str:
        layout: str = self.config.layout
        if layout != "auto":
            return layout
        return "labels" if task.data.get(self.config.chosen_key) is None else "pairs"

    def _answers(self, task: RolloutTask, layout: str) -> list[tuple[str, float]]:
        """The columns of the answers, and 1.0 for a preferred one, else 0.0."""
        config = self.config
        if layout == "labels":
            return [(config.completion_key, _label(task, config.label_key))]
        if task.data[config.chosen_key] == task.data[config.rejected_key]:
            raise ConfigError(
                f"problem {task.item} has equal answers in {config.chosen_key!r} and "
                f"{config.rejected_key!r}, so none is preferred; leave the row out"
            )
        return [(config.chosen_key, 1.0), (config.rejected_key, 0.0)]

    def _trajectory(self, task: RolloutTask, key: str, **fields: Any) -> Trajectory:
        """A prompt with one of its answers."""
        model, answer = self.config.model, task.data[key]
        if not is_messages(answer):
            prompt = self._encode(task)
            tokens = self._answer(task, key)
            return demonstration_of(task, model, prompt, tokens, **fields)
        before, place = task.messages, f"problem {task.item}"
        said = encode_conversation(
            task.tokenizers[model],
            [*before, *as_messages(answer, f"{place}: {key!r}")],
            model,
            prompt=len(before),
            tools=tools_of(task.data, place),
        )
        prompt, tokens = said.tokens[: said.prompt], said.tokens[said.prompt :]
        self._check_prompt(task, prompt)
        if 1 not in said.mask:
            raise ConfigError(
                f"{place} has no reply of the assistant in column {key!r}; leave the row out"
            )
        self._check_answer(task, key, tokens)
        return demonstration_of(task, model, prompt, tokens, mask=said.mask, **fields)

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
        self._check_answer(task, key, tokens)
        return tokens

    def _check_answer(self, task: RolloutTask, key: str, tokens: Sequence[int]) -> None:
        limit = self.config.max_response_length
        if len(tokens) > limit:
            raise ConfigError(
                f"problem {task.item} has an answer of {len(tokens)} tokens in column {key!r}, "
                f"more than rollout_worker.max_response_length={limit}; raise it or leave the row "
                "out"
            )

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
    elif section["layout"] == "auto":
        # Which of them are read is known of rows; what was named must be there.
        usual = PreferenceConfig()
        pairs = (section["chosen_key"], section["rejected_key"]) != (
            usual.chosen_key,
            usual.rejected_key,
        )
        names = names if pairs else []
    if section["margin_key"] is not None:
        names.append("margin_key")
    return {f"{path}.{name}": section[name] for name in names}


def _is_beginning(item: DataItem, keys: tuple[str, str, str]) -> bool:
    """Whether the prompt is text beside answers of messages, which have it as messages, too."""
    return isinstance(item[keys[0]], str) and is_messages(item[keys[1]])


def _explicit(item: DataItem, place: str, keys: tuple[str, str, str]) -> dict[str, Any]:
    """The columns of a row whose answers begin with the prompt.

    Raises:
        ConfigError: they begin with nothing in common.
    """
    prompt, chosen, rejected = keys
    if item.get(prompt) is not None and not _is_beginning(item, keys):
        return {}
    parts = extract_prompt(item[chosen], item[rejected])
    if not parts[0] and item[chosen] != item[rejected]:
        raise ConfigError(
            f"{place}: {chosen!r} and {rejected!r} begin with nothing in common, so that there is "
            f"no prompt; add a column {prompt!r}"
        )
    return dict(zip(keys, parts, strict=True))


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
