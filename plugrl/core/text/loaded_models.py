"""Language models of a loaded run: sampled from, and exported."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from plugrl.core.errors import UsageError
from plugrl.core.loaded_run import LoadedRun
from plugrl.core.plugins.user_code.working_folder import display_path
from plugrl.core.run.atomic_writes import atomic_export, remove_stale_exports
from plugrl.core.text.inference.completions import check_completions
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams, ending, stops_of

if TYPE_CHECKING:
    from plugrl.core.text.models import Model, Models


def sample_answers(
    saved: LoadedRun,
    model: str,
    prompts: Sequence[str],
    sampling: SamplingParams,
    *,
    samples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Answers of one model, ``samples`` a prompt, in the order of the prompts.

    Raises:
        ConfigError: there is no such model, or a prompt is empty or cannot be encoded.
    """
    with closing(text_trainer(saved).loaded_models()) as models:
        service = models[model].inference
        tokenizer = service.tokenizer
        sampling = replace(sampling, **trained_stops(saved))
        sampling = ending(sampling, tokenizer)
        asked = list(itertools.product(enumerate(prompts), range(samples)))
        requests = [
            GenerationRequest(tokenizer.encode(prompt), sampling, (seed, 0, item, run, 0))
            for (item, prompt), run in asked
        ]
        answers = check_completions(
            type(service).__name__, service.generate(requests), requests, service.vocabulary_size
        )
        return [
            {
                "prompt": prompt,
                "sample": run,
                "answer": tokenizer.decode(answer.tokens),
                "finish_reason": answer.finish_reason,
                "tokens": answer.tokens,
                "logprobs": answer.logprobs,
            }
            for ((_, prompt), run), answer in zip(asked, answers, strict=True)
        ]


def trained_stops(saved: LoadedRun) -> dict[str, Any]:
    """What ended the answers that a run trained on, as arguments of ``SamplingParams``."""
    section = saved.trainer.hyper_params.get("rollout_worker")
    return {} if section is None else stops_of(section)


def export(saved: LoadedRun, model: str, folder: str | Path, *, adapter: bool = False) -> str:
    """Write a trained model to ``folder`` and say what was written.

    Raises:
        UsageError: the folder is not empty or cannot be written, or the model has no adapter.
        ConfigError: there is no such model, or it is frozen.
    """
    from safetensors import SafetensorError

    folder = Path(folder)
    remove_stale_exports(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there and not empty; name a new folder")
    trainer = text_trainer(saved)
    with closing(trainer.loaded_models()) as models:
        try:
            with atomic_export(folder) as unfinished:
                trainer.export(models[model], unfinished, adapter=adapter)
        except (OSError, SafetensorError) as error:
            said = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot write {folder}: {said}") from error
    written = f"wrote {'the adapter of ' if adapter else ''}{model} of {saved.origin} to {folder}"
    stops = [f"rollout_worker.{name}" for name, value in trained_stops(saved).items() if value]
    if not stops:
        return written
    # In generation_config.json texts would make generate() of transformers ask for a tokenizer.
    return f"{written}; its answers ended at {' and '.join(stops)} too, which no model folder says"


class TextTrainer(Protocol):
    """What trainers of language models have for those that open a saved state."""

    def loaded_models(self) -> Models:
        """The models with the weights of the loaded state."""

    def export(self, model: Model, folder: Path, *, adapter: bool = False) -> None:
        """Write one of them to a new folder."""


def text_trainer(saved: LoadedRun) -> TextTrainer:
    """The trainer of language models that was opened.

    Raises:
        UsageError: it is another sort of trainer.
    """
    trainer: Any = saved.trainer
    check_language_models(type(trainer), saved.folder)
    found: TextTrainer = trainer
    return found


def check_language_models(trainer: type, run: str | Path | None) -> None:
    """Refuse a trainer without language models.

    Args:
        trainer: a class.
        run: of which it is, for the message.

    Raises:
        UsageError: it has none.
    """
    if hasattr(trainer, "loaded_models") and hasattr(trainer, "export"):
        return
    name = trainer.__name__
    if hasattr(trainer, "trained_policies"):
        shown = "RUN" if run is None else display_path(Path(run))
        raise UsageError(
            f"{name} trains small networks, not a language model; run plugrl eval {shown} "
            f'validation, or let plugrl.load_run("{shown}").policies act in Python'
        )
    raise UsageError(f"{name} trains no language model, so there is nothing of that kind here")
