"""The evaluator ``reward_model``: a trained model says how good an answer is."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, PlugrlError
from plugrl.core.plugins.user_code.error_location import first_line
from plugrl.core.text.batch import Batch
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationItem,
    EvaluationRunResult,
    Evaluator,
)
from plugrl.core.text.inference.chat import encode_prompt, encode_reply, is_messages
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.loading import hub_tokenizer, without_bars
from plugrl.plugins.transformers.scorers.models import folder_of, in_batches, pad_with_mask

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.inference.services import TrainService
    from plugrl.core.text.inference.tokenizer import Tokenizer

#: Decimals of a reward: those below depend on which answers are scored together.
_DECIMALS = 4


@dataclass
class RewardModelConfig:
    """Options of the evaluator ``reward_model``."""

    path: str | None = described(
        None, "folder of a sequence classifier with one label", file="optional"
    )
    run: str | None = described(
        None, "run of trainer reward_model: its folder, or its id in runs/", file="optional"
    )
    checkpoint: str = described("newest", "of run: newest, best or a step")
    model: str = described("policy", "of run: the model, a key of its `models`")
    batch_size: int = described(16, "answers that are scored at once", at_least=1, at_most=10**6)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.run is None):
            raise ConfigError("give either path (a folder) or run (a trained reward model)")


class RewardModelEvaluator(Evaluator):
    """Rewards an answer with the number that a reward model gives to prompt and answer.

    It is read at the end token behind the answer, whether or not the answer was cut off.
    """

    Config: ClassVar[type] = RewardModelConfig
    metric_names: ClassVar[Collection[str]] = ("reward_model",)

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """A folder that holds no sequence classifier, or a run that holds no reward model."""
        path = check.section.path
        if path is not None:
            fault = _folder_fault(folder_of(path))
            if fault:
                yield f"{check.path}.path", f"{path}: {fault}"
            return
        try:
            fault = _run_fault(check.section)
        except PlugrlError as error:
            fault = str(error)
        if fault:
            yield f"{check.path}.run", fault

    def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Score one answer.

        Raises:
            ConfigError: the reward model cannot be loaded.
            ValueError: prompt and answer are longer than its context.
        """
        return self.evaluate_batch([(data, evaluation_target)])[0]

    def evaluate_batch(self, items: Sequence[EvaluationItem]) -> list[EvaluationRunResult]:
        """Score several answers.

        Raises:
            ConfigError: the reward model cannot be loaded.
            ValueError: prompt and answer are longer than its context.
        """
        rows = [self._tokens(data, target) for data, target in items]
        rewards = [0.0] * len(rows)
        for places in in_batches(rows, self.config.batch_size):
            scored = self._scorer([rows[i] for i in places])
            for i, reward in zip(places, scored, strict=True):
                rewards[i] = round(reward, _DECIMALS)
        return [EvaluationRunResult(r, metrics={"reward_model": r}) for r in rewards]

    def _tokens(self, data: Mapping[str, Any], target: BaseEvaluationTarget) -> list[int]:
        tokenizer, limit = self._scorer.tokenizer, self._scorer.limit
        prompt = data[self.prompt_key]
        answer = encode_reply(tokenizer, target.final_answer, chat=is_messages(prompt))
        tokens = [*encode_prompt(tokenizer, prompt), *answer]
        if len(tokens) > limit:
            raise ValueError(
                f"prompt and answer have {len(tokens)} tokens, and the reward model takes {limit}"
            )
        return tokens

    @cached_property
    def _scorer(self) -> _Scorer:
        if self.config.path is not None:
            return _Classifier(folder_of(self.config.path))
        return _of_run(self.config.run, self.config.checkpoint, self.config.model)


class _Scorer(Protocol):
    tokenizer: Tokenizer
    limit: int

    def __call__(self, rows: Sequence[list[int]], /) -> list[float]:
        """The reward of each row of tokens."""


