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
from plugrl.core.errors import ConfigError, RunError, UsageError
from plugrl.core.run.records.journal import Journal
from plugrl.core.text.dialogue.evaluation.metrics import dialogue_metrics, scores_of
from plugrl.core.text.dialogue.evaluation.records import EvaluatedDialogue, record_of
from plugrl.core.text.dialogue.evaluation.report import make_report, report_metrics
from plugrl.core.text.dialogue.evaluation.report_page import OUTPUT, make_folder, write_report
from plugrl.core.text.dialogue.evaluation.success import warn_of_missing

if TYPE_CHECKING:
    from plugrl.core.text.dialogue.environment import Environment
    from plugrl.core.text.dialogue.tree import RolloutTree

logger = logging.getLogger(__name__)
JOURNAL_FILE = "dialogues.jsonl"
#: A dialogue by the place of its prompt and its attempt.
Key = tuple[int, int]
#: Sets seeds of held-out dialogues apart from those of training.
_HELD_OUT = 0x5EED


# In training: metrics, and nothing else is kept.


def held_out_seeds(count: int) -> list[int]:
    """Seeds of ``count`` dialogues: the same whenever they are asked for."""
    draws = np.random.default_rng(_HELD_OUT)
    return [int(number) for number in draws.integers(2**31, size=count)]


def held_out(
    environment: Environment, prompts: Sequence[Any], *, attempts: int = 1, prefix: str = "test"
) -> tuple[dict[str, float], list[RolloutTree]]:
    """What the tester is worth as it is now, and its dialogues.

    Args:
        environment: grows them, with the tester's weights of now.
        prompts: what they are about.
        attempts: dialogues about each prompt.
        prefix: of the metrics, see :func:`dialogue_metrics`.
    """
    environment.system.sync_weights()
    asked = [prompt for prompt in prompts for _ in range(attempts)]
    trees = environment.eval_rollouts(asked, held_out_seeds(len(asked)))
    nodes = [list(tree.nodes()) for tree in trees]
    reasons = (node.failure for path in nodes for node in path if node.failure)
    warn_of_missing([scores_of(path) for path in nodes], next(reasons, "nothing was said"))
    found = dialogue_metrics(trees, environment.threshold)
    return {f"{prefix}/{name}": value for name, value in found.items()}, trees


def dialogue_sample(tree: RolloutTree, step: int) -> dict[str, Any]:
    """The first dialogue of a tree as plain values, to be kept as a sample."""
    path = next(iter(tree.paths()), [])
    return {
        "step": step,
        "prompt": tree.context.prompt,
        "category": tree.context.category,
        "seed": tree.seed,
        "exchanges": [
            {
                "probe": node.probe,
                "response": node.response,
                "score": node.score.value if node.valid else None,
                "reward": node.reward if node.valid else None,
                "failure": node.failure,
            }
            for node in path
        ],
    }


# Of a finished run: a journal and a report.


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
    """Run dialogues of width 1 about every prompt, and return their records.

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
    environment.system.sync_weights()
    threshold = environment.threshold
    about = {"prompts": _fingerprint(prompts), "seed": seed, **(identity or {})}
    journal = None if folder is None else DialogueJournal(Path(folder), about)
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
        held = _evaluate_dialogues(environment, prompts, missing[start : start + batch], seed)
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


def _evaluate_dialogues(
    environment: Environment, prompts: Sequence[Any], keys: Sequence[Key], seed: int
) -> list[EvaluatedDialogue]:
    trees = environment.eval_rollouts(
        [prompts[item] for item, _ in keys], [seed_of(seed, *key) for key in keys]
    )
    return [record_of(tree, *key) for tree, key in zip(trees, keys, strict=True)]


def seed_of(seed: int, item: int, attempt: int) -> int:
    """The seed of one dialogue, which does not depend on its batch."""
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


class DialogueJournal(Journal):
    """The file ``dialogues.jsonl`` of an evaluation: what it is about, then a line a dialogue.

    Args:
        folder: is created, with those above it.
        identity: what the evaluation is about; a folder of another one is refused.

    Raises:
        UsageError: the folder holds another evaluation, or cannot be written.
    """

    action = "keep dialogues"
    setting = OUTPUT

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.finished: dict[Key, EvaluatedDialogue] = {}
        self._identity = dict(identity)
        make_folder(folder)
        super().__init__(folder / JOURNAL_FILE, {"red_team": self._identity})
        # That it cannot be written is to be known before hours of dialogues.
        self.append([])

    def accept(self, record: dict[str, Any]) -> None:
        """Take the record of a dialogue."""
        dialogue = EvaluatedDialogue.from_dict(record)
        self.finished[dialogue.item, dialogue.attempt] = dialogue

    def reject(self, found: dict[str, Any] | None, content: bytes) -> None:
        """Leave the file as it is.

        Raises:
            UsageError: always.
        """
        remedy = f"name another folder with {OUTPUT}"
        if found is None:
            raise UsageError(
                f"{self.path} does not begin as an evaluation of red-teaming does; {remedy}"
            )
        changed = _difference(found.get("red_team"), self._identity)
        raise UsageError(f"{self.path} holds another evaluation ({changed}); {remedy}")

    def add(self, dialogues: Sequence[EvaluatedDialogue]) -> None:
        """Write dialogues, each a line.

        Raises:
            PlugrlError: they cannot be written.
        """
        self.append([dialogue.to_dict() for dialogue in dialogues])
        self.finished |= {(each.item, each.attempt): each for each in dialogues}


def _difference(old: Any, new: Mapping[str, Any]) -> str:
    if not isinstance(old, dict):
        return "of another form"
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return f"{', '.join(changed)} {'differs' if len(changed) == 1 else 'differ'}"
