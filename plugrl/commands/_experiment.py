"""What ``plugrl new experiment`` writes: a recipe, an evaluator and data."""

from __future__ import annotations

import json
import re
from string import Template

from plugrl.commands._scaffold import YAML_WORDS
from plugrl.commands._templates import text
from plugrl.core.config.sources.lookup import recipes
from plugrl.core.errors import UsageError


def files(name: str) -> dict[str, str]:
    """The files of experiment ``name``, by relative path.

    Raises:
        UsageError: the name cannot be used, or a recipe of plugrl has it.
    """
    if not re.fullmatch(r"[a-z0-9]+([-_][a-z0-9]+)*", name):
        raise UsageError(
            f"{name!r} cannot name an experiment; use small letters, digits, dashes and "
            "underscores, such as sums"
        )
    if name in YAML_WORDS:
        raise UsageError(
            f"{name!r} cannot name an experiment, because YAML reads it as something else than "
            f"text; choose another name, such as {name}-sums"
        )
    if name in recipes():
        raise UsageError(f"{name!r} is a recipe of plugrl already; choose another name")
    pairs = [(a, b) for a in range(10) for b in range(10)]
    problems = [{"prompt": f"{a},{b}=", "answer": str(max(a, b))} for a, b in pairs]
    # Every digit is learned at both places: a stride of 10 would hold out one second digit.
    held_out = problems[3::7]
    train = [problem for problem in problems if problem not in held_out]
    return {
        f"{name}.yaml": Template(text("experiment/recipe.yaml.txt")).substitute(name=name),
        "evaluator.py": text("experiment/evaluator.py.txt"),
        "train.jsonl": _lines(train),
        "held_out.jsonl": _lines(held_out),
    }


def _lines(problems: list[dict[str, str]]) -> str:
    return "".join(json.dumps(problem) + "\n" for problem in problems)
