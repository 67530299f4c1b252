"""A sample of the tests in odd surroundings: nothing depends on the shell, locale, home or path.

What they start inherits all of it, so that the command line meets it too.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[1]
#: Paths, text beyond ASCII, tables, processes, signals, permissions and variables.
SAMPLE = (
    "tests/commands/test_config_commands.py::test_show_gives_a_file_that_means_the_same",
    "tests/commands/test_config_commands.py::test_a_terminal_without_the_characters_gets_escapes",
    "tests/commands/test_config_commands.py::test_show_says_where_each_value_comes_from",
    "tests/core/config/test_compose.py",
    "tests/core/run/test_permissions.py",
    "tests/core/run/test_run.py::test_one_signal_ends_at_the_next_step_with_a_checkpoint",
    "tests/core/run/test_timeline.py",
    "tests/core/plugins/test_registry.py",
    "tests/core/run/test_setup_script.py::test_what_it_exports_and_nothing_else",
    "tests/core/run/test_setup_script.py::test_ways_to_write_and_to_end_it",
    "tests/core/run/test_setup_script.py::test_a_run_has_its_variables_and_its_folder_does_not",
    "tests/plugins_trackers/test_jsonl.py",
    "tests/test_forking.py",
)
SHELL = {
    # An activated environment, and the prompt of a shell that exports it.
    "PS1": "(venv) $ ",
    "PS2": "> ",
    "COLUMNS": "40",
    "LINES": "9",
    "FORCE_COLOR": "1",
    "CI": "true",
    "TZ": "Asia/Kathmandu",
    "PYTHONHASHSEED": "1",
    "PLUGRL_PLUGINS": "",
    "PLUGRL_PLUGINS_BLOCKED": "plugrl",
    "PLUGRL_IMPORTS": "nowhere.py",
    "PLUGRL_SERVE_TOKEN": "of-the-caller",
}
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
DUMB = {"LANG": "C", "TERM": "dumb", "NO_COLOR": "1", "TZ": "America/St_Johns"}


def sample(root, folder, variables, *, without=(), ignore_interrupts=False):
    """Run the sample of the tests of ``root`` with another environment; its last line."""
    given = {name: value for name, value in os.environ.items() if name not in without}
    # Text whose encoding plugrl does not name is an error.
    words = [sys.executable, "-X", "warn_default_encoding", "-m", "pytest", "--color=no"]
    words += ["-p", "no:cacheprovider", "--basetemp", str(folder), *SAMPLE]
    if ignore_interrupts:
        words = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *words]
    done = subprocess.run(
        words,
        cwd=root,
        env={**given, "PYTHONPATH": str(root), **variables},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_variables_of_a_shell_and_an_ascii_locale_without_a_home(tmp_path):
    variables = SHELL | ASCII
    sample(ROOT, tmp_path / "base", variables, without=("HOME",), ignore_interrupts=True)


def test_a_path_with_a_space_and_an_accent_and_a_home_that_cannot_be_written(tmp_path):
    copy = tmp_path / "with space é" / "plugrl"
    for name in ("plugrl", "tests", "examples", "docs", "benchmarks", "plugrl.egg-info"):
        if (ROOT / name).is_dir():
            bytecode = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, ignore=bytecode)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    home = tmp_path / "home"
    home.mkdir(0o555)
    sample(copy, tmp_path / "base é x", DUMB | {"HOME": str(home)})
