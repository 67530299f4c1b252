"""What ``plugrl new plugin`` writes and the example package install, pass the kit and train."""

import configparser
import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import forking
import kills
import pytest

import plugrl
from plugrl.cli import main
from plugrl.commands._experiment import files as files_of_experiment
from plugrl.commands._scaffold import files
from plugrl.commands._templates import TEMPLATES
from plugrl.core.errors import UsageError
from plugrl.core.plugins.kinds import KINDS

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

    def link(self, package):
        """Let commands see a package without installing it, as an installation in place does."""
        name = package.name.replace("-", "_")
        self.site.mkdir(exist_ok=True)
        (self.site / name).symlink_to(package / name)
        parser = configparser.ConfigParser(delimiters=("=",))
        parser.optionxform = str
        parser.read(package / "setup.cfg", encoding="utf-8")
        info = self.site / f"{name}-0.1.0.dist-info"
        info.mkdir()
        about = f"Metadata-Version: 2.1\nName: {package.name}\nVersion: 0.1.0\n"
        (info / "METADATA").write_text(about)
        groups = parser["options.entry_points"].items()
        (info / "entry_points.txt").write_text("".join(f"[{g}]{lines}\n" for g, lines in groups))


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
def test_a_new_plugin_installs_passes_the_kit_and_trains(site):
    name = "plugrl-fresh-loss"
    site.run("plugrl", "new", "plugin", name, "--kind", "loss")
    site.install(site.folder / name)
    check_package(site, site.folder / name, "loss", "fresh_loss")


@pytest.mark.parametrize("kind", kills.sampled(list(TEMPLATES), 3))
def test_every_template_passes_the_kit_and_trains(site, kind):
    name = f"plugrl-fresh-{kind.replace('_', '-')}"
    site.run("plugrl", "new", "plugin", name, "--kind", kind)
    site.link(site.folder / name)
    check_package(site, site.folder / name, kind, f"fresh_{kind}")


# mypy reads the whole package anew, for half a minute.
@pytest.mark.slow
def test_every_template_is_typed(site):
    packages = []
    for kind in TEMPLATES:
        name = f"plugrl-fresh-{kind.replace('_', '-')}"
        site.run("plugrl", "new", "plugin", name, "--kind", kind)
        packages += ["-p", name.replace("-", "_")]
        site.link(site.folder / name)
    # Against plugrl as it is developed, with what it says of packages that mypy cannot read.
    root = Path(plugrl.__file__).parents[1]
    site.environment["MYPYPATH"] = str(root)
    options = ["--strict", "--follow-imports=silent", "--config-file", str(root / "pyproject.toml")]
    site.run("mypy", *options, *packages, cwd=site.site)


#: Of all kinds, their tests and a process for each component take a minute of processor time.
ADDED = sorted(random.Random(2).sample(list(TEMPLATES), 6))


@pytest.mark.parametrize("kinds", kills.tiers([ADDED], [list(TEMPLATES)]))
def test_every_template_can_be_added_to_a_package(site, kinds):
    """All in one package, whose tests all pass."""
    site.run("plugrl", "new", "plugin", "plugrl-whole")
    package = site.folder / "plugrl-whole"
    for number, kind in enumerate(kinds):
        site.run("plugrl", "new", "plugin", "--add", kind, f"part{number}", cwd=package)
    site.link(package)
    passed = site.run("pytest", "-p", "no:cacheprovider", "-q", "tests", cwd=package)
    assert " passed" in passed
    assert "failed" not in passed
    checked = json.loads(site.run("plugrl", "plugins", "check", "plugrl-whole", "--json"))
    assert {row["status"] for row in checked} == {"ok"}
    assert len([row for row in checked if row["kind"] == "recipe"]) == 1 + len(kinds)


