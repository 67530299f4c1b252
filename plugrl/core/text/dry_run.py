"""Trying one optimizer step of the largest size, to see whether it fits into memory."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from plugrl.core.config.plan import MICRO_BATCH_ROWS
from plugrl.core.errors import RunError
from plugrl.core.run.process.memory import format_gib, lacks_memory, total_bytes
from plugrl.core.text.batch import Batch
from plugrl.core.text.memory_advice import training_remedies
from plugrl.core.text.models import Models
from plugrl.core.text.trajectory import Trajectory


class TrialTrainer(Protocol):
    """What a dry run asks of a trainer that trains its models itself."""

    config: Any

    @property
    def hyper_params(self) -> Any:
        """Everything that defines the experiment."""

    @property
    def settings(self) -> Any:
        """What does not change the algorithm."""

    @property
    def models(self) -> Models:
        """The models, loaded when they are asked for."""

    @property
    def rows_per_unit(self) -> int:
        """Rows that are never split between micro-batches."""

    def trajectories_per_attempt(self) -> int:
        """Trajectories that one attempt of the rollout worker gives."""

    def trial_batch(self, batch: Batch) -> Batch:
        """``batch`` with everything that the loss needs."""

    def trial_step(self, model: str, batch: Batch) -> None:
        """An optimizer step of ``model`` on ``batch`` and a second backward pass."""


def try_step(trainer: TrialTrainer) -> dict[str, float]:
    """One optimizer step of each trained model on its longest and largest micro-batch.

    A second backward pass follows, as in all steps after the first: it finds the optimizer's
    moments in memory.

    Returns:
        ``peak_bytes`` and ``total_bytes`` of the device's memory, ``rows`` and ``tokens`` of the
        largest micro-batch and its rows. On a CPU the peak is that of the process.

    Raises:
        RunError: it does not fit; the message names the settings to lower.
    """
    device = str(trainer.settings.device)
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
    advice = "take a smaller model, or set models.<name>.source.dtype=bfloat16"
    with _fitting(device, "the models do not", advice):
        names = list(trainer.models.trained)
    sizes = [_try_model(trainer, name, device) for name in names]
    peak, total = _peak(device), total_bytes(device)
    if peak > total:
        raise RunError(
            f"{format_gib(peak)} were needed of {format_gib(total)} ({device}): {_advice(trainer)}"
        )
    rows, tokens = max(sizes, default=(0, 0), key=lambda size: size[0] * size[1])
    return {
        "peak_bytes": float(peak),
        "total_bytes": float(total),
        "rows": float(rows),
        "tokens": float(tokens),
    }


def _try_model(trainer: TrialTrainer, name: str, device: str) -> tuple[int, int]:
    rows, tokens = _size(trainer, name)
    what = f"model {name!r}: {rows} sequences of {tokens} tokens do not"
    with _fitting(device, what, _advice(trainer, name)):
        trainer.trial_step(name, _batch(trainer, name, rows, tokens))
    return rows, tokens


def _size(trainer: TrialTrainer, name: str) -> tuple[int, int]:
    """Rows and tokens a row of the largest micro-batch that the configuration allows."""
    params = trainer.hyper_params
    worker, train = params.rollout_worker, params.models[name].train
    tokens = min(
        int(worker.max_prompt_length) + int(worker.max_response_length),
        trainer.models[name].inference.max_sequence_length,
    )
    attempts = params.data.batch_size * params.data.rollout_repeat_n
    loaded = attempts * trainer.trajectories_per_attempt()
    sequences = max(loaded, params.trajectory_pool.batch_size or 0)
    rows = -(-sequences // trainer.config.algorithm.minibatches)
    # Where no setting says so, a service on a CPU takes so many, and one on a GPU what fits.
    on_device = str(trainer.settings.device).startswith("cuda")
    fitting = train.get("micro_batch_size") or (rows if on_device else MICRO_BATCH_ROWS)
    if train.get("micro_batch_tokens"):
        fitting = train.micro_batch_tokens // tokens
    # A unit is never split, however small the micro-batches are.
    unit = trainer.rows_per_unit
    return max(1, min(rows, fitting) // unit) * unit, tokens


def _batch(trainer: TrialTrainer, name: str, rows: int, tokens: int) -> Batch:
    """Rows without a common prompt, of which as much is trained as an answer can have."""
    inference, worker = trainer.models[name].inference, trainer.hyper_params.rollout_worker
    answer = min(int(worker.max_response_length), tokens - 1)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(inference.vocabulary_size, (rows, tokens), generator=generator)
    mask = [0] * (tokens - answer) + [1] * answer
    made = Batch.from_trajectories(
        [
            Trajectory(
                row.tolist(), mask, logprobs=[0.0] * tokens, reward=float(i % 2), run_id=i,
                model=name,
            )
            for i, row in enumerate(ids)
        ],
        pad_token_id=inference.tokenizer.pad_token_id,
        temperature=worker.get("temperature") or 1.0,
    )  # fmt: skip
    batch = trainer.trial_batch(made)
    if "advantages" in batch.values:
        # Rows without an advantage are left out of a step; here each must count.
        signs = 1.0 - 2.0 * (torch.arange(len(batch)) % 2)[:, None]
        batch.values["advantages"] = signs * batch.values["loss_mask"]
    return batch


def _advice(trainer: TrialTrainer, name: str | None = None) -> str:
    params = trainer.hyper_params
    remedies: list[str] = []
    for model in [name] if name else params.models:
        train = params.models[model].get("train")
        remedies += [] if train is None else training_remedies(model, train)
    length = params.rollout_worker.max_response_length
    return ", or ".join([*remedies, f"lower rollout_worker.max_response_length={length}"])


@contextmanager
def _fitting(device: str, what: str, advice: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not lacks_memory(error):
            raise
        total = format_gib(total_bytes(device))
        raise RunError(f"{what} fit into the memory of {device} ({total}): {advice}") from error


def _peak(device: str) -> int:
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
