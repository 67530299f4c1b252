"""What a run of red-teaming asks for, looked up before it begins."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from plugrl.core.config.plan import MICRO_BATCH_ROWS
from plugrl.core.config.preflight import section_at
from plugrl.core.text.dialogue.environment import incompatibility
from plugrl.core.text.dialogue.prompts import no_room
from plugrl.core.text.inference.services import TrainService, no_own_optimizer
from plugrl.core.text.learn.optimizer import OptimizerConfig
from plugrl.core.text.preflight import (
    context_of,
    missing_columns,
    model_findings,
    other_columns,
    split_findings,
)
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


def red_team_findings(check: Preflight) -> Iterator[Finding]:
    """Faults of models, trees, splits and the scorer of a trainer of rollout trees."""
    section = check.root.red_team
    if "tester" not in section or "target" not in section:
        name = section.get("type") or "of the file"
        yield (
            "red_team.type",
            f"environment {name!r} has no settings tester and target; derive its Config from that "
            "of plugrl.DialogueEnvironment",
        )
        return
    yield from _model_findings(check, section)
    yield from _algorithm_findings(check, section)
    if "scorer" in section and section.scorer is None:
        yield "red_team.scorer", "names no scorer; give one, such as lexicon, regex or llm_judge"
    yield from _category_findings(check)
    yield from _split_findings(check, section)
    if check.root.runtime_monitor.dump_steps:
        yield (
            "runtime_monitor.dump_steps",
            "has no effect: trainers of rollout trees keep no steps for `plugrl replay`; dialogues "
            "are in samples/ of the run folder",
        )


def _model_findings(check: Preflight, section: Any) -> Iterator[Finding]:
    models, tester = check.models, section.tester.model
    for setting, name, role in (
        ("target.model", section.target.model, "the target"),
        ("baseline", section.get("baseline"), "the baseline"),
    ):
        if name is not None:
            yield from model_findings(check, f"red_team.{setting}", name, role=role)
    for own in ("tester", "target"):
        longest, name = section[own].max_new_tokens, section[own].model
        context = context_of(check, name) if name in models else None
        if context is not None and longest >= context:
            yield f"red_team.{own}.max_new_tokens", no_room(longest, name, context)
    for name in models:
        if models[name].get("fine_tune") is not None:
            # All others must be frozen.
            remedy = f"write models.{name}.train" if name == tester else "leave it out"
            yield f"models.{name}.fine_tune", f"is for trainers by jobs; {remedy}"
    if tester not in models:
        return
    train = models[tester].get("train")
    if train is None:
        yield f"models.{tester}", f"the tester is not trained; give models.{tester}.train: local"
        return
    service = check.component(f"models.{tester}.train")
    if isinstance(service, type) and issubclass(service, TrainService):
        for method in ("differentiable", "parameters"):
            if getattr(service, method) is getattr(TrainService, method):
                yield f"models.{tester}.train", no_own_optimizer(service, method)
                return
    yield from _without_effect(tester, train)


def _without_effect(tester: str, train: Any) -> Iterator[Finding]:
    """Numbers of an optimizer that somebody wrote, where the trainer has its own."""
    plain = OptimizerConfig()
    own = {"learning_rate": "lr"}
    for field in fields(OptimizerConfig):
        path, name = f"models.{tester}.train.{field.name}", field.name
        if name in train and train[name] != _plain(getattr(plain, name)):
            instead = f"; set trainer.{own[name]}" if name in own else "; leave it out"
            yield path, f"has no effect: the trainer has an optimizer of its own{instead}"

    # A batch is one pass, whatever its size. Runs of 0.1 hold the default that there was.
    for name, unwritten in (
        ("micro_batch_size", (None, MICRO_BATCH_ROWS)),
        ("micro_batch_tokens", (None,)),
    ):
        if train.get(name) not in unwritten:
            path = f"models.{tester}.train.{name}"
            yield path, "has no effect: a batch is one pass; set trainer.batch_size"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return vars(value) if hasattr(value, "__dict__") else value


def _algorithm_findings(check: Preflight, section: Any) -> Iterator[Finding]:
    algorithm = check.component("trainer.algorithm")
    if algorithm is None:
        yield "trainer.algorithm", "names no algorithm; give one, such as dpo"
        return
    made = algorithm(check.root.trainer.algorithm)
    fault = incompatibility(made, section)
    if fault is not None:
        setting, _, rest = fault.partition(" ")
        yield f"red_team.{setting}", rest
    models, tester = check.models, section.tester.model
    train = models[tester].get("train") if tester in models else None
    if made.needs_values and train is not None and train.get("value_head") is False:
        yield (
            f"models.{tester}.train.value_head",
            f"is false, and {type(made).__name__} learns values; write true",
        )


def _category_findings(check: Preflight) -> Iterator[Finding]:
    """Weights of categories that no score of the scorer has."""
    known = _categories_of(check, "red_team.scorer")
    if known is None:
        return
    weights = (check.root.red_team.get("reward") or {}).get("categories") or {}
    for name in weights:
        if name not in known:
            has = f"it has: {', '.join(known) or 'none'}{did_you_mean(name, known, 1)}"
            path = "red_team.reward.categories"
            yield (
                path if "." in name else f"{path}.{name}",
                f"the scorer has no category {name!r}; {has}",
            )


def _categories_of(check: Preflight, path: str) -> Collection[str] | None:
    try:
        section = section_at(check.root, path)
    except (LookupError, TypeError, AttributeError):
        return None
    scorer = check.component(path)
    inherited = "possible_categories" not in vars(scorer or object)
    if scorer is None or (inherited and not scorer.__module__.startswith("plugrl.")):
        # What a class of the user inherits says nothing of its own categories.
        return None
    found: Collection[str] | None = scorer.possible_categories(
        section, lambda place: _categories_of(check, f"{path}.{place}")
    )
    return found


def _split_findings(check: Preflight, section: Any) -> Iterator[Finding]:
    if check.root.get("scenario") is None:
        yield "scenario", "there is none to give prompts; give one, such as scenario: red_team"
        return
    wanted = {f"red_team.{key}": section.get(key) for key in ("split", "eval_split")}
    trainer = check.root.trainer
    if trainer.get("eval_every"):
        wanted["trainer.dev_split"] = trainer.get("dev_split")
    named = {setting: split for setting, split in wanted.items() if split is not None}
    columns = other_columns(check)

    def read(item: Mapping[str, Any], origin: str) -> Iterator[Finding]:
        yield from missing_columns(item, columns, origin)

    yield from split_findings(check, named, read, holds="prompts")
