"""The texts of a new plugin package, by kind."""

from __future__ import annotations

import keyword
import re
import sys
from string import Template

from plugrl.commands._templates import CONTRACT, KITS, RUN_TEST
from plugrl.core.config.sources.lookup import recipes
from plugrl.core.errors import UsageError
from plugrl.core.plugins.registry import KINDS, OWN, default_registry
from plugrl.core.wording import did_you_mean

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
$group =
    $component = $package.$kind:$target
plugrl.recipes =
    $component = $package:example.yaml
"""

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
"""

README = """\
# $name

A plugin of plugrl: the $kind `$component`, and a recipe that uses it.

```bash
pip install . pytest
pytest
plugrl train $component
```
"""

EXAMPLE = """\
# A model of a few thousand parameters learns a small task with $component; no download, no GPU.
experiment_name: $component

scenario:$scenario

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

rollout_worker:$worker
  max_response_length: 3
  evaluator: $evaluator

trainer:
  type: $trainer
  total_train_steps: 50$algorithm$trackers
"""

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
KINDS_WITH_TEMPLATES = tuple(KITS)
#: The parts of the example that a kind may replace.
PARTS = {
    "scenario": "\n  type: arithmetic\n  digits: 1\n  validation: 10\n  development: 0\n"
    "  demonstrations: 0",
    "worker": "",
    "evaluator": "exact_match",
    "trainer": "self_hosted_grpo",
    "algorithm": "",
    "trackers": "",
}


def files(name: str, kind: str) -> dict[str, str]:
    """The files of package ``name`` with one component of ``kind``, by relative path.

    Raises:
        UsageError: the name cannot be used or is taken, or there is no template for the kind.
    """
    kind = kind.replace("-", "_")
    if kind not in KITS:
        raise UsageError(
            f"there is no template for kind {kind!r}{did_you_mean(kind, KITS) or ';'} "
            f"kinds: {', '.join(KITS)}"
        )
    kit = KITS[kind]
    package, component = _names(name, kind)
    values = _values(name, kind, package, component)
    tests = ("test_conformance", CONTRACT) if not kit.check else ("test_" + kind, RUN_TEST)
    texts = {
        "setup.cfg": SETUP_CFG,
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"{package}/__init__.py": '"""The plugin $name of plugrl."""\n',
        f"{package}/{kind}.py": kit.body,
        f"{package}/example.yaml": EXAMPLE,
        f"tests/{tests[0]}.py": tests[1] + kit.check,
        ".github/workflows/tests.yml": CI,
    }
    return {path: Template(text).substitute(values) for path, text in texts.items()}


def _values(name: str, kind: str, package: str, component: str) -> dict[str, str]:
    kit = KITS[kind]
    stem = component.removesuffix(f"_{kind}")
    cls = "".join(part.capitalize() for part in f"{stem}_{kind}".split("_"))
    function = f"{stem}_{kind}"
    part, text = kit.replaced
    return {
        **PARTS,
        part: Template(text).substitute(component=component),
        "name": name,
        "kind": kind,
        "group": KINDS[kind].group,
        "package": package,
        "component": component,
        "cls": cls,
        "function": function,
        "target": function if kit.function else cls,
        "contract": kind.capitalize(),
        "names": f"{cls}Config, {function}" if kit.function else cls,
        "imports": kit.imports,
        "standard": kit.standard,
    }


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
    taken = any(r.name == component and r.distribution == OWN for r in records)
    if taken or component in recipes():
        what = kind if taken else "recipe"
        raise UsageError(
            f"{name!r} would provide the {what} {component!r}, which is plugrl's own; choose "
            f"another name, such as plugrl-my-{component.replace('_', '-')}"
        )
    return package, component
