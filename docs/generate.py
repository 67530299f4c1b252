"""Writes the reference pages from the code that they describe.

python docs/generate.py          writes docs/reference/
python docs/generate.py --check  exits with 1 and names the pages that are out of date
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator
from enum import EnumType
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py: edit the code instead. -->"
ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")
HEADINGS = {"Args:": "Arguments", "Raises:": "Raises", "Returns:": "Returns"}
HEADINGS["Attributes:"] = "Attributes"


def text_of(obj: Any) -> str:
    """The docstring of an object as Markdown."""
    lines = ROLE.sub(r"`\1`", inspect.getdoc(obj) or "").splitlines()
    return "\n".join(_markdown(lines)).strip()


def _markdown(lines: list[str]) -> Iterator[str]:
    listing = False
    for line in lines:
        if line in HEADINGS:
            listing = True
            yield from (f"**{HEADINGS[line]}**", "")
        elif listing and re.match(r"    \S", line):
            item = re.match(r"    ([\w, ]+): (.*)", line)
            yield f"- `{item[1]}`: {item[2]}" if item else f"- {line.strip()}"
        elif listing and line.startswith("        "):
            yield f"  {line.strip()}"
        else:
            listing = listing and not line
            yield line


class _Plain(str):
    """An annotation that is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def signature_of(obj: Any) -> str:
    """The parameters of a callable, annotations as they are written."""

    def shown(annotation: Any) -> Any:
        return _Plain(annotation) if isinstance(annotation, str) else annotation

    signature = inspect.signature(obj)
    parameters = [p.replace(annotation=shown(p.annotation)) for p in signature.parameters.values()]
    return str(
        signature.replace(
            parameters=parameters, return_annotation=shown(signature.return_annotation)
        )
    )


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [header, *rows]]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], f"|{' --- |' * len(header)}", *lines[1:]])


def hooks() -> str:
    """The page about hooks."""
    from plugrl.core.plugins import hookspecs

    parts = ["# Hooks", NOTE, text_of(hookspecs)]
    for name, spec in vars(hookspecs).items():
        if name.startswith("plugrl_"):
            parts += [f"## {name}", f"```text\n{name}{signature_of(spec)}\n```", text_of(spec)]
    return "\n\n".join(parts)


def sections() -> str:
    """The page about the sections of a configuration."""
    from plugrl.core.config.schemas.describe import describe_section
    from plugrl.core.config.schemas.sections import COMMON, DEFAULTS, TEXT

    parts = ["# Sections of a configuration", NOTE]
    parts.append("`plugrl config schema KIND NAME` lists the keys of a component.")
    for title, group in (("Of every run", COMMON), ("Of runs with language models", TEXT)):
        parts.append(f"## {title}")
        for name, schema in group.items():
            inner = getattr(schema, "__args__", (schema,))[-1]
            about = text_of(inner) if hasattr(inner, "__dataclass_fields__") else ""
            rows = [
                [
                    f"`{row['key']}`",
                    row["type"],
                    f"`{_yaml(DEFAULTS.get(name, row['default']))}`",
                    row["help"],
                ]
                for row in describe_section(name) or []
            ]
            parts += [f"### {name}", *([about] if about else [])]
            parts.append(table(["Key", "Type", "Default", "Meaning"], rows))
    return "\n\n".join([*parts, *_spellings()])