class _Classifier:
    """A sequence classifier from a folder; its own code finds the token that is scored."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForSequenceClassification

        fault = _folder_fault(folder)
        if fault:
            raise ConfigError(f"reward model {folder}: {fault}")
        try:
            with without_bars():
                self._model, info = AutoModelForSequenceClassification.from_pretrained(
                    folder, local_files_only=True, output_loading_info=True
                )
            self.tokenizer: Tokenizer = hub_tokenizer(folder)
        except PlugrlError:
            raise
        except Exception as error:
            raise ConfigError(f"reward model {folder}: {first_line(error)}") from error
        if info["missing_keys"]:
            name = sorted(info["missing_keys"])[0]
            raise ConfigError(f"reward model {folder}: it holds no weights {name}")
        self._model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        config = self._model.config.get_text_config()
        self.limit = int(getattr(config, "max_position_embeddings", 2**31))
        self._padding = self._model.config.pad_token_id

    @torch.no_grad()
    def __call__(self, rows: Sequence[list[int]], /) -> list[float]:
        if self._padding is None and len(rows) > 1:
            return [self([row])[0] for row in rows]
        ids, mask = pad_with_mask(rows, self._padding or 0, self._model.device)
        logits = self._model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return [float(score) for score in logits[:, 0].float()]


class _Checkpoint:
    """The value head of a train service, at the last token of each row."""

    def __init__(self, service: TrainService, tokenizer: Tokenizer, limit: int) -> None:
        self._service = service
        self.tokenizer = tokenizer
        self.limit = limit

    def __call__(self, rows: Sequence[list[int]], /) -> list[float]:
        # The value of the state before one more token, which is not read.
        end = self.tokenizer.eos_token_id
        made = [Trajectory([*row, end], [0] * len(row) + [1]) for row in rows]
        values = self._service.compute_values(
            Batch.from_trajectories(made, pad_token_id=self.tokenizer.pad_token_id)
        )
        return values.sum(1).tolist()


def _of_run(run: str, checkpoint: str, name: str) -> _Scorer:
    from plugrl.core.loaded_run import open_checkpoint
    from plugrl.core.text.trajectory_trainer import TrajectoryTrainer

    with open_checkpoint(run, checkpoint=checkpoint, alone=False) as saved:
        if not isinstance(saved.trainer, TrajectoryTrainer):
            raise ConfigError(f"run {run} trains no model of language; name one of reward_model")
        model = saved.trainer.loaded_models()[name]
        limit = model.inference.max_sequence_length
        return _Checkpoint(model.trained(), model.inference.tokenizer, limit)


def _run_fault(section: Any) -> str:
    """What is wrong with the run of a reward model; empty: nothing that its files show.

    Raises:
        PlugrlError: there is no such run or checkpoint.
    """
    from plugrl.core.loaded_run import find_checkpoint
    from plugrl.core.run.folder import find
    from plugrl.core.run.initialization import read_config

    if section.run == "latest":
        return "latest is the run that trains, once it has begun; name that of the reward model"
    folder = find(os.path.expanduser(section.run), Path("runs"))
    find_checkpoint(folder, section.checkpoint)
    tree = read_config(folder, "opened")
    models = tree.get("models") or {}
    if tree["trainer"].get("phases"):
        # Each phase has models of its own, which are looked at when they are loaded.
        return ""
    if section.model not in models:
        return f"run {folder} has no model {section.model!r}; it has: {', '.join(models) or 'none'}"
    if not (models[section.model].get("train") or {}).get("value_head"):
        return (
            f"model {section.model!r} of run {folder} has no value head; name a run of trainer "
            "reward_model"
        )
    return ""


def _folder_fault(folder: Path) -> str:
    """What is wrong with the folder of a reward model; empty: nothing that its header shows."""
    from transformers import AutoConfig

    if not folder.is_dir():
        return "there is no such folder; models are never downloaded"
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        return f"no usable model folder: {first_line(error)}"
    architectures = getattr(config, "architectures", None) or []
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        found = ", ".join(architectures) or "none named"
        return f"no sequence classifier ({found}); `plugrl export` writes one of a reward model"
    if config.num_labels != 1:
        return f"it has {config.num_labels} labels; a reward model has one"
    return ""
