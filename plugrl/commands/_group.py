"""The lazy command group, and the convention that every command module follows.

**Convention.** The table in ``plugrl/cli.py`` maps a command to a module of
``plugrl.commands``. The module is imported when its command is used, and has at its top level:

- either ``command``: the function of a plain command. Its Typer-annotated parameters become
  arguments and options, its docstring the help;
- or ``app``: a group of commands, made by :func:`new_app`, whose help is its docstring given
  to ``new_app``; give each subcommand its examples with
  ``@app.command("show", epilog=examples(SHOW_EXAMPLES))``;
- ``EXAMPLES``: a string with one example a line (``plugrl train quickstart``), shown at the
  end of ``--help``;
- ``CONTEXT_SETTINGS``, if it is needed: Typer's settings of a plain command.

At the top level a command module imports the standard library and ``typer`` only; the rest is
imported inside the functions. Errors are raised as ``plugrl.core.errors`` and become one line
and an exit code in ``plugrl.cli.main``; a command never prints a traceback and never calls
``sys.exit`` except through ``raise typer.Exit(code)``. Data goes to stdout through
``plugrl.commands._output``, everything else to stderr.

Installed packages add commands with an entry point of the group ``plugrl.commands`` that names
a ``typer.Typer``. They are listed from metadata and cannot take a built-in name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from plugrl.core.errors import PluginError, RunInterrupted, UsageError
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.plugins.packages.installed import EntryPoint


@dataclass(frozen=True, slots=True)
class CommandRow:
    """One line of the table of commands.

    ``passes_words`` says that another program reads the words after the name.
    """

    name: str
    summary: str
    module: str
    passes_words: bool = False


def examples(text: str) -> str:
    r"""The examples of a command as an epilog; ``\b`` keeps its lines as they are written."""
    lines = "\n".join(f"  {line.strip()}" for line in text.splitlines() if line.strip())
    return f"\b\nExamples:\n{lines}"


def new_app(summary: str, text: str = "") -> typer.Typer:
    """A group of commands with the settings that all of plugrl's share.

    ``summary`` is its help and ``text`` its examples.
    """
    return typer.Typer(
        help=summary,
        epilog=examples(text) if text else None,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
    )


def build_command(row: CommandRow) -> Any:
    """Import the module of a built-in command and make the command object of it."""
    module = importlib.import_module(row.module)
    app = getattr(module, "app", None)
    if app is None:
        text = getattr(module, "EXAMPLES", "")
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(
            name=row.name,
            epilog=examples(text) if text else None,
            context_settings=getattr(module, "CONTEXT_SETTINGS", None),
        )(module.command)
    return rename_command(typer.main.get_command(app), row.name)


def rename_command(command: Any, name: str) -> Any:
    """The command object under the name by which the user calls it."""
    command.name = name
    return skip_absent_options(command)


def skip_absent_options(command: Any) -> Any:
    """Let options that were not given skip Typer's conversion, and errors know their command.

    Recent versions of Typer convert with pydantic even when there is nothing to convert, and
    importing pydantic takes longer than a listing.
    """
    get_params, parse_args = command.get_params, command.parse_args

    def parse_args_in_context(ctx: Any, args: list[str]) -> Any:
        try:
            return parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    command.parse_args = parse_args_in_context

    def lightened_params(ctx: Any) -> list[Any]:
        params = list(get_params(ctx))  # with --help, which command.params lacks
        for param in params:
            if not param.required and "process_value" not in vars(param):
                param.process_value = _skip_absent(param)
        return params

    command.get_params = lightened_params
    for subcommand in getattr(command, "commands", {}).values():
        skip_absent_options(subcommand)
    return command


def _skip_absent(param: Any) -> Callable[[Any, Any], Any]:
    convert = param.process_value

    def process_value(ctx: Any, value: Any) -> Any:
        if value is not None:
            return convert(ctx, value)
        absent = () if param.multiple or param.nargs == -1 else None
        return absent if param.callback is None else param.callback(ctx, param, absent)

    return process_value


class LazyGroup(TyperGroup):
    """The root group: static summaries in ``--help``, modules imported when called."""

    #: Set by ``plugrl.cli``.
    rows: tuple[CommandRow, ...] = ()

    def list_commands(self, ctx: Any) -> list[str]:
        """The built-in commands, in the order of the table."""
        return [row.name for row in self.rows]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import one command, built-in or of a plugin; ``None`` when there is none."""
        for row in self.rows:
            if row.name == cmd_name:
                return build_command(row)
        for entry in plugin_commands(self.rows):
            if entry.name == cmd_name:
                return _build_plugin_command(entry)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of the line, or say which one may have been meant."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is not None:
            return name, command, args[1:]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        known = [*self.list_commands(ctx), *(e.name for e in plugin_commands(self.rows))]
        raise UsageError(
            f"there is no command {name!r}{did_you_mean(name, known) or ';'} see plugrl --help"
        )

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the two lists of commands from their static summaries; nothing is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(row.name, row.summary) for row in self.rows])
        found = plugin_commands(self.rows)
        if found:
            with formatter.section("Plugin commands"):
                formatter.write_dl([(entry.name, f"from {entry.distribution}") for entry in found])

    def invoke(self, ctx: Any) -> None:
        """Run the command, whatever it returns; Ctrl-C becomes exit code 130."""
        try:
            super().invoke(ctx)
        except KeyboardInterrupt:
            raise RunInterrupted("interrupted") from None


def plugin_commands(rows: tuple[CommandRow, ...]) -> list[EntryPoint]:
    """The commands of the allowed plugins that do not take a built-in name."""
    from plugrl.core.plugins.packages.installed import COMMAND_GROUP, PluginSelection, scan

    taken = {row.name for row in rows}
    selection = PluginSelection.from_environment()
    return sorted(
        (
            entry
            for entry in scan()
            if entry.group == COMMAND_GROUP
            and entry.name not in taken
            and selection.refusal(entry.distribution, entry.name) is None
        ),
        key=lambda entry: (entry.name, entry.distribution),
    )


def _build_plugin_command(entry: EntryPoint) -> Any:
    from plugrl.core.plugins.loading import describe_error, import_target

    who = f"command {entry.name!r} of {entry.distribution} {entry.version} ({entry.target})"
    try:
        app = import_target(entry.target)
        if not isinstance(app, typer.Typer):
            raise PluginError(f"{who} is a {type(app).__name__}, not a typer.Typer")
        return rename_command(typer.main.get_command(app), entry.name)
    except (KeyboardInterrupt, PluginError):
        raise
    except BaseException as error:
        reason = describe_error(error, entry.target)
        raise PluginError(f"{who} cannot be imported: {reason}") from error
