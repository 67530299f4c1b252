"""The texts of a new plugin package, and of a further component of one."""

from __future__ import annotations

import keyword
import re
import sys
from string import Template

from plugrl.commands._component_templates import INFERENCE_SERVICE
from plugrl.commands._templates import CONTRACT, KITS, PARTS, RUN_TEST, Kit
from plugrl.core.config.sources.lookup import recipes
from plugrl.core.errors import UsageError
from plugrl.core.plugins.registry import KINDS, OWN, default_registry
from plugrl.core.wording import did_you_mean

SETUP_CFG = """\
[metadata]
name = $name
version = 0.1.0
description = A plugrl $title

[options]
packages = find:
python_requires = >=3.11
install_requires =
    plugrl

[options.package_data]
$package =
    *.yaml$package_data

[options.entry_points]
"""

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
"""

README = """\
# $name

A plugin of plugrl: the $title `$component`, and a recipe that uses it.

```bash
pip install . pytest
pytest
plugrl train $component
```
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
#: The group in which packages name their modules of hooks.
HOOKS = "plugrl"
SAMPLER = "inference_service"


def files(name: str, kind: str) -> dict[str, str]:
    """The files of package ``name`` with one component of a template, by relative path.

    Raises:
        UsageError: the name cannot be used or is taken, or there is no such template.
    """
    kit = kit_of(kind)
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
    _refuse_taken(name, component, kit, f"plugrl-my-{component.replace('_', '-')}")
    part = Part(name, package, component, kind, recipe="example.yaml", alone=True)
    values = {**part.values, "package_data": "".join(f"\n    {p}" for p in kit.data)}
    entries = "".join(
        f"{group} =\n" + "".join(f"    {entry}\n" for entry in found)
        for group, found in part.entries().items()
    )
    texts = {
        "setup.cfg": Template(SETUP_CFG).substitute(values) + entries,
        "pyproject.toml": PYPROJECT,
        "README.md": Template(README).substitute(values),
        f"{package}/__init__.py": f'"""The plugin {name} of plugrl."""\n',
        ".github/workflows/tests.yml": CI,
    }
    inside = {f"{package}/{path}": text for path, text in part.modules().items()}
    return {**texts, **inside, **part.tests()}


def kit_of(kind: str) -> Kit:
    """The template of that name.

    Raises:
        UsageError: there is none.
    """
    found = KITS.get(kind.replace("-", "_"))
    if found is None:
        raise UsageError(
            f"there is no template for kind {kind!r}{did_you_mean(kind, KITS) or ';'} "
            f"kinds: {', '.join(KITS)}"
        )
    return found


def component_name(name: str, kind: str) -> str:
    """The name of a further component in configurations.

    Raises:
        UsageError: it cannot be used, or is taken by Python or by plugrl.
    """
    component = name.replace("-", "_")
    allowed = re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", component)
    if not allowed or component in YAML_WORDS or keyword.iskeyword(component):
        raise UsageError(
            f"{name!r} cannot name a component; use small letters, digits and underscores, such as "
            f"my_{kind.replace('-', '_')}"
        )
    _refuse_taken(name, component, kit_of(kind), f"my_{component}")
    return component


def _refuse_taken(name: str, component: str, kit: Kit, other: str) -> None:
    """Refuse the names of plugrl's own components and recipes."""
    records = default_registry().records(kit.kind) if kit.kind else ()
    taken = any(r.name == component and r.distribution == OWN for r in records)
    if taken or component in recipes():
        what = kit.kind if taken else "recipe"
        raise UsageError(
            f"{name!r} would provide the {what} {component!r}, which is plugrl's own; choose "
            f"another name, such as {other}"
        )


