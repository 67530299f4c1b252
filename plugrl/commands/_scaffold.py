"""The texts of a new plugin package, and of a further component of one."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.metadata import requires
from string import Template as Text

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from plugrl.commands._templates import PARTS, TEMPLATES, Template, text
from plugrl.core.config.sources.lookup import recipes
from plugrl.core.errors import UsageError
from plugrl.core.plugins.registry import KINDS, OWN, default_registry
from plugrl.core.wording import did_you_mean

#: Names that YAML reads as something else than text.
YAML_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
#: The group in which packages name their modules of hooks.
HOOKS = "plugrl"
SAMPLER = "inference_service"


def files(name: str, kind: str) -> dict[str, str]:
    """The files of package ``name`` with one component of a template, by relative path.

    Raises:
        UsageError: the name cannot be used or is taken, or there is no such template.
    """
    template = template_of(kind)
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
    if package in ("test", "tests") or canonicalize_name(name) in _needed():
        raise UsageError(
            f"{name!r} cannot name a package, because it would hide another of this name; "
            f"choose another name, such as plugrl-{name}"
        )
    _refuse_taken(name, component, template, f"plugrl-my-{component.replace('_', '-')}")
    part = Part(name, package, component, template, recipe="example.yaml", alone=True)
    # The pattern of recipes stands in the file already.
    package_data = "".join(f"\n    {path}" for path in template.data)
    entries = "".join(
        f"{group} =\n" + "".join(f"    {entry}\n" for entry in found)
        for group, found in part.entries().items()
    )
    texts = {
        "setup.cfg": part.filled("package/setup.cfg", package_data=package_data) + entries,
        "pyproject.toml": part.filled("package/pyproject.toml"),
        "README.md": part.filled("package/README.md", command=part.command),
        f"{package}/__init__.py": f'"""The plugin {name} of plugrl."""\n',
        ".github/workflows/tests.yml": part.filled("package/tests.yml"),
    }
    inside = {f"{package}/{path}": held for path, held in part.modules().items()}
    return {**texts, **inside, **part.tests()}


def _needed() -> set[str]:
    """The packages that plugrl itself needs, with its extras."""
    needed = map(Requirement, requires(OWN) or ())
    return {canonicalize_name(requirement.name) for requirement in needed}


def template_of(kind: str) -> Template:
    """The template of that name.

    Raises:
        UsageError: there is none.
    """
    found = TEMPLATES.get(kind.replace("-", "_"))
    if found is None:
        raise UsageError(
            f"there is no template for kind {kind!r}{did_you_mean(kind, TEMPLATES) or ';'} "
            f"kinds: {', '.join(TEMPLATES)}"
        )
    return found


def component_name(name: str, template: Template) -> str:
    """The name of a further component in configurations.

    Raises:
        UsageError: it cannot be used, or is taken by Python or by plugrl.
    """
    component = name.replace("-", "_")
    allowed = re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", component)
    if not allowed or component in YAML_WORDS or keyword.iskeyword(component):
        raise UsageError(
            f"{name!r} cannot name a component; use small letters, digits and underscores, such as "
            f"my_{template.name}"
        )
    _refuse_taken(name, component, template, f"my_{component}")
    return component


def _refuse_taken(name: str, component: str, template: Template, other: str) -> None:
    """Refuse the names of plugrl's own components and recipes."""
    records = default_registry().records(template.kind) if template.kind else ()
    taken = any(r.name == component and r.distribution == OWN for r in records)
    if taken or component in recipes():
        what = template.kind if taken else "recipe"
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
        template: what it is made of.
        recipe: the file of its recipe.
        alone: whether its files are called by its template, as those of the first component; else
            by its name too, so that a package can have several of a kind.
    """

    def __init__(
        self,
        name: str,
        package: str,
        component: str,
        template: Template,
        *,
        recipe: str,
        alone: bool = False,
    ) -> None:
        self._template = template
        self._package, self._component, self._recipe = package, component, recipe
        self._stem = stem = component.removesuffix(f"_{template.name}")
        self._prefix = prefix = "" if alone else f"{stem}_"
        self._module = prefix + template.name
        self._cls, self._function = _camel(f"{stem}_{template.name}"), f"{stem}_{template.name}"
        kind = KINDS[template.kind] if template.kind else None
        self._values = {
            "name": name,
            "title": (template.kind or template.name).replace("_", " "),
            "kind": template.kind or "",
            "plural": kind.plural.replace("_", " ") if kind else "",
            "package": package,
            "module": self._module,
            "recipe": recipe,
            "component": component,
            "cls": self._cls,
            "function": self._function,
            "target": self._target,
            "contract": _camel(template.kind or ""),
            "sampler": prefix + SAMPLER,
            "imports": template.imports,
            # The module begins with """The KIND ``NAME``: what it does."""
            "does": template.body.partition(": ")[2].partition('."""')[0],
            "short": "".join(f', "{override}"' for override in template.short),
        }

    @property
    def _target(self) -> str:
        return self._function if self._template.function else self._cls

    def filled(self, file: str, **more: str) -> str:
        """A file of the templates, filled in."""
        return Text(text(f"{file}.txt")).substitute({**self._values, **more})

    @property
    def data(self) -> list[str]:
        """Files inside the package that are not its modules."""
        return [self._recipe, *self._template.data]

    def modules(self) -> dict[str, str]:
        """Files inside the package."""
        template = self._template
        parts = {**PARTS, **template.parts}
        filled = {name: self._fill(part) for name, part in parts.items()}
        found = {
            f"{self._module}.py": self._fill(template.body),
            self._recipe: self.filled(f"recipes/{template.recipe}.yaml", **filled),
            **template.data,
        }
        if template.sampler:
            sampler = self._prefix + SAMPLER
            found[f"{sampler}.py"] = self.filled(f"components/{SAMPLER}.py", cls=self._sampler)
        return found

    def tests(self) -> dict[str, str]:
        """Files of tests."""
        template, found = self._template, {}
        if template.kind:
            begin = f"{self._module}_" if self._prefix else ""
            found[f"tests/test_{begin}conformance.py"] = self.filled(
                "tests/conformance.py", conformance=template.conformance
            )
        if template.check:
            check = self._fill(template.check)
            standard = template.standard + "import json\n" * ("json." in self._used + check)
            begin = self.filled(
                "tests/run.py",
                own=self._imports(check),
                patch=self._patch,
                standard=standard,
                used=self._used,
            )
            found[f"tests/test_{self._module}.py"] = begin + check
        return found

    @property
    def command(self) -> str:
        """The command that trains its recipe, with a launcher by it."""
        name = self._component
        launched = self._template.kind == "launcher"
        words = f"plugrl launch {name} --on {name}" if launched else f"plugrl train {name}"
        return "".join(f"{key}={value} " for key, value in self._variables.items()) + words

    def entries(self) -> dict[str, list[str]]:
        """Entry points by group."""
        kind, module = self._template.kind, f"{self._package}.{self._module}"
        target = f"{module}:{self._target}" if kind else module
        found = {(KINDS[kind].group if kind else HOOKS): [f"{self._component} = {target}"]}
        if self._template.sampler:
            sampler = f"{self._package}.{self._prefix}{SAMPLER}:{self._sampler}"
            found[KINDS[SAMPLER].group] = [f"{self._component} = {sampler}"]
        return {**found, "plugrl.recipes": [f"{self._component} = {self._package}:{self._recipe}"]}

    def _fill(self, held: str) -> str:
        return Text(held).substitute(self._values)

    @property
    def _sampler(self) -> str:
        return _camel(f"{self._component.removesuffix('_' + SAMPLER)}_{SAMPLER}")

    @property
    def _variables(self) -> dict[str, str]:
        return {name: self._fill(value) for name, value in self._template.variables.items()}

    def _imports(self, check: str) -> str:
        """What tests import from the module of the component, of what they use."""
        offered = (self._template.names, f"{self._cls}Config", self._target)
        used = {name for name in offered if name and re.search(rf"\b{name}\b", check)}
        if not used:
            return ""
        names = ", ".join(sorted(used, key=_import_order))
        return f"\nfrom {self._package}.{self._module} import {names}\n"

    @property
    def _patch(self) -> str:
        """What stands in tests before the line that trains: variables that are set there."""
        if not self._variables:
            return ""
        rows = [f'patch.setenv("{name}", "{value}")' for name, value in self._variables.items()]
        inside = "".join(f"        {row}\n" for row in rows)
        return f"    with pytest.MonkeyPatch.context() as patch:\n{inside}    "

    @property
    def _used(self) -> str:
        """The statements that look for the component among the plugins of a run."""
        if not self._template.kind or not self._template.in_run:
            return ""  # Hooks are no components.
        return self.filled("tests/used.py")


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _import_order(name: str) -> tuple[int, str]:
    """As linters sort what is imported: constants, classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)
