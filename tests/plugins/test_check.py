"""``plugrl plugins check`` survives every plugin and tells what is wrong with it."""

from __future__ import annotations

import json
import sys

import forking
import pytest

from plugrl.commands._probe import probe
from plugrl.core.plugins.kinds import KINDS
from plugrl.core.plugins.packages.installed import EntryPoint


@pytest.fixture
def forked(tmp_path, monkeypatch):
    """Lets plugins be imported in processes that need not import torch for them."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, value in forking.stand_ins(folder).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))


def check(plugrl, *arguments):
    done = plugrl("plugins", "check", *arguments, "--json")
    return done.returncode, {(r["kind"], r["name"]): r for r in json.loads(done.stdout)}


def test_good(plugrl, forked):
    code, found = check(plugrl, "plugrl-test-good")
    assert code == 0
    assert {key: row["status"] for key, row in found.items()} == {
        ("trainer", "good"): "ok",
        ("loss", "good"): "ok",
        ("hook", "good"): "ok",
        ("command", "greet"): "ok",
    }


def test_functions_are_taken_where_runs_take_them(plugrl, forked):
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
def test_bad(plugrl, forked, name, key, problem):
    code, found = check(plugrl, name)
    assert code == 3
    assert found[key]["status"] == "failed"
    assert problem in found[key]["problem"]


@pytest.mark.integration
def test_slow_imports_are_timed_and_bounded(plugrl):
    code, found = check(plugrl, "slow")
    assert code == 0
    assert 1.5 <= found["hook", "slow"]["seconds"] < 30
    code, found = check(plugrl, "slow", "--timeout", "1")
    assert code == 3
    assert found["hook", "slow"]["problem"] == "its import took longer than 1 s"


@pytest.mark.integration
def test_torch_in_a_hook_module_is_a_warning(plugrl):
    code, found = check(plugrl, "heavy")
    row = found["hook", "heavy"]
    assert (code, row["status"]) == (0, "warning")
    assert "torch" in row["heavy"]
    assert "it imports torch" in row["problem"]


@pytest.mark.parametrize("group", ["plugrl", "plugrl.commands", "plugrl.losses"])
def test_what_takes_seconds_to_import_is_a_warning_where_every_run_would_pay(
    tmp_path, monkeypatch, group
):
    """A loss is imported by the runs that use it; hooks and commands by all of them."""
    (tmp_path / "jax.py").touch()
    (tmp_path / "omegaconf.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    code = "import jax, omegaconf, typer\n\napp = typer.Typer()\n\n\n"
    code += "def loss(logp, batch, config): ...\n"
    name = {"plugrl": "", "plugrl.commands": ":app", "plugrl.losses": ":loss"}[group]
    finding = probe(entry(tmp_path, code, group=group, name=name))
    assert finding.error is None
    assert finding.heavy == ["jax", "omegaconf"]
    told = [
        "it imports jax at import time, in every run; import it inside the functions that need it"
    ]
    assert finding.warnings == ([] if group == "plugrl.losses" else told)


def test_clashes_are_warnings(plugrl, forked):
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
        "from plugrl.core.plugins.registry import default_registry\n"
        "try:\n    default_registry().resolve('trainer', 'lost')\n"
        "except Exception as error:\n    print(error)"
    )
    assert python("-c", script).stdout.startswith(
        "unknown trainer 'lost': plugrl-test-wrong-group 1.0 declares it, but it is never used: "
        "there is no group [plugrl.trainer]; write [plugrl.trainers] in its setup.cfg"
    )


def entry(folder, code, *, group="plugrl.losses", name=":loss"):
    """Write a module that a package declares in ``group``."""
    (folder / "plugin_to_probe.py").write_text(code)
    return EntryPoint(
        distribution="plugin-to-probe",
        group=group,
        name="mine",
        target=f"plugin_to_probe{name}",
        version="1",
        location=str(folder),
    )


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        # These set PYGAME_HIDE_SUPPORT_PROMPT, SDL_AUDIODRIVER and others when they are imported.
        pytest.param("import gymnasium, pettingzoo, torchrl", [], marks=pytest.mark.integration),
        ("import os\nos.environ['SDL_AUDIODRIVER'] = 'dsp'", []),
        ("import os\nos.environ['MINE'] = '1'\nos.environ['LAZY_LEGACY_OP'] = '0'", ["MINE"]),
        ("import os\nos.environ['HOME'] = '/'\ndel os.environ['PATH']", ["HOME, PATH"]),
    ],
)
def test_only_a_plugin_s_own_changes_of_the_environment_are_told(
    tmp_path, monkeypatch, code, problem
):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("LAZY_LEGACY_OP", "PYGAME_HIDE_SUPPORT_PROMPT", "SDL_AUDIODRIVER",
                 "TORCHINDUCTOR_CACHE_DIR"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    code += "\n\n\ndef loss(logp, batch, config): ...\n"
    finding = probe(entry(tmp_path, code))
    assert finding.error is None
    told = [f"its import changes environment variables: {names}" for names in problem]
    assert finding.warnings == told
