"""What ``plugrl new plugin`` writes and the example package install, pass the kit and train."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import forking
import pytest

from plugrl.cli import main
from plugrl.commands._scaffold import KINDS_WITH_TEMPLATES, files
from plugrl.core.errors import UsageError

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugrl-rejection-sampling"


class Site:
    """A folder with installed packages, and commands that see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        self.environment = {**os.environ, "PYTHONPATH": str(self.site)}

    def run(self, *arguments, cwd=None):
        done = forking.run(["-m", *arguments], cwd=cwd or self.folder, env=self.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self, package):
        options = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
        self.run("pip", "install", *options, str(self.site), str(package))


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def new(tmp_path, monkeypatch):
    """Writes a new plugin into an empty folder, and gives the exit code."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main(["new", "plugin", *words])
        return end.value.code

    return run


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS_WITH_TEMPLATES)
def test_a_new_plugin_installs_passes_the_kit_and_trains(site, kind):
    name = f"plugrl-fresh-{kind.replace('_', '-')}"
    site.run("plugrl", "new", "plugin", name, "--kind", kind)
    package = site.folder / name
    site.install(package)
    assert " passed" in site.run("pytest", "-p", "no:cacheprovider", "-v", "tests", cwd=package)
    component = name.removeprefix("plugrl-").replace("-", "_")
    listed = json.loads(site.run("plugrl", "plugins", "list", "--kind", kind, "--json"))
    assert {"kind": kind, "name": component, "distribution": name}.items() <= next(
        row for row in listed if row["name"] == component
    ).items()
    (checked, recipe) = json.loads(site.run("plugrl", "plugins", "check", name, "--json"))
    assert (checked["kind"], checked["status"], checked["problem"]) == (kind, "ok", "")
    assert (recipe["kind"], recipe["status"]) == ("recipe", "ok")
    abouts = {
        (r["kind"], r["name"]): r["about"] for r in json.loads(site.run("plugrl", "ls", "--json"))
    }
    assert len(abouts[kind, component]) > 20
    site.run("plugrl", "train", component, "trainer.total_train_steps=3")
    (run,) = json.loads(site.run("plugrl", "runs", "list", "--json"))
    assert (run["state"], run["step"]) == ("done", 3)


def test_generated_files_are_kept_unless_forced(new, tmp_path, capsys):
    assert new("plugrl-kept") == 0
    changed = tmp_path / "plugrl-kept" / "README.md"
    changed.write_text("mine")
    capsys.readouterr()
    assert new("plugrl-kept") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: plugrl-kept exists and is not empty; ")
    assert "--force" in err
    assert changed.read_text() == "mine"
    assert new("plugrl-kept", "--force") == 0
    assert changed.read_text() != "mine"


def test_an_empty_folder_is_filled(new, tmp_path, capsys):
    (tmp_path / "plugrl-empty").mkdir()
    assert new("plugrl-empty") == 0
    assert "write  plugrl-empty" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["plugrl", "Upper", "a b", "-x", "x-", "../up", "é", "", "plugrl-3d", "plugrl-on"]
)
def test_names_that_cannot_be_packages_are_refused(name):
    with pytest.raises(UsageError, match="use small letters"):
        files(name, "trainer")


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("json", "trainer", "Python has 'json' itself.*plugrl-json"),
        ("class", "trainer", "Python has 'class' itself"),
        ("plugrl-self-hosted-grpo", "trainer", "plugrl's own.*plugrl-my-self-hosted-grpo"),
        ("exact-match", "evaluator", "plugrl's own"),
        ("plugrl-quickstart", "loss", "the recipe 'quickstart', which is plugrl's own"),
    ],
)
def test_names_that_are_taken_are_refused(name, kind, reason):
    with pytest.raises(UsageError, match=reason):
        files(name, kind)


def test_a_name_is_taken_by_its_own_kind_only():
    assert "exact_match/trainer.py" in files("exact-match", "trainer")


def test_a_kind_without_a_template_is_refused():
    with pytest.raises(UsageError, match="did you mean trainer"):
        files("plugrl-x", "trainr")


def test_the_generated_code_is_clean(new, tmp_path):
    names = {kind: f"plugrl-clean-{kind.replace('_', '-')}" for kind in KINDS_WITH_TEMPLATES}
    for kind, name in names.items():
        assert new(name, "--kind", kind) == 0
        component = tmp_path / name / name.replace("-", "_") / f"{kind}.py"
        assert len(component.read_text().splitlines()) < 60
    # Imports are sorted as where each package is checked alone.
    rules = ["--select", "E,F,I,UP,B", "--config", f"src = {list(names.values())}"]
    for words in (["check", *rules], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "--isolated", "--line-length", "100", "."]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.integration
def test_the_example_package_passes_the_kit_and_trains(site):
    package = site.folder / "example"
    shutil.copytree(EXAMPLE, package)
    site.install(package)
    assert " passed" in site.run("pytest", "-p", "no:cacheprovider", "-v", "tests", cwd=package)
    config = package / "plugrl_rejection_sampling" / "example.yaml"
    short = [f"trainer.phases.{i}.trainer.total_train_steps=2" for i in (0, 1)]
    site.run("plugrl", "train", str(config), *short)
    (run,) = json.loads(site.run("plugrl", "runs", "list", "--json"))
    assert run["state"] == "done"
