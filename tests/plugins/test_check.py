"""``plugrl plugins check`` survives every plugin and tells what is wrong with it."""

from __future__ import annotations

import json

import pytest

from plugrl.core.kinds import KINDS


def check(plugrl, *arguments):
    done = plugrl("plugins", "check", *arguments, "--json")
    return done.returncode, {(r["kind"], r["name"]): r for r in json.loads(done.stdout)}


def test_good(plugrl):
    code, found = check(plugrl, "plugrl-test-good")
    assert code == 0
    assert {key: row["status"] for key, row in found.items()} == {
        ("trainer", "good"): "ok",
        ("loss", "good"): "ok",
        ("hook", "good"): "ok",
        ("command", "greet"): "ok",
    }


def test_functions_are_taken_where_runs_take_them(plugrl):
    _, found = check(plugrl, "plugrl-test-functions")
    adapted = {kind for kind, row in KINDS.items() if row.adapter}
    assert {kind for (kind, _), row in found.items() if row["status"] == "ok"} == adapted


@pytest.mark.parametrize(
    ("name", "key", "problem"),
    [
        ("import_error", ("trainer", "import_error"), "No module named 'package_that_is_not"),
        ("exit", ("trainer", "exit"), "its import ended the process with code 7"),
        ("plugrl-test-exit", ("hook", "exit"), "import: SystemExit: 0"),
        ("wrong_base", ("trainer", "wrong_base"), "does not subclass Trainer"),
        ("wrong_scorer", ("scorer", "wrong_scorer"), "a scorer's function is a plain one"),
        ("misspelt", ("hook", "misspelt"), "did you mean plugrl_run_end?"),
        ("other_api", ("hook", "other_api"), "written for hook API 2"),
        ("nothing", ("trainer", "nothing"), "No module named 'plugrl_test_nothing.gone'"),
    ],
)
def test_bad(plugrl, name, key, problem):
    code, found = check(plugrl, name)
    assert code == 3
    assert found[key]["status"] == "failed"
    assert problem in found[key]["problem"]


def test_slow_imports_are_timed_and_bounded(plugrl):
    code, found = check(plugrl, "slow")
    assert code == 0
    assert 1.5 <= found["hook", "slow"]["seconds"] < 30
    code, found = check(plugrl, "slow", "--timeout", "1")
    assert code == 3
    assert found["hook", "slow"]["problem"] == "its import took longer than 1 s"


def test_torch_in_a_hook_module_is_a_warning(plugrl):
    code, found = check(plugrl, "heavy")
    row = found["hook", "heavy"]
    assert (code, row["status"]) == (0, "warning")
    assert "torch" in row["heavy"]
    assert "it imports torch" in row["problem"]


def test_clashes_are_warnings(plugrl):
    code, found = check(plugrl, "plugrl-test-shadow")
    assert code == 0
    assert found["loss", "clipped"]["status"] == "warning"
    assert "write plugrl-test-shadow/clipped" in found["loss", "clipped"]["problem"]


GROUPS = {
    "lost": "never used: there is no group [plugrl.trainer]; write [plugrl.trainers]",
    "lost_too": "never used: there is no group [plugrl.evaluater]; write [plugrl.evaluators]",
}


def test_misspelt_groups_fail(plugrl):
    code, found = check(plugrl, "plugrl-test-wrong-group")
    assert code == 3
    assert {name: row["problem"] for (_, name), row in found.items()} == GROUPS
    assert {row["status"] for row in found.values()} == {"failed"}


def test_misspelt_groups_are_listed(plugrl):
    done = plugrl("plugins", "list", "--third-party", "--json", only="plugrl-test-wrong-group")
    rows = {r["name"]: r["status"] for r in json.loads(done.stdout)}
    assert GROUPS.items() <= rows.items()


def test_a_name_of_a_misspelt_group_says_so(python):
    script = (
        "from plugrl.core.registry import default_registry\n"
        "try:\n    default_registry().resolve('trainer', 'lost')\n"
        "except Exception as error:\n    print(error)"
    )
    assert python("-c", script).stdout.startswith(
        "unknown trainer 'lost': plugrl-test-wrong-group 1.0 declares it, but it is never used: "
        "there is no group [plugrl.trainer]; write [plugrl.trainers] in its setup.cfg"
    )


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        # These set PYGAME_HIDE_SUPPORT_PROMPT, SDL_AUDIODRIVER and others when they are imported.
        ("import gymnasium, pettingzoo, torchrl", []),
        ("import os\nos.environ['MINE'] = '1'\nimport gymnasium", ["MINE"]),
        ("import os\nos.environ['HOME'] = '/'\ndel os.environ['PATH']", ["HOME, PATH"]),
    ],
)
def test_only_a_plugin_s_own_changes_of_the_environment_are_told(
    tmp_path, monkeypatch, code, problem
):
    from plugrl.core.installed import EntryPoint
    from plugrl.core.probe import probe

    (tmp_path / "plugin_that_sets.py").write_text(f"{code}\n\ndef loss(logp, batch, config): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("LAZY_LEGACY_OP", "PYGAME_HIDE_SUPPORT_PROMPT", "SDL_AUDIODRIVER",
                 "TORCHINDUCTOR_CACHE_DIR"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    entry = EntryPoint(
        distribution="plugin-that-sets",
        group="plugrl.losses",
        name="mine",
        target="plugin_that_sets:loss",
        version="1",
        location=str(tmp_path),
    )
    finding = probe(entry)
    assert finding.error is None
    told = [f"its import changes environment variables: {names}" for names in problem]
    assert finding.warnings == told
