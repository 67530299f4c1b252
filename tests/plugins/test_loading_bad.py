"""Each bad package harms nobody but itself, and says what is wrong in one line."""

from __future__ import annotations

import json

import pytest

RESOLVE = """
import sys
from plugrl.commands._main import _report
from plugrl.core.errors import PlugrlError
from plugrl.core.plugins.registry import default_registry
try:
    print(default_registry().get(*sys.argv[1:]).__qualname__)
except PlugrlError as error:
    _report(error, debug=False)
    raise SystemExit(error.exit_code)
"""
HOOKS = """
import json, sys
from plugrl.core.plugins.discovery import load_hook_plugins
from plugrl.core.plugins.registry import default_registry
result = load_hook_plugins(default_registry())
print(json.dumps({
    "loaded": [entry.name for entry in result.loaded],
    "registered": sorted(name for name, plugin in result.manager.list_name_plugin() if plugin),
    "failed": {f.name: [f.phase, f.distribution, f.message] for f in result.failures},
    "slow": [f.name for f in result.failures if f.seconds < 0],
}))
"""


def test_the_good_trainer_is_found_by_both_spellings(python):
    for name in ("good", "plugrl-test-good/good", "Plugrl_Test.Good/good"):
        done = python("-c", RESOLVE, "trainer", name)
        assert (done.returncode, done.stdout) == (0, "GoodTrainer\n"), done.stderr


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        (
            "import_error",
            3,
            "error: trainer 'import_error' of plugrl-test-import-error 1.0 "
            "(plugrl_test_import_error.trainer:BrokenTrainer) cannot be imported: "
            "ModuleNotFoundError: No module named 'package_that_is_not_there' at "
            "{site}/plugrl_test_import_error/trainer.py:1; re-run with plugrl --debug for its "
            "traceback",
        ),
        (
            "wrong_base",
            3,
            "error: trainer 'wrong_base' of plugrl-test-wrong-base 1.0 "
            "(plugrl_test_wrong_base.trainer:NotATrainer) is a class that does not subclass "
            "Trainer; derive it from plugrl.Trainer",
        ),
        (
            "nothing",
            3,
            "error: trainer 'nothing' of plugrl-test-nothing 1.0 "
            "(plugrl_test_nothing.gone:NothingTrainer) cannot be imported: "
            "ModuleNotFoundError: No module named 'plugrl_test_nothing.gone'; re-run with plugrl "
            "--debug for its traceback",
        ),
        (
            "twin",
            2,
            "error: trainer 'twin' is provided by plugrl-test-twin-a 1.0 and "
            "plugrl-test-twin-b 1.0; write plugrl-test-twin-a/twin or plugrl-test-twin-b/twin",
        ),
    ],
)
def test_a_bad_trainer_ends_in_one_line(python, installed, name, code, message):
    done = python("-c", RESOLVE, "trainer", name)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == message.format(site=installed)


def test_a_failing_import_is_one_line(python):
    done = python("-c", RESOLVE, "trainer", "import_error")
    assert "plugrl_test_import_error/trainer.py:1" in done.stderr
    assert done.stderr.count("\n") == 1


def test_two_packages_with_one_name_clash_whatever_was_imported_first(python):
    for first in ("a", "b"):
        script = f"import plugrl_test_twin_{first}.trainer\n{RESOLVE}"
        done = python("-c", script, "trainer", "twin")
        assert done.returncode == 2
        assert "plugrl-test-twin-a/twin or plugrl-test-twin-b/twin" in done.stderr
    done = python("-c", RESOLVE, "trainer", "twin", only="plugrl-test-twin-b")
    assert (done.returncode, done.stdout) == (0, "TwinTrainer\n"), done.stderr


WHERE = """
import sys
from plugrl.core.plugins.registry import default_registry
print(default_registry().resolve(*sys.argv[1:]).target)
"""


def test_a_name_of_plugrl_is_not_taken_over(python):
    done = python("-c", f"import plugrl_test_shadow.loss\n{WHERE}", "loss", "clipped")
    assert done.stdout == "plugrl.trainers.self_hosted_grpo:clipped\n"
    done = python("-c", WHERE, "loss", "plugrl-test-shadow/clipped")
    assert done.stdout == "plugrl_test_shadow.loss:clipped\n"


def test_names_of_disabled_plugins_say_so(python):
    done = python("-c", RESOLVE, "trainer", "good", only="")
    assert done.returncode == 2
    assert done.stderr == (
        "error: trainer 'good' is provided by plugrl-test-good 1.0, which is disabled by "
        "--no-plugins or an empty PLUGRL_PLUGINS\n"
    )