@pytest.mark.integration
def test_an_experiment_trains_as_it_is_written(site):
    site.run("plugrl", "new", "experiment", "larger")
    site.run("plugrl", "train", "larger/larger.yaml")
    (run,) = json.loads(site.run("plugrl", "runs", "list", "--json"))
    assert run["state"] == "done"
    (metrics,) = (site.folder / "runs" / "larger").glob("*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    rewards = [row["rollout/reward"] for row in rows if "rollout/reward" in row]
    assert sum(rewards[-20:]) > 2 * sum(rewards[:20]), "it learns nothing"
    # One answer to all problems, the best one, is right on less than a fifth of them.
    held_out = [row["validation/exact"] for row in rows if "validation/exact" in row]
    assert held_out[-1] > 0.4, "it learns one answer to all"


def test_an_experiment_holds_out_what_can_be_learned():
    texts = files_of_experiment("larger")
    train, held_out = (
        [json.loads(line)["prompt"] for line in texts[name].splitlines()]
        for name in ("train.jsonl", "held_out.jsonl")
    )
    assert len({*train, *held_out}) == len(train) + len(held_out) == 100
    for place in range(3):
        seen = {prompt[place] for prompt in train}
        assert {prompt[place] for prompt in held_out} <= seen, place


def check_package(site, package, kind, component):
    """A package with one component passes its tests, is found, and trains by its recipe."""
    template, name = TEMPLATES[kind], package.name
    passed = site.run("pytest", "-p", "no:cacheprovider", "-v", "tests", cwd=package)
    assert " passed" in passed
    if template.kind:
        listed = json.loads(
            site.run("plugrl", "plugins", "list", "--kind", template.kind, "--json")
        )
        row = next(row for row in listed if row["name"] == component)
        assert (row["kind"], row["distribution"]) == (template.kind, name)
        told = json.loads(site.run("plugrl", "ls", "--json"))
        abouts = {(r["kind"], r["name"]): r["about"] for r in told}
        assert len(abouts[template.kind, component]) > 20
    checked = json.loads(site.run("plugrl", "plugins", "check", name, "--json"))
    assert {row["status"] for row in checked} == {"ok"}
    assert "recipe" in {row["kind"] for row in checked}
    # As its README says.
    for variable, value in template.variables.items():
        site.environment[variable] = value.replace("$component", component)
    site.run("plugrl", "train", component, *template.short)
    (run,) = json.loads(site.run("plugrl", "runs", "list", "--json"))
    assert run["state"] == "done"


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
        # What plugrl needs would be hidden; so would the tests, which lie beside the package.
        ("torch", "loss", "would hide another of this name.*plugrl-torch"),
        ("pytest", "loss", "would hide another of this name"),
        ("huggingface-hub", "loss", "would hide another of this name"),
        ("tests", "loss", "would hide another of this name"),
    ],
)
def test_names_that_are_taken_are_refused(name, kind, reason):
    with pytest.raises(UsageError, match=reason):
        files(name, kind)


def test_a_name_is_taken_by_its_own_kind_only():
    assert "exact_match/trainer.py" in files("exact-match", "trainer")


def test_every_kind_has_a_template():
    # Processes of workers live on machines that a package cannot bring; a rule of search is a page.
    assert {*KINDS} - {"executor", "searcher"} <= {template.kind for template in TEMPLATES.values()}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_package_says_what_it_is_and_how_to_begin(kind):
    name = f"plugrl-said-{kind.replace('_', '-')}"
    texts = files(name, kind)
    readme, component = texts["README.md"].splitlines(), f"said_{kind}"
    assert len(readme) < 12
    assert f"`{component}`: " in readme[2]
    assert {path for path in readme[3].split("`") if "/" in path} <= set(texts)
    # A variable that its recipe needs is set there.
    by = f"launch {component} --on {component}" if kind == "launcher" else f"train {component}"
    assert any(line.endswith(f"plugrl {by}") for line in readme)
    assert not [path for path, text in texts.items() if "$" in text]


def test_a_kind_without_a_template_is_refused():
    with pytest.raises(UsageError, match="did you mean trainer"):
        files("plugrl-x", "trainr")


