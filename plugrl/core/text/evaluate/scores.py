"""What a validation is worth, and what is shown and kept of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError
from plugrl.core.run.progress import DETAIL
from plugrl.core.text.evaluate.validation import REFERENCE
from plugrl.core.wording import bounded, did_you_mean

if TYPE_CHECKING:
    from plugrl.core.run.run import Run
    from plugrl.core.text.models import Model, Models
    from plugrl.core.text.trajectory import Trajectory

logger = logging.getLogger(__name__)
#: Characters of a prompt or an answer that are kept of an attempt in training.
_LONGEST = 10_000
#: Tokens of an attempt that are kept one by one, from the first trained one.
_MOST_TOKENS = 1000
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
    logger.info("%s: %s", run.label(step), headline(scores), extra=DETAIL)
    for sample in samples:
        run.sample(name, sample)
    run.hooks.call("plugrl_evaluation_end", run=run, step=step, metrics=scores)


def headline(scores: Mapping[str, float]) -> str:
    """The rewards and the evaluators' own metrics of a validation, on one line."""
    return "  ".join(f"{k} {v:.4g}" for k, v in scores.items() if not k.endswith(_DETAILS))


def evaluated_sample(trajectory: Trajectory, model: Model, step: int) -> dict[str, Any]:
    """What is kept of one attempt of an evaluation."""
    tokens, start = trajectory.tokens, _response_start(trajectory)
    decode = model.inference.tokenizer.decode
    agent = trajectory.extra_fields.get("agent")
    return {
        "step": step,
        "problem": trajectory.group_id,
        "attempt": trajectory.run_id,
        "model": trajectory.model,
        **({} if agent is None else {"agent": str(agent)}),
        "prompt": decode(tokens[:start]),
        "answer": decode(tokens[start:]),
        "ground_truth": trajectory.extra_fields.get(REFERENCE),
        "reward": trajectory.reward if trajectory.valid else None,
        "failure": trajectory.failure,
        "finish_reason": trajectory.finish_reason,
        **trajectory.metrics,
    }


def _response_start(trajectory: Trajectory) -> int:
    """Where the first trained token is; behind the last token if there is none."""
    trained = trajectory.loss_mask
    return trained.index(1) if 1 in trained else len(trained)


def chosen_rollouts(trajectories: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """The trajectories of some attempts, which are the same distance apart.

    All trajectories of an attempt are among them, one for each agent, so that a dialogue is whole.

    Args:
        trajectories: of a training step.
        count: how many attempts; 0: none.
    """
    attempts: dict[tuple[str, int], list[Trajectory]] = {}
    for trajectory in trajectories:
        attempts.setdefault((trajectory.group_id, trajectory.run_id), []).append(trajectory)
    listed, kept = list(attempts.values()), min(count, len(attempts))
    # The first ones alone would all be attempts at one problem.
    return [t for number in range(kept) for t in listed[number * len(listed) // kept]]


def keep_rollouts(
    run: Run,
    step: int,
    chosen: Sequence[Trajectory],
    models: Models,
    advantages: Mapping[int, Sequence[float]],
) -> None:
    """Write attempts of a training step to ``samples/rollouts.jsonl``.

    Args:
        run: of the trainer.
        step: in which they were sampled.
        chosen: of :func:`chosen_rollouts`.
        models: decode the tokens.
        advantages: of each token of those that this step trained on, by ``id`` of the trajectory.
    """
    for t in chosen:
        record = evaluated_sample(t, models[t.model], step)
        # Held-out problems alone have their reference answer with them.
        del record["ground_truth"]
        record |= {name: bounded(record[name], _LONGEST) for name in ("prompt", "answer")}
        found = advantages.get(id(t))
        record["tokens"] = _response_tokens(t, models[t.model], found)
        run.sample("rollouts", record)


def _response_tokens(
    t: Trajectory, model: Model, advantages: Sequence[float] | None
) -> dict[str, Any]:
    """The tokens from the first trained one: text, mask, and what is known of each.

    Log-probabilities are those of the behaviour policy. Advantages are those that the trainer made
    of the rewards, or of remote services the one of the trajectory.
    """
    start = _response_start(t)
    part = slice(start, min(len(t.tokens), start + _MOST_TOKENS))
    decode = model.inference.tokenizer.decode
    kept: dict[str, Any] = {
        "count": len(t.tokens) - start,
        "text": [decode([token]) for token in t.tokens[part]],
        "mask": t.loss_mask[part],
    }
    if t.logprobs is not None:
        kept["logprob"] = [round(value, 4) for value in t.logprobs[part]]
    if advantages is not None:
        kept["advantage"] = [_rounded(value) for value in advantages[part]]
    elif t.advantage is not None:
        kept["advantage"] = [_rounded(t.advantage * trained) for trained in t.loss_mask[part]]
    return kept


def _rounded(value: float) -> float:
    """A value that a picture shows; it may be small."""
    return float(f"{value:.4g}")
