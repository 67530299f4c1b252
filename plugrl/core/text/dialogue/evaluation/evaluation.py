"""Evaluating a tester: dialogues about held-out prompts, a journal of them, and a report."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.config.view import plain
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.dialogue.evaluation.journal import Journal, Key
from plugrl.core.text.dialogue.evaluation.records import EvaluatedDialogue, evaluated
from plugrl.core.text.dialogue.evaluation.report import make_report, report_metrics
from plugrl.core.text.dialogue.evaluation.report_files import write_report
from plugrl.core.text.dialogue.evaluation.success import warn_of_missing

if TYPE_CHECKING:
    from plugrl.core.text.dialogue.environment import Environment

logger = logging.getLogger(__name__)


def evaluate_red_team(
    environment: Environment,
    prompts: Sequence[Any],
    *,
    attempts: int = 4,
    seed: int = 0,
    folder: str | Path | None = None,
    identity: Mapping[str, Any] | None = None,
    batch: int = 64,
    title: str = "Red-teaming",
) -> dict[str, Any]:
    """Hold dialogues of width 1 about every prompt, and say what came of them.

    With a ``folder``, each batch of dialogues is written to ``dialogues.jsonl`` as it ends. A
    second call goes on from there, also with more attempts: what has a score is not asked again.
    At the end stand ``report.json`` and ``report.html`` beside it. Without one, nothing is written.

    Args:
        environment: with its system and its scorer.
        prompts: texts, or rows with the columns that the environment names.
        attempts: dialogues about each prompt.
        seed: of all of them; equal ones give equal dialogues, however they are batched.
        folder: where to.
        identity: what else makes two evaluations different ones, such as the checkpoint.
        batch: dialogues that are held at once.
        title: of the page.

    Returns:
        The report; see :func:`~plugrl.core.text.dialogue.evaluation.report.make_report`.

    Raises:
        ConfigError: there are no prompts, or a number is too small.
        UsageError: the folder holds another evaluation, or cannot be written.
        RunError: all dialogues of the first batch failed.
    """
    prompts = list(prompts)
    if not prompts:
        raise ConfigError("there are no prompts to evaluate on; name a split that has some")
    if attempts < 1 or batch < 1:
        raise ConfigError("attempts and batch must be at least 1")
    environment.system.updated()
    threshold = environment.threshold
    about = {"prompts": _fingerprint(prompts), "seed": seed, **(identity or {})}
    journal = None if folder is None else Journal(Path(folder), about)
    finished = {} if journal is None else journal.finished
    plan = [(item, attempt) for item in range(len(prompts)) for attempt in range(attempts)]
    # What has no score may have one now, such as an answer of an API that was down.
    # One that succeeded anyway is no exception: to ask only the others again, until they
    # succeed, would raise the rate.
    missing = [k for k in plan if k not in finished or finished[k].failure]
    if len(missing) < len(plan):
        logger.info("%d of %d dialogues are there already", len(plan) - len(missing), len(plan))
    for start in range(0, len(missing), batch):
        logger.debug("%d of %d dialogues are held", len(plan) - len(missing) + start, len(plan))
        held = _held(environment, prompts, missing[start : start + batch], seed)
        if journal is not None:
            journal.add(held)
        else:
            finished |= {(each.item, each.attempt): each for each in held}
        _check(finished)
    dialogues = [finished[key] for key in plan]
    reasons = (dialogue.failure for dialogue in dialogues if dialogue.failure)
    warn_of_missing([dialogue.scores for dialogue in dialogues], next(reasons, ""))
    report = make_report(dialogues, threshold=threshold, seed=seed)
    if folder is not None:
        write_report(report, folder, title=title)
    return report


def _held(
    environment: Environment, prompts: Sequence[Any], keys: Sequence[Key], seed: int
) -> list[EvaluatedDialogue]:
    trees = environment.eval_rollouts(
        [prompts[item] for item, _ in keys], [seed_of(seed, *key) for key in keys]
    )
    return [evaluated(tree, *key) for tree, key in zip(trees, keys, strict=True)]


def seed_of(seed: int, item: int, attempt: int) -> int:
    """The seed of one dialogue: its own, whatever it is batched with."""
    return int(np.random.SeedSequence([seed, item, attempt]).generate_state(1)[0])


#: What a trainer of red-teaming has for ``plugrl eval``; see :func:`saved_report`.
REPORTS = {"red_team": "dialogues about red_team.eval_split and a report of them"}
#: What of the section of an environment changes nothing that is said or scored in an evaluation.
_TRAINING = (
    "tree_width",
    "split",
    "reward",
    "threshold",
    "eval_split",
    "eval_attempts",
    "eval_batch",
)


def saved_report(
    environment: Environment,
    prompts: Sequence[Any],
    hyper_params: Mapping[str, Any],
    *,
    folder: Path | None,
    origin: str,
) -> dict[str, float]:
    """Evaluate the loaded state of a run, for a trainer's ``report``; give the main numbers.

    Args:
        environment: of the run, with the state loaded.
        prompts: of the split ``red_team.eval_split``.
        hyper_params: of the run, with what an evaluation has changed.
        folder: where the report goes; None: nowhere.
        origin: the checkpoint.

    Raises:
        PlugrlError: as :func:`evaluate_red_team`.
    """
    report = evaluate_red_team(
        environment,
        prompts,
        attempts=environment.config.get("eval_attempts", 4),
        batch=environment.config.get("eval_batch", 64),
        folder=folder,
        identity=identity_of(hyper_params, origin),
        title=f"Red-teaming of {origin}",
    )
    return report_metrics(report)


def identity_of(hyper_params: Mapping[str, Any], origin: str) -> dict[str, str]:
    """What makes an evaluation of a run another one: its checkpoint, models and settings.

    Args:
        hyper_params: of the run, with what an evaluation has changed.
        origin: the checkpoint.
    """
    section = plain(hyper_params["red_team"])
    kept = {key: value for key, value in section.items() if key not in _TRAINING}
    return {
        "checkpoint": str(Path(origin).resolve()),
        "models": _fingerprint([plain(hyper_params["models"])]),
        "settings": _fingerprint([kept]),
    }


def _fingerprint(rows: Sequence[Any]) -> str:
    rows = [dict(row) if isinstance(row, Mapping) else row for row in rows]
    text = json.dumps(rows, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _check(finished: Mapping[Key, EvaluatedDialogue]) -> None:
    """End an evaluation of which nothing can come, before it has cost hours."""
    if all(dialogue.highest is None for dialogue in finished.values()):
        first = next(iter(finished.values()))
        raise RunError(
            f"all of the first {len(finished)} dialogues failed; one says: {first.failure}"
        )