def test_the_generated_code_is_clean(new, tmp_path):
    names = {kind: f"plugrl-clean-{kind.replace('_', '-')}" for kind in TEMPLATES}
    for kind, name in names.items():
        assert new(name, "--kind", kind) == 0
        component = tmp_path / name / name.replace("-", "_") / f"{kind}.py"
        # Services with tokenizers, hubs and launchers have more methods than others.
        long = "service" in kind or kind in ("hub", "launcher")
        assert len(component.read_text().splitlines()) < (160 if long else 70)
    # Imports are sorted as where each package is checked alone.
    rules = ["--select", "E,F,I,UP,B", "--config", f"src = {list(names.values())}"]
    for words in (["check", *rules], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "--isolated", "--line-length", "100", "."]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def package(new, tmp_path, monkeypatch, capsys):
    """A new package, in which commands are called."""
    assert new("plugrl-there") == 0
    monkeypatch.chdir(tmp_path / "plugrl-there")
    capsys.readouterr()
    return tmp_path / "plugrl-there"


def texts_of(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refusal(new, capsys, *words):
    """The one line that a command is refused with, while nothing changes."""
    before = texts_of(Path.cwd())
    assert new(*words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert texts_of(Path.cwd()) == before
    return err


@pytest.fixture
def new_here(monkeypatch):
    """``plugrl new plugin`` in the working directory."""

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main(["new", "plugin", *words])
        return end.value.code

    return run


def test_a_component_is_added_and_the_rest_stays(package, new_here, capsys):
    before = (package / "setup.cfg").read_text()
    assert new_here("--add", "loss", "my_loss") == 0
    assert "change setup.cfg" in capsys.readouterr().out
    after = (package / "setup.cfg").read_text()
    added = set(after.splitlines()) - set(before.splitlines())
    assert added == {
        "plugrl.losses =",
        "    my_loss = plugrl_there.my_loss:my_loss",
        "    my_loss = plugrl_there:my_loss.yaml",
    }
    assert [line for line in after.splitlines() if line not in added] == before.splitlines()
    assert (package / "plugrl_there" / "my_loss.py").is_file()
    assert (package / "tests" / "test_my_loss_conformance.py").is_file()


def test_data_in_folders_is_part_of_the_package(package, new_here):
    # The pattern *.yaml of the recipes means none of them.
    assert new_here("--add", "parser", "marks") == 0
    declared = (package / "setup.cfg").read_text().partition("[options.package_data]")[2]
    lines = [line.strip() for line in declared.partition("[")[0].splitlines()]
    assert lines == ["", "plugrl_there =", "*.yaml", "agent/agent_config.yaml", "agent/sums.py", ""]


def test_entry_points_of_pyproject_grow_too(new_here, tmp_path, monkeypatch):
    (tmp_path / "src" / "own").mkdir(parents=True)
    (tmp_path / "src" / "own" / "__init__.py").touch()
    head = '[project]\nname = "own"\nversion = "1"\n\n'
    points = '[project.entry-points."plugrl.losses"]\nold = "own.old:old"\n\n[tool.x]\ny = 1\n'
    (tmp_path / "pyproject.toml").write_text(head + points)
    monkeypatch.chdir(tmp_path)
    assert new_here("--add", "loss", "new_loss") == 0
    found = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    assert found["project"]["entry-points"] == {
        "plugrl.losses": {"old": "own.old:old", "new_loss": "own.new_loss:new_loss"},
        "plugrl.recipes": {"new_loss": "own:new_loss.yaml"},
    }
    assert found["tool"] == {"x": {"y": 1}}
    assert (tmp_path / "src" / "own" / "new_loss.yaml").is_file()


def test_a_second_run_is_refused(package, new_here, capsys):
    assert new_here("--add", "tracker", "rows") == 0
    capsys.readouterr()
    assert "has rows of the group plugrl.trackers already" in refusal(
        new_here, capsys, "--add", "tracker", "rows"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--add", "loss", "class"), "'class' cannot name a component"),
        (("--add", "loss", "Upper"), "'Upper' cannot name a component"),
        (("--add", "loss", "no"), "'no' cannot name a component"),
        (("--add", "loss", "clipped"), "the loss 'clipped', which is plugrl's own"),
        (("--add", "loss", "quickstart"), "the recipe 'quickstart', which is plugrl's own"),
        (("--add", "los", "mine"), "did you mean loss"),
        (("--add", "trainer", "there"), "has there of the group plugrl.trainers already"),
        (("--add", "loss", "mine", "--path", "tests"), "tests is no package"),
        (("--add", "loss", "mine", "--path", "nowhere"), "nowhere is no package"),
    ],
)
def test_what_cannot_be_added_is_refused_in_one_line(package, new_here, capsys, words, message):
    assert message in refusal(new_here, capsys, *words)


def test_a_package_without_its_folder_is_refused(package, new_here, capsys):
    shutil.move(package / "plugrl_there", package / "elsewhere")
    assert "has no folder plugrl_there" in refusal(new_here, capsys, "--add", "loss", "mine")


def test_a_file_in_the_way_is_refused(package, new_here, capsys):
    (package / "plugrl_there" / "mine_loss.py").write_text("x = 1\n")
    assert "mine_loss.py exists" in refusal(new_here, capsys, "--add", "loss", "mine")


@pytest.mark.parametrize("text", ["[metadata", "[metadata]\nname = plugrl-there\n= x\n"])
def test_a_declaration_that_is_malformed_is_refused(package, new_here, capsys, text):
    (package / "setup.cfg").write_text(text)
    assert "setup.cfg" in refusal(new_here, capsys, "--add", "loss", "mine")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("project = 'x'", "project must be a table"),
        ("[[project]]\nname = 'x'", "project must be a table"),
        ("[project]\nname = 'x'\ndynamic = 5", "project.dynamic must be a list"),
        ("[project]\nname = 'plugrl-there'\nentry-points = 'x'", "project.entry-points must be"),
        (
            "[project]\nname = 'plugrl-there'\n[project.entry-points]\n'plugrl.losses' = 'x'",
            "project.entry-points.plugrl.losses must be a table",
        ),
    ],
)
def test_a_pyproject_of_another_form_is_refused(package, new_here, capsys, text, place):
    (package / "pyproject.toml").write_text(text + "\n")
    said = refusal(new_here, capsys, "--add", "loss", "mine")
    assert f"pyproject.toml is malformed: {place}" in said


