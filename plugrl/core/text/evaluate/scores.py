"""What a validation is worth, and what is shown and kept of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError
from plugrl.core.text.evaluate.validation import REFERENCE
from plugrl.core.wording import bounded, did_you_mean

if TYPE_CHECKING:
    from plugrl.core.run.run import Run
    from plugrl.core.text.models import Model, Models
    from plugrl.core.text.trajectory import Trajectory

logger = logging.getLogger(__name__)
#: Characters of a prompt or an answer that are kept of an attempt in training.
_LONGEST = 10_000
#: Ends of the names of metrics that are left out of a line.
_DETAILS = ("invalid", "response_length", "truncated", "reward_min", "reward_max")


def report_score(run: Run, section: Any, scores: Mapping[str, float], default: str) -> None:
    """Tell the run how good this step is, so that the best checkpoint stays.

    Args:
        run: is told.
        section: ``validate``, which may name the score.
        scores: metrics of the validation.
        default: the metric that counts when the section names none.

    Raises:
        ConfigError: the validation gave no such metric.
    """
    name = section.score or default
    if name not in scores:
        if run.best_score is not None:
            # It was there before; this time nothing valid gave it.
            logger.warning("validate.score: this validation gave no %s", name)
            return
        known = ", ".join(sorted(scores))
        raise ConfigError(
            f"validate.score: no metric {name!r}; validation gave: {known}"
            f"{did_you_mean(name, scores, 1)}"
        )
    mode = section.score_mode
    run.report_score(scores[name] if mode == "max" else -scores[name], name, mode=mode)


def report_evaluation(
    run: Run,
    step: int,
    scores: Mapping[str, float],
    samples: Iterable[Mapping[str, Any]] = (),
    *,
    name: str = "validation",
) -> None:
    """Say what an evaluation during training found: a line, some samples, and to the plugins.

    Args:
        run: of the trainer.
        step: after which it took place.
        scores: its metrics.
        samples: what is kept of it.
        name: of the file of samples.
    """
    logger.info("%s: %s", run.label(step), headline(scores))
    for sample in samples:
        run.sample(name, sample)
    run.hooks.call("plugrl_evaluation_end", run=run, step=step, metrics=scores)


def headline(scores: Mapping[str, float]) -> str:
    """The rewards and the evaluators' own metrics of a validation, on one line."""
    return "  ".join(f"{k} {v:.4g}" for k, v in scores.items() if not k.endswith(_DETAILS))


def evaluated_sample(trajectory: Trajectory, model: Model, step: int) -> dict[str, Any]:
    """What is kept of one attempt of an evaluation."""
    tokens, trained = trajectory.tokens, trajectory.loss_mask
    start = trained.index(1) if 1 in trained else len(tokens)
    decode = model.inference.tokenizer.decode
    return {
        "step": step,
        "problem": trajectory.group_id,
        "attempt": trajectory.run_id,
        "model": trajectory.model,
        "prompt": decode(tokens[:start]),
        "answer": decode(tokens[start:]),
        "ground_truth": trajectory.extra_fields.get(REFERENCE),
        "reward": trajectory.reward if trajectory.valid else None,
        "failure": trajectory.failure,
        "finish_reason": trajectory.finish_reason,
        **trajectory.metrics,
    }


def keep_rollouts(
    run: Run, step: int, trajectories: Sequence[Trajectory], models: Models, count: int
) -> None:
    """Write some attempts of a training step to ``samples/rollouts.jsonl``.

    Args:
        run: of the trainer.
        step: in which they were sampled.
        trajectories: all of it.
        models: decode the tokens.
        count: how many are kept, the same distance apart; 0: none.
    """
    # The first ones alone would all be attempts at one problem.
    for number in range(min(count, len(trajectories))):
        t = trajectories[number * len(trajectories) // min(count, len(trajectories))]
        record = evaluated_sample(t, models[t.model], step)
        # Held-out problems alone have their reference answer with them.
        del record["ground_truth"]
        texts = {name: bounded(record[name], _LONGEST) for name in ("prompt", "answer")}
        run.sample("rollouts", record | texts)