def test_unknown_names_get_close_ones_and_what_is_installed(python):
    done = python("-c", RESOLVE, "loss", "clippt", only="good")
    start, _, installed = done.stderr.partition("; did you mean clipped? installed: ")
    assert start == "error: unknown loss 'clippt'"
    names = installed.rstrip("\n").split(", ")
    assert names == sorted(names)
    assert {"clipped", "cross_entropy", "good"} <= set(names)


def test_hook_plugins_are_isolated_and_in_order(python):
    done = python("-c", HOOKS)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["loaded"] == ["good", "heavy", "slow"]
    assert result["registered"] == [f"plugrl-test-{n}/{n}" for n in ("good", "heavy", "slow")]
    failed = {name: found[0] for name, found in result["failed"].items()}
    assert failed == {
        "exit": "import",
        "import_error": "import",
        "misspelt": "hooks",
        "other_api": "api",
    }
    warnings = done.stderr.splitlines()
    assert len(warnings) == 4
    assert sorted(warnings) == sorted(found[2] for found in result["failed"].values())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exit", "(import): SystemExit: 0"),
        ("misspelt", "unknown hook plugrl_run_edn; did you mean plugrl_run_end?"),
        ("other_api", "it was written for hook API 2, this plugrl has 1"),
    ],
)
def test_the_warning_names_the_package_the_reason_and_the_remedy(python, name, reason):
    done = python("-c", HOOKS, only=name)
    [line] = done.stderr.splitlines()
    distribution = f"plugrl-test-{name.replace('_', '-')}"
    assert line.startswith(f"plugin {name!r} of {distribution} 1.0 was not loaded")
    assert reason in line
    assert line.endswith(f"disable it with -p no:{name}")


def test_blocked_hook_plugins_are_never_imported(python):
    script = f"{HOOKS}\nassert not [n for n in sys.modules if n.startswith('plugrl_test_')]"
    for variables in ({"only": ""}, {"PLUGRL_PLUGINS_BLOCKED": ",".join(
        ["good", "heavy", "slow", "exit", "misspelt", "import_error", "plugrl-test-other-api"]
    )}):  # fmt: skip
        done = python("-c", script, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["loaded"] == []


def test_strict_makes_a_failing_hook_plugin_fatal(python):
    script = HOOKS.replace("(default_registry())", "(default_registry(), strict=True)")
    done = python("-c", script, only="misspelt")
    assert done.returncode == 1
    assert "PluginError: plugin 'misspelt' of plugrl-test-misspelt 1.0" in done.stderr


def test_a_broken_plugin_is_named_when_a_component_is_missing(python):
    script = (
        "from plugrl.core.plugins.discovery import load_hook_plugins\n"
        "from plugrl.core.plugins.registry import default_registry\n"
        "load_hook_plugins(default_registry())\n"
    )
    script += RESOLVE
    done = python("-c", script, "trainer", "meant_to_be_there", only="misspelt")
    assert "not loaded: plugin 'misspelt' of plugrl-test-misspelt" in done.stderr.splitlines()[-1]


def test_plugin_commands_run_and_fail_in_one_line(plugrl):
    done = plugrl("greet", "--name", "Ada")
    assert (done.returncode, done.stdout) == (0, "hello Ada\n"), done.stderr
    done = plugrl("broken")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith(
        "error: command 'broken' of plugrl-test-import-error 1.0"
    )
    done = plugrl("--help")
    assert "from plugrl-test-good" in done.stdout
    assert "from plugrl-test-shadow" not in done.stdout
    done = plugrl("--no-plugins", "greet")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no command 'greet'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nam", "x"], "no such option: --nam; did you mean --name"),
        (["--name"], "option '--name' requires an argument"),
        (["--times", "x"], "invalid value for '--times': "),
        (["--times", "0"], "invalid value for --times: at least 1 is needed"),
        (["more"], "got unexpected extra argument(s) (more)"),
    ],
)
def test_usage_errors_of_plugin_commands_are_one_line(plugrl, arguments, message):
    done = plugrl("greet", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.endswith(" (see plugrl greet --help)\n")
    assert done.stderr.count("\n") == 1


def test_the_end_of_a_plugin_command_is_its_exit_code(plugrl):
    assert plugrl("greet", "--leave", "7").returncode == 7
    done = plugrl("greet", "--ask")  # there is nobody to answer
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "error: interrupted"


def test_a_mistyped_command_suggests_one(plugrl):
    done = plugrl("gret")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "error: there is no command 'gret'; did you mean greet, report? see plugrl --help\n"
    )
