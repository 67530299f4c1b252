"""From an error to its line and its exit code."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import DEADLINE

import plugrl.commands
from plugrl.cli import COMMANDS, main
from plugrl.commands._group import CommandRow, build_command
from plugrl.commands._main import run
from plugrl.core.errors import EXIT_USAGE
from plugrl.core.experiment import prepare

MODULE = """
import sys
import typer
from plugrl.core.errors import ConfigError, PluginError, RunError, StopRun

EXAMPLES = '''
plugrl probe now
plugrl probe later
'''


class Odd(BaseException):
    pass


class Mute(BaseException):
    def __str__(self):
        raise Mute


def command(what: str) -> None:
    '''Raise something.'''
    errors = {
        "config": ConfigError("2 faults", ["a: wrong", "b: wrong"]),
        "plugin": PluginError("a plugin"),
        "run": RunError("the run"),
        "stop": StopRun("enough"),
        "bug": TypeError("a bug"),
        "interrupt": KeyboardInterrupt(),
        "exit": typer.Exit(7),
        "base": Odd("boo"),
        "mute": Mute(),
        "long": TypeError("x" * 5_000_000),
    }
    if what == "close":
        sys.stdout.close()
        sys.stderr.close()
        print("to stderr", file=sys.stderr)
    if what in errors:
        raise errors[what]
    print(what)
