"""Write the reference pages from the code; ``--check`` only compares them.

``python docs/generate.py`` writes ``docs/reference/*.md``. With ``--check`` nothing is written,
and the exit code is 1 when a page differs from what the code says.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before any import of plugrl: pages do not depend on what is installed, nor on the terminal.
os.environ |= {"PLUGRL_PLUGINS": "", "COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"}

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Made by docs/generate.py; change the code instead. -->\n"
ROLE = re.compile(r":(?:class|func|meth|attr|data|mod|exc):`~?([^`]+)`")
HEADER = re.compile(r"^(Args|Attributes|Raises|Returns):$")
ITEM = re.compile(r"^(?:    )?(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): (.*)$")


def cli_page() -> str:
    """The help of every command."""
    from plugrl.cli import COMMANDS

    parts = ["# Commands\n", NOTE, _help([])]
    for row in COMMANDS:
        module = importlib.import_module(row.module)
        parts += [f"## plugrl {row.name}\n", _help([row.name])]
        app = getattr(module, "app", None)
        for name in subcommands(app) if app is not None else ():
            parts += [f"### plugrl {row.name} {name}\n", _help([row.name, name])]
    return "\n".join(parts)


def subcommands(app: Any) -> list[str]:
    """The names of the commands of a group, in their order."""
    return [
        info.name or info.callback.__name__.replace("_", "-") for info in app.registered_commands
    ]


def _help(words: list[str]) -> str:
    from plugrl.cli import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    lines = "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines())
    return f"```text\n{lines}\n```\n"


def hooks_page() -> str:
    """Every hook with its arguments."""
    from plugrl.core import hookspecs

    lines = ["# Hooks\n", NOTE, _prose(inspect.getdoc(hookspecs) or "") + "\n"]
    lines.append(f"The version of the hook API is `HOOK_API = {hookspecs.HOOK_API}`.\n")
    for name, hook in vars(hookspecs).items():
        if name.startswith("plugrl_"):
            lines += [f"## {name}\n", _signature(name, hook), _prose(inspect.getdoc(hook) or "")]
            lines.append("")
    return "\n".join(lines)


def sections_page() -> str:
    """The keys of every root section, and the options of plugrl's own components."""
    from plugrl.core.config.describe import describe_component, describe_section
    from plugrl.core.config.sections import COMMON, TEXT
    from plugrl.core.kinds import KINDS
    from plugrl.core.registry import default_registry

    lines = ["# Sections\n", NOTE]
    lines.append("The root sections of a configuration, then the options of the components.\n")
    for title, sections in (("Of every run", COMMON), ("Of text trainers", TEXT)):
        lines.append(f"## {title}\n")
        for name in sections:
            lines += [f"### {name}\n", _section_words(sections[name]), ""]
            lines += [_table(describe_section(name) or []), ""]
    registry = default_registry()
    for kind in KINDS.values():
        lines.append(f"## {kind.plural.replace('_', ' ').capitalize()}\n")
        for record in registry.records(kind.name):
            value = registry.load(record)
            summary = _prose((inspect.getdoc(value) or "").split("\n\n")[0])
            rows = describe_component(value)
            lines += [f"### {kind.name} {record.name}\n", summary, ""]
            lines += [_table(rows) if rows else "It has no options.", ""]
    return "\n".join(lines)


def _section_words(schema: Any) -> str:
    """What a section is for: the docstring of its dataclass, or the help of its field."""
    inner = getattr(schema, "__args__", (schema,))[-1]
    metadata = getattr(schema, "metadata", None)
    if metadata is not None:
        words = str(metadata.get("plugrl.help", ""))
        return words[:1].upper() + words[1:] + "."
    return "A plain value." if inner in (str, int) else _prose(inspect.getdoc(inner) or "")