@pytest.mark.parametrize(
    "words",
    [
        ("plugin", "plugrl" + "-a" * 150),
        ("plugin", "mine", "--path", "a" * 300),
        ("experiment", "a" * 300),
        ("plugin", "--add", "loss", "a" * 300),
        ("plugin", "--add", "loss", "mine", "--path", "a" * 300),
    ],
)
def test_a_name_that_is_too_long_is_refused_in_one_line(package, monkeypatch, capsys, words):
    monkeypatch.chdir(package)
    before = texts_of(package)
    with pytest.raises(SystemExit) as end:
        main(["new", *words])
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "File name too long; choose another name" in err
    assert texts_of(package) == before


def test_entry_points_in_another_form_are_named_and_left(package, new_here, capsys):
    text = (package / "setup.cfg").read_text().replace("[options.entry_points]", "[ options.x ]")
    (package / "setup.cfg").write_text(text + "[options.entry_points]   ; a comment\n")
    assert "by hand" in refusal(new_here, capsys, "--add", "loss", "mine")


@pytest.mark.parametrize("command", ["plugin", "experiment"])
def test_a_place_that_cannot_be_written_is_refused(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    # Not even the superuser makes folders there.
    with pytest.raises(SystemExit) as end:
        main(["new", command, "plugrl-mine", "--path", "/proc"])
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "cannot write /proc/plugrl-mine" in err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a b", "cannot name an experiment"),
        ("../x", "cannot name"),
        ("quickstart", "is a recipe"),
        ("null", "YAML reads it as something else"),
        ("true", "choose another name, such as true-sums"),
    ],
)
def test_names_of_experiments_are_checked(tmp_path, monkeypatch, capsys, name, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["new", "experiment", name])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for code in (0, 2):
        with pytest.raises(SystemExit) as end:
            main(["new", "experiment", "sums"])
        assert end.value.code == code
    assert "sums exists and is not empty" in capsys.readouterr().err


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