def _spellings() -> list[str]:
    """The keys and names that have a second spelling."""
    from plugrl.core.config.aliases import COMPONENT_NAMES
    from plugrl.core.config.canonical import MOVES

    about = "Both spellings of a key are accepted for good; of a name, when no package provides it."
    keys = [[f"`{old}`", f"`{new}`"] for old, new in MOVES.items()]
    names = [
        [f"`{kind}`", f"`{old}`", f"`{new}`"]
        for kind, pairs in COMPONENT_NAMES.items()
        for old, new in pairs.items()
    ]
    return [
        "## Second spellings",
        about,
        table(["Key", "Means"], keys),
        table(["Kind", "Name", "Means"], names),
    ]


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def commands() -> str:
    """The page about the command line."""
    from plugrl.cli import COMMANDS
    from plugrl.commands._main import root

    top = root(COMMANDS)
    parts = ["# Commands", NOTE, _help(2, top, "plugrl", None)]
    context = top.make_context("plugrl", ["env"])
    for row in COMMANDS:
        command = top.get_command(context, row.name)
        inner = command.make_context(row.name, [], context, resilient_parsing=True)
        parts.append(_help(2, command, f"plugrl {row.name}", context))
        for name, subcommand in getattr(command, "commands", {}).items():
            parts.append(_help(3, subcommand, f"plugrl {row.name} {name}", inner))
    return "\n\n".join(parts)


def _help(level: int, command: Any, title: str, parent: Any) -> str:
    context = command.make_context(
        title.rpartition(" ")[2], [], parent, resilient_parsing=True, terminal_width=80
    )
    text = inspect.cleandoc(context.get_help())
    return f"{'#' * level} {title}\n\n```text\n{text}\n```"


def api() -> str:
    """The page about the public names."""
    import plugrl

    parts = ["# Python", NOTE, "These names are imported from `plugrl`."]
    for name in plugrl.__all__:
        value = getattr(plugrl, name)
        parts.append(f"## `{name}`")
        if not callable(value):
            parts.append(f"A constant of type `{type(value).__name__}`.")
            continue
        parts += [f"```text\n{name}{_shown_signature(value)}\n```", text_of(value)]
        if isinstance(value, type):
            parts += _members(value)
    return "\n\n".join(part for part in parts if part)


def _shown_signature(value: Any) -> str:
    if isinstance(value, type) and issubclass(value, Exception) and "__init__" not in vars(value):
        return "(message: str)"
    if isinstance(value, EnumType):
        return f" = {' | '.join(value.__members__)}"
    return signature_of(value)


def _members(cls: type) -> list[str]:
    """What a class defines itself: public methods, and those that a subclass must write.

    Its private bases are its own: they are there to keep files short.
    """
    parts = []
    own = [base for base in cls.__mro__ if base is cls or base.__name__.startswith("_")]
    for name, value in {
        name: value for base in own[::-1] for name, value in vars(base).items()
    }.items():
        abstract = getattr(value, "__isabstractmethod__", False)
        function = getattr(value, "__func__", value)
        if (name.startswith("_") and not abstract) or not getattr(value, "__doc__", None):
            continue
        if isinstance(value, property):
            parts += [f"### `{cls.__name__}.{name}`", text_of(value)]
        elif hasattr(function, "__deprecated__"):
            continue
        elif inspect.isfunction(function):
            shown = f"{name}{signature_of(function)}"
            parts += [f"### `{cls.__name__}.{name}`", f"```text\n{shown}\n```", text_of(value)]
    return parts


def guides() -> str:
    """The page about keys and command lines as guides for recipes write them."""
    import guide_keys

    about = (
        "Recipes written for other trainers, line by line. Each was tried on a small "
        "configuration: it is accepted, means another key, or is refused with what to write "
        "instead."
    )
    return "\n\n".join(["# Keys of other guides", NOTE, about, guide_keys.page()])


BUILDERS = {
    "hooks.md": hooks,
    "cli.md": commands,
    "api.md": api,
    "sections.md": sections,
    "guides.md": guides,
}


def pages() -> dict[str, str]:
    """All pages by file name, as they should be."""
    # Plugins that happen to be installed are no part of the reference.
    os.environ["PLUGRL_PLUGINS"] = ""
    return {name: f"{build().strip()}\n" for name, build in BUILDERS.items()}


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for name, text in pages().items():
        path = PAGES / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"out of date: {', '.join(stale)}; run python docs/generate.py", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