"""


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
    (tmp_path / "probe_command.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = [CommandRow("probe", "Raise something.", "probe_command")]

    def call(*arguments):
        with pytest.raises(SystemExit) as caught:
            run(rows, arguments)
        return caught.value.code, *capfd.readouterr()

    monkeypatch.setenv("PLUGRL_IMPORTS", "")  # restored afterwards
    yield call
    sys.modules.pop("probe_command", None)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("word", (0, "word\n", "")),
        ("config", (2, "", "error: 2 faults\n  a: wrong\n  b: wrong\n")),
        ("plugin", (3, "", "error: a plugin\n")),
        ("run", (1, "", "error: the run\n")),
        ("stop", (0, "", "")),
        ("bug", (1, "", "error: unexpected TypeError: a bug; re-run with plugrl --debug\n")),
        ("interrupt", (130, "", "error: interrupted\n")),
        ("exit", (7, "", "")),
        ("base", (1, "", "error: unexpected Odd: boo; re-run with plugrl --debug\n")),
        ("mute", (1, "", "error: unexpected Mute; re-run with plugrl --debug\n")),
        ("close", (0, "close\n", "to stderr\n")),
    ],
)
def test_exit_codes(call, what, expected):
    assert call("probe", what) == expected


def test_the_line_of_an_error_is_bounded(call):
    code, _, err = call("probe", "long")
    assert code == 1
    # 2,000 characters of 5,000,000 are kept.
    assert "[... 4,998,000 characters ...]" in err
    assert len(err) < 2200


def test_debug_shows_the_traceback(call):
    code, _, err = call("--debug", "probe", "run")
    assert code == 1
    assert "Traceback" in err
    assert err.endswith("error: the run\n")


def test_help_ends_with_the_examples(call):
    code, out, _ = call("probe", "--help")
    assert code == 0
    assert "Raise something." in out
    assert out.endswith("Examples:\n    plugrl probe now\n    plugrl probe later\n")


def test_usage_errors(call):
    missing = "error: missing argument 'what' (see plugrl probe --help)\n"
    assert call("probe") == (EXIT_USAGE, "", missing)
    code, _, err = call("--debug", "probe")
    assert code == EXIT_USAGE
    assert "Traceback" in err
    assert err.endswith(missing)
    code, out, err = call("prob")
    assert (code, out) == (2, "")
    assert err == "error: there is no command 'prob'; did you mean probe? see plugrl --help\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train", "missing argument 'config' (see plugrl train --help)"),
        ("train --rsume x", "no such option: --rsume (see plugrl train --help)"),
        ("train --dry-rn x", "no such option: --dry-rn; did you mean --dry-run? (see plugrl train"),
        ("runs lst", "no such command 'lst'; did you mean 'list'? (see plugrl runs --help)"),
        ("runs show", "missing argument 'RUN' (see plugrl runs show --help)"),
        ("plugins list --kind", "option '--kind' requires an argument (see plugrl plugins list"),
        ("plugins check --timeout x", "invalid value for '--timeout': "),
        ("env more", "got unexpected extra argument(s) (more) (see plugrl env --help)"),
        ("--debg env", "no such option: --debg; did you mean --debug? (see plugrl --help)"),
        ("-p", "option '-p' requires an argument (see plugrl --help)"),
    ],
)
def test_usage_errors_are_one_line(line, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert caught.value.code == EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")
    assert err.endswith("--help)\n")
    assert err.count("\n") == 1


def test_a_group_without_a_command_shows_its_help(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["runs"])
    assert caught.value.code == EXIT_USAGE
    assert "Usage: plugrl runs" in "".join(capsys.readouterr())


@pytest.mark.parametrize(("state", "close"), [("faild", "; did you mean failed?"), ("qqq", ";")])
def test_a_state_that_no_run_has_is_refused(state, close, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["runs", "list", "--state", state])
    assert caught.value.code == EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        f"error: there is no state '{state}'{close} states: running, done, failed, "
    )
    assert err.endswith(", broken\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "remark"),
    [
        ("runs list", "no runs in runs"),
        ("runs list --state failed", "no runs that are failed in runs"),
        ("--no-plugins plugins list --kind command", "no command is installed"),
        ("--no-plugins plugins list --third-party --kind loss", "no loss is installed besides"),
        ("--no-plugins plugins list --kind hook", "no hook is installed"),
    ],
)
def test_an_empty_table_is_a_remark(line, remark, tmp_path, monkeypatch, capsys, registry):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLUGRL_PLUGINS", "x")  # restored afterwards
    monkeypatch.delenv("PLUGRL_PLUGINS")

    def written(*words):
        with pytest.raises(SystemExit) as caught:
            main([*line.split(), *words])
        assert not caught.value.code
        return capsys.readouterr()

    out, err = written()
    assert out == ""
    assert err.startswith(remark)
    assert err.count("\n") == 1
    assert written("--json") == ("[]\n", "")


def test_modules_given_with_p_are_imported_first(call, tmp_path):
    (tmp_path / "early.py").write_text("print('early')\n")
    assert call("-p", str(tmp_path / "early.py"), "probe", "late") == (0, "early\nlate\n", "")
    code, _, err = call("-p", "no_such_module_here", "probe", "late")
    assert code == 3
    assert "error: -p no_such_module_here cannot be imported: ModuleNotFoundError" in err


@pytest.mark.parametrize("line", ["-p {} probe late", "probe late -p {}", "probe -p{} late"])
def test_global_options_stand_before_or_after_the_command(line, call, tmp_path):
    (tmp_path / "early.py").write_text("print('early')\n")
    words = line.format(tmp_path / "early.py").split()
    assert call(*words) == (0, "early\nlate\n", "")
    assert "Traceback" in call("probe", "config", "--debug")[2]
    assert call("probe", "--", "-p") == (0, "-p\n", "")
    assert "it stands before the command: plugrl -p NAME" in call("probe", "late", "-p")[2]


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_no_command_has_an_option_that_is_a_global_one(row):
    command = build_command(row)
    for each in [command, *getattr(command, "commands", {}).values()]:
        taken = {option for param in each.params for option in param.opts}
        assert not taken & {"-p", "--debug", "--no-plugins"}


def test_version_and_no_arguments(capsys):
    from plugrl import __version__

    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"plugrl {__version__}\n"


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_every_command_has_help_with_examples(row, capsys):
    with pytest.raises(SystemExit) as caught:
        main([row.name, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert f"Examples:\n    plugrl {row.name}" in out
    assert not [line for line in out.splitlines() if line != line.rstrip()]


def test_a_reader_that_goes_away_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "plugrl", "plugins", "list"], stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert done.stderr == b""


def test_ctrl_c(tmp_path):
    (tmp_path / "sleeper.py").write_text(
        "import time\nprint('started', flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "plugrl", "-p", "sleeper", "plugins", "list"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "started\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert err == "error: interrupted\n"


def test_options_with_a_metavar_spell_out_their_name():
    """Typer 0.26 and 0.27 derive the name of an option from its metavar otherwise."""
    for file in Path(plugrl.commands.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "typer.Option":
                continue
            if any(keyword.arg == "metavar" for keyword in call.keywords):
                names = [each.value for each in call.args if isinstance(each, ast.Constant)]
                assert any(str(name).startswith("-") for name in names), (file, call.lineno)


def keys_of(tree, above=""):
    """All keys of a configuration, as paths."""
    rows = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in rows:
        yield (path := f"{above}{key}")
        if isinstance(value, (dict, list)):
            yield from keys_of(value, f"{path}.")


@pytest.mark.integration
def test_keys_of_the_examples_are_keys_of_a_recipe():
    recipes = ("quickstart", "sft", "cartpole_ppo")
    trees = [prepare(name, preflight=False).validated.tree for name in recipes]
    known = {key for tree in trees for key in keys_of(tree)}
    tried = 0
    for module in pkgutil.iter_modules(plugrl.commands.__path__, "plugrl.commands."):
        for name, text in vars(importlib.import_module(module.name)).items():
            if not name.endswith("EXAMPLES"):
                continue
            for word in shlex.split(text):
                if not re.match(r"[a-z]\w*(\.\w+)*=", word):
                    continue
                tried += 1
                assert word.partition("=")[0] in known, f"{module.name}.{name}: {word}"
    assert tried > 10
