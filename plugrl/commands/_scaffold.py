"""The texts of a new plugin package, by kind."""

from __future__ import annotations

import keyword
import re
import sys
from string import Template

from plugrl.core.errors import UsageError
from plugrl.core.registry import OWN, default_registry
from plugrl.core.suggest import did_you_mean

SETUP_CFG = """\
[metadata]
name = $name
version = 0.1.0
description = A plugrl $kind

[options]
packages = find:
python_requires = >=3.11
install_requires =
    plugrl

[options.package_data]
$package =
    *.yaml

[options.entry_points]
plugrl.${kind}s =
    $component = $package.$kind:$cls
"""

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
"""

README = """\
# $name

A plugin of plugrl: the $kind `$component`.

```bash
pip install .
pytest
plugrl train $package/example.yaml
```
"""

TRAINER = '''\
"""The trainer ``$component``: reinforce answers that are better than the batch's mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plugrl import (
    AlgorithmConfig,
    Batch,
    SelfHostedTrainer,
    SelfHostedTrainerConfig,
    described,
)


@dataclass
class ${cls}Algorithm(AlgorithmConfig):
    """Options under ``trainer.algorithm``."""

    scale: float = described(1.0, "factor of the advantages")


@dataclass
class ${cls}Config(SelfHostedTrainerConfig):
    """The trainer section of ``$component``."""

    algorithm: ${cls}Algorithm = described(${cls}Algorithm, "its options")


class $cls(SelfHostedTrainer):
    """REINFORCE with the mean reward of the batch as baseline (Williams, 1992)."""

    Config: ClassVar[type] = ${cls}Config

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        rewards, valid = batch.metadata["rewards"], batch.metadata["valid"]
        baseline = rewards[valid].mean()
        advantages = self.config.algorithm.scale * (rewards - baseline) * valid
        batch.metadata["advantages"] = advantages
        return batch, {"baseline": float(baseline)}
'''

EVALUATOR = '''\
"""The evaluator ``$component``: how much of the reference an answer gets right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl import BaseEvaluationTarget, EvaluationRunResult, Evaluator, described


@dataclass
class ${cls}Config:
    """Options of the evaluator ``$component``."""

    answer_key: str = described("answer", "column with the reference answer")


class $cls(Evaluator):
    """Reward: the share of the reference's first letters that the answer begins with."""

    Config: ClassVar[type] = ${cls}Config

    def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Compare the answer with the reference, letter by letter."""
        truth = str(data[self.config.answer_key])
        answer = evaluation_target.final_answer
        matched = 0
        for expected, given in zip(truth, answer, strict=False):
            if expected != given:
                break
            matched += 1
        return EvaluationRunResult(
            reward=matched / max(len(truth), 1),
            ground_truth=truth,
            metrics={"exact": float(answer == truth)},
        )
'''

EXAMPLE = """\
# A model of a few thousand parameters learns to add two digits; no download, no GPU.
experiment_name: $component

scenario:
  type: arithmetic
  digits: 1
  validation: 10
  development: 0
  demonstrations: 0

models:
  policy:
    source:
      config:
        model_type: qwen3
        hidden_size: 32
        intermediate_size: 64
        num_hidden_layers: 1
        num_attention_heads: 2
        num_key_value_heads: 1
        head_dim: 16
        max_position_embeddings: 16
      tokenizer:
        characters: "0123456789+="
    train:
      type: local
      learning_rate: 3e-3

data:
  batch_size: 8
  rollout_repeat_n: 8

rollout_worker:
  max_response_length: 3
  evaluator: $evaluator

trainer:
  type: $trainer
  total_train_steps: 50
"""

TEST = '''\
"""$component keeps plugrl's contract for ${kind}s."""

from plugrl.testing.suite.test_$kind import ${contract}Contract


class Test$cls(${contract}Contract):
    __test__ = True
    plugrl_$kind = "$component"
'''

CI = """\
name: tests
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.11"
      - run: pip install . pytest
      - run: pytest
"""

#: Names that YAML reads as something else than text.
YAML_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
BODIES = {"trainer": TRAINER, "evaluator": EVALUATOR}
KINDS_WITH_TEMPLATES = tuple(BODIES)


def files(name: str, kind: str) -> dict[str, str]:
    """The files of package ``name`` with one component of ``kind``, by relative path.

    Raises:
        UsageError: the name cannot be used or is taken, or there is no template for the kind.
    """
    if kind not in BODIES:
        raise UsageError(
            f"there is no template for kind {kind!r}{did_you_mean(kind, BODIES) or ';'} "
            f"kinds: {', '.join(BODIES)}"
        )
    package, component = _names(name, kind)
    stem = component.removesuffix(f"_{kind}")
    cls = "".join(part.capitalize() for part in stem.split("_")) + kind.capitalize()
    values = {
        "name": name,
        "kind": kind,
        "package": package,
        "component": component,
        "cls": cls,
        "contract": kind.capitalize(),
        "trainer": component if kind == "trainer" else "self_hosted_grpo",
        "evaluator": component if kind == "evaluator" else "exact_match",
    }
    texts = {
        "setup.cfg": SETUP_CFG,
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"{package}/__init__.py": '"""The plugin $name of plugrl."""\n',
        f"{package}/{kind}.py": BODIES[kind],
        f"{package}/example.yaml": EXAMPLE,
        "tests/test_conformance.py": TEST,
        ".github/workflows/tests.yml": CI,
    }
    return {path: Template(text).substitute(values) for path, text in texts.items()}


def _names(name: str, kind: str) -> tuple[str, str]:
    """The import name of package ``name``, and the name of its component in a configuration.

    Raises:
        UsageError: one of them cannot be used, or is taken by Python or by plugrl.
    """
    package = name.replace("-", "_")
    component = package.removeprefix("plugrl_")
    allowed = re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) and component[0].isalpha()
    if not allowed or name == "plugrl" or component in YAML_WORDS:
        raise UsageError(
            f"{name!r} cannot name a package; use small letters, digits and dashes, such as "
            "plugrl-mine"
        )
    if keyword.iskeyword(package) or package in sys.stdlib_module_names:
        raise UsageError(
            f"{name!r} cannot name a package, because Python has {package!r} itself; "
            f"choose another name, such as plugrl-{name}"
        )
    records = default_registry().records(kind)
    if any(r.name == component and r.distribution == OWN for r in records):
        raise UsageError(
            f"{name!r} would provide the {kind} {component!r}, which is plugrl's own; choose "
            f"another name, such as plugrl-my-{component.replace('_', '-')}"
        )
    return package, component