class Part:
    """One component of a package: its modules, recipe, tests and entry points.

    Args:
        name: of the distribution.
        package: that is imported.
        component: its name in configurations.
        kind: of the template.
        recipe: the file of its recipe.
        alone: whether its files are called by its kind, as those of the first component; else
            by its name too, so that a package can have several of a kind.
    """

    def __init__(
        self,
        name: str,
        package: str,
        component: str,
        kind: str,
        *,
        recipe: str,
        alone: bool = False,
    ) -> None:
        kind = kind.replace("-", "_")
        self._kit = kit = kit_of(kind)
        self._package, self._component = package, component
        stem = component.removesuffix(f"_{kind}")
        self._prefix = prefix = "" if alone else f"{stem}_"
        self._recipe = recipe
        self._cls = _camel(f"{stem}_{kind}")
        function = f"{stem}_{kind}"
        target = function if kit.function else self._cls
        named = (f"{self._cls}Config", function) if kit.function else (self._cls,)
        self._names = (*filter(None, [kit.names]), *(named if kit.kind else ()))
        self.values = {
            "name": name,
            "title": (kit.kind or kind).replace("_", " "),
            "kind": kit.kind or "",
            "package": package,
            "module": prefix + kind,
            "recipe": recipe,
            "component": component,
            "cls": self._cls,
            "function": function,
            "target": target,
            "contract": _camel(kit.kind or ""),
            "imports": kit.imports,
            "standard": kit.standard,
            "short": kit.short,
            "sampler": prefix + SAMPLER,
        }
        parts = {
            part: Template(text).safe_substitute(component=component)
            for part, text in {**PARTS, **kit.parts}.items()
        }
        self._recipe_values = {**self.values, **parts}
        if kit.sampler:
            self._sampler_cls = _camel(f"{component.removesuffix('_' + SAMPLER)}_{SAMPLER}")

    def modules(self) -> dict[str, str]:
        """Files inside the package."""
        kit = self._kit
        found = {
            f"{self.values['module']}.py": Template(kit.body).substitute(self.values),
            self._recipe: Template(kit.example).safe_substitute(self._recipe_values),
            **kit.data,
        }
        if kit.sampler:
            values = {**self.values, "cls": self._sampler_cls}
            found[f"{self.values['sampler']}.py"] = Template(INFERENCE_SERVICE).substitute(values)
        return found

    def tests(self) -> dict[str, str]:
        """Files of tests."""
        kit, found = self._kit, {}
        if kit.kind:
            text = Template(CONTRACT).substitute(self.values)
            begin = f"{self.values['module']}_" if self._prefix else ""
            found[f"tests/test_{begin}conformance.py"] = text
        if kit.check:
            check = Template(kit.check).substitute(self.values)
            used = [name for name in self._names if re.search(rf"\b{name}\b", check)]
            names = ", ".join(sorted(used, key=_import_order))
            text = Template(RUN_TEST).substitute(self.values, names=names) + check
            if not used:
                begin = text.index(f"from {self._package}.")
                text = text[:begin] + text[text.index("\n", begin) + 2 :]
            if not kit.kind:
                # Hooks are no components, so that the record of plugins does not name them.
                begin, end = text.index("    lock ="), text.index("    assert run.status")
                text = text[:begin] + text[end:]
            found[f"tests/test_{self.values['module']}.py"] = text
        return found

    def entries(self) -> dict[str, list[str]]:
        """Entry points by group."""
        kit, package = self._kit, self._package
        module = f"{package}.{self.values['module']}"
        target = f"{module}:{self.values['target']}" if kit.kind else module
        found = {(KINDS[kit.kind].group if kit.kind else HOOKS): [f"{self._component} = {target}"]}
        if kit.sampler:
            sampler = f"{package}.{self.values['sampler']}:{self._sampler_cls}"
            found[KINDS[SAMPLER].group] = [f"{self._component} = {sampler}"]
        return {**found, "plugrl.recipes": [f"{self._component} = {package}:{self._recipe}"]}


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _import_order(name: str) -> tuple[int, str]:
    """As linters sort what is imported: constants, classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)
