"""Running the command line: global options, one line for each error, exit codes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from plugrl.__about__ import __version__
from plugrl.commands._group import CommandRow, LazyGroup, examples, skip_absent_options
from plugrl.commands._launcher_syntax import command_at, translate_words
from plugrl.core.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_RUN_FAILED,
    EXIT_USAGE,
    PluginError,
    PlugrlDeprecationWarning,
    PlugrlError,
    StopRun,
)
from plugrl.core.wording import LONGEST_RECORD, bounded, bounded_message, shown

_FORM = warnings.formatwarning
EXAMPLES = """
plugrl train quickstart
plugrl train experiment.yaml models.policy.train.learning_rate=1e-4
plugrl validate experiment.yaml
plugrl plugins list
plugrl train experiment.yaml -p my_components.py
plugrl -p no:some-plugin train experiment.yaml
"""
#: Global options without a value.
_SWITCHES = frozenset({"--debug", "--no-plugins"})


def run(rows: Sequence[CommandRow], arguments: Sequence[str] | None = None) -> None:
    """Run one command line and raise ``SystemExit`` with its exit code."""
    words = _global_options_first(rows, sys.argv[1:] if arguments is None else arguments)
    debug = _has_debug(words)
    _show_deprecations()
    _escape_on_stdout()
    streams = _keep_open()
    try:
        # What a command returns is dropped by the group: a number is that of a typer.Exit.
        spelt = translate_words(words)
        code = root(rows).main(spelt, prog_name="plugrl", standalone_mode=False) or EXIT_DONE
    except StopRun:
        code = EXIT_DONE
    except typer.Abort:
        print("error: interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except PlugrlError as error:
        _report(error, debug)
        code = error.exit_code
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if callable(getattr(error, "format_message", None)):
            raise SystemExit(_report_usage(error, debug)) from None
        if debug:
            raise
        from plugrl.core.plugins.user_code.error_location import one_line

        text = f"error: unexpected {one_line(error)}; re-run with plugrl --debug"
        print(shown(text), file=sys.stderr)
        _print_notes(error)
        code = EXIT_RUN_FAILED
    finally:
        _flush()
        for stream in streams:
            del stream.close
    _leave_within_seconds(code)
    raise SystemExit(code)


def _show_deprecations() -> None:
    """Print what goes away: Python shows such warnings to the authors of programs alone."""
    kind = PlugrlDeprecationWarning
    if not sys.warnoptions and all(row[2] is not kind for row in warnings.filters):
        warnings.simplefilter("default", kind)
    warnings.formatwarning = _one_line


def _one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """How a warning is printed: those of plugrl name what to write, not a line of plugrl."""
    if issubclass(category, PlugrlDeprecationWarning):
        return shown(f"warning: {message}") + "\n"
    return _FORM(message, category, filename, lineno, line)


def _escape_on_stdout() -> None:
    """Write what the encoding of stdout lacks as escapes, as Python itself does on stderr."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and sys.stdout.errors in ("strict", "surrogateescape"):
        reconfigure(errors="backslashreplace")


def _keep_open() -> list[Any]:
    """Let code of a run that closes stdout or stderr flush them alone: more is to be printed."""
    streams: list[Any] = [s for s in (sys.stdout, sys.stderr) if isinstance(s, io.TextIOWrapper)]
    for stream in streams:
        stream.close = stream.flush
    return streams


def _leave_within_seconds(code: int) -> None:
    """Do not let what a tracker that was given up still does hold up the end of the process."""
    tracking = sys.modules.get("plugrl.core.run.tracking.group")
    if tracking is not None and tracking.tracker_hangs():
        from plugrl.core.run.process.signals import exit_soon

        exit_soon(code)