def _table(rows: list[dict[str, Any]]) -> str:
    lines = ["| Key | Type | Default | Meaning |", "| --- | --- | --- | --- |"]
    for row in rows:
        default = "required" if row["required"] else f"`{json.dumps(row['default'])}`"
        cells = (f"`{row['key']}`", f"`{row['type']}`", default, row["help"])
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def api_page() -> str:
    """The public names of the package ``plugrl``."""
    import plugrl

    lines = ["# Python\n", NOTE, _prose(inspect.getdoc(plugrl) or "") + "\n"]
    for name in plugrl.__all__:
        value = getattr(plugrl, name)
        lines.append(f"## {name}\n")
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            lines.append(_constant(name, value))
            continue
        lines += [_signature(name, value), _prose(inspect.getdoc(value) or ""), ""]
        for method, function, doc in _members(value) if inspect.isclass(value) else ():
            lines += [f"### {name}.{method}\n", _signature(method, function), _prose(doc), ""]
    return "\n".join(lines)


def _constant(name: str, value: Any) -> str:
    if isinstance(value, (str, int)):
        words = {"__version__": "The version of plugrl.", "HOOK_API": "The version of the hooks."}
        return words.get(name, f"`{value!r}`") + "\n"
    words = inspect.getdoc(type(value)) or ""
    return _prose(words.split("\n\n")[0]) + "\n"


def _members(cls: type) -> Iterator[tuple[str, Any, str]]:
    """Public methods and properties that the class itself defines and documents."""
    for name, raw in vars(cls).items():
        function = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
        function = function.fget if isinstance(function, property) else function
        if not name.startswith("_") and inspect.isfunction(function) and inspect.getdoc(raw):
            yield name, raw if isinstance(raw, property) else function, inspect.getdoc(raw) or ""


def _signature(name: str, value: Any) -> str:
    if isinstance(value, property):
        returned = value.fget.__annotations__.get("return", "") if value.fget else ""
        text = f"{name}: {returned}"
    else:
        try:
            text = f"{name}{inspect.signature(value)}"
        except (TypeError, ValueError):
            text = name
    text = re.sub(r"<factory>|<object object at 0x[0-9a-f]+>", "...", text).replace("'", "")
    if len(text) > 88:
        text = _wrapped(text)
    return f"```text\n{text}\n```\n"


def _wrapped(text: str) -> str:
    """One parameter a line; commas inside brackets separate nothing."""
    head, _, rest = text.partition("(")
    depth, parts, current = 0, [], ""
    for position, letter in enumerate(rest):
        if letter == ")" and depth == 0:
            tail = rest[position:]
            break
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    parts.append(current.strip())
    return "\n".join([f"{head}(", *(f"    {part}," for part in parts if part), tail])


def _prose(doc: str) -> str:
    """A docstring as Markdown: roles become code, argument lists become lists."""
    doc = ROLE.sub(lambda found: f"`{found[1].rpartition('.')[2]}`", doc).replace("``", "`")
    lines: list[str] = []
    inside = False
    for line in doc.splitlines():
        header = HEADER.match(line)
        if header:
            inside = True
            lines += [f"**{header[1]}**", ""]
        elif inside and line and not line.startswith(" "):
            inside = False
            lines.append(line)
        elif inside:
            item = ITEM.match(line)
            lines.append(f"- `{item[1]}`: {item[2]}" if item else f"  {line.strip()}".rstrip())
        else:
            lines.append(line)
    return "\n".join(lines).strip() + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "hooks.md": hooks_page,
    "sections.md": sections_page,
    "api.md": api_page,
}


def stale(folder: Path = REFERENCE) -> list[str]:
    """The pages in ``folder`` that differ from what the code says."""
    return [name for name, make in PAGES.items() if _read(folder / name) != _page(make)]


def _page(make: Callable[[], str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", make()).strip() + "\n"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when stale")
    if parser.parse_args().check:
        outdated = stale()
        for name in outdated:
            print(f"docs/reference/{name} is not up to date; run python docs/generate.py")
        return 1 if outdated else 0
    REFERENCE.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(_page(make), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