def root(rows: Sequence[CommandRow]) -> Any:
    """The root command object; the documentation is made from it too."""
    app = typer.Typer(
        name="plugrl",
        cls=type("Root", (LazyGroup,), {"rows": tuple(rows)}),
        help="Train reinforcement-learning agents and language models with plugins.",
        epilog=examples(EXAMPLES),
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    return skip_absent_options(typer.main.get_command(app))


def _no_plugins(value: bool) -> bool:
    if value:
        from plugrl.core.plugins.packages.installed import PluginSelection

        PluginSelection(enabled=False).export()
    return value


def _plugin(values: list[str] | None) -> list[str]:
    blocked = [value.removeprefix("no:") for value in values or () if value.startswith("no:")]
    if blocked:
        from plugrl.core.plugins.packages.installed import PluginSelection

        PluginSelection.from_environment().without(blocked).export()
    return [value for value in values or () if not value.startswith("no:")]


def _version(value: bool) -> None:
    if value:
        print(f"plugrl {__version__}")
        raise typer.Exit()


def _options(
    no_plugins: Annotated[
        bool,
        typer.Option(
            "--no-plugins", callback=_no_plugins, is_eager=True, help="Use no installed plugin."
        ),
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            callback=_plugin,
            is_eager=True,
            metavar="NAME",
            help="no:NAME disables a plugin; NAME imports a module or a .py file first.",
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, and debug logs.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    _log_to_stderr(debug)
    if plugin:
        from plugrl.core.plugins.loading import import_user_module

        for name in plugin:
            import_user_module(name)


def _global_options_first(rows: Sequence[CommandRow], words: Sequence[str]) -> list[str]:
    """The words with the global options that stand after one of plugrl's own commands before it.

    They decide which packages and files are loaded, before the command is. Commands of plugins may
    have options of the same name.
    """
    at = command_at(words)
    if "".join(words[at : at + 1]) not in {row.name for row in rows if not row.passes_words}:
        return list(words)
    first, rest = list(words[:at]), list(words[at:])
    end = rest.index("--") if "--" in rest else len(rest)
    own, index = rest[:1], 1
    while index < end:
        word = rest[index]
        after = index + 2 if word == "-p" else index + 1
        is_global = word in _SWITCHES or (word.startswith("-p") and after <= end)
        (first if is_global else own).extend(rest[index : min(after, end)])
        index = after
    return [*first, *own, *rest[end:]]


def _has_debug(words: Sequence[str]) -> bool:
    """Whether ``--debug`` is among the global options, before Typer has parsed them."""
    return "--debug" in words[: command_at(words)]


def _log_to_stderr(debug: bool) -> None:
    import logging

    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            from plugrl.core.config.hidden import without_credentials

            text = without_credentials(bounded(super().format(record), LONGEST_RECORD))
            return shown(f"{record.levelname.lower()}: {text}")

    handler = logging.StreamHandler()
    handler.set_name("plugrl.cli")
    handler.setFormatter(Formatter())
    handler.setLevel(logging.DEBUG if debug else logging.WARNING)
    logger = logging.getLogger("plugrl")
    logger.handlers = [h for h in logger.handlers if h.get_name() != handler.get_name()]
    logger.addHandler(handler)
    if debug:
        logger.setLevel(logging.DEBUG)


def _report_usage(error: Any, debug: bool) -> int:
    """One line for an exception of the command-line parser, which is known by its attributes."""
    if debug:
        import traceback

        print(shown("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return EXIT_USAGE
    close = getattr(error, "possibilities", None)
    text = str(error.message if close else error.format_message())
    text = (
        bounded_message(" ".join(text.split()))
        .rstrip(".")
        .replace(". Did you mean", "; did you mean")
    )
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    if close:
        text += f"; did you mean {', '.join(close)}?"
    unknown = type(error).__name__ == "NoSuchOption"
    if unknown and getattr(error, "option_name", None) in {"-p", *_SWITCHES}:
        text += "; it stands before the command: plugrl -p NAME, plugrl --debug"
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "plugrl"
    print(shown(f"error: {text} (see {command} --help)"), file=sys.stderr)
    return int(getattr(error, "exit_code", EXIT_USAGE))


def _report(error: PlugrlError, debug: bool) -> None:
    from plugrl.core.config.hidden import without_credentials

    if debug:
        import traceback

        print(shown("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    hidden = not debug and isinstance(error, PluginError) and error.__cause__ is not None
    text = f"{error}; re-run with plugrl --debug for its traceback" if hidden else str(error)
    text = bounded(text, LONGEST_RECORD)
    print(shown(f"error: {without_credentials(text)}"), file=sys.stderr)
    _print_notes(error)


def _print_notes(error: BaseException) -> None:
    """Print what was added to the error on its way, such as the command that resumes a run."""
    for line in getattr(error, "__notes__", ()):
        print(shown(str(line)), file=sys.stderr)


def _flush() -> None:
    """Flush now, where a reader that went away can still be ignored."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
