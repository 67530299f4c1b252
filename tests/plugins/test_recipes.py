"""Recipes of packages: found by name, never imported, never in the way of plugrl's own."""

from __future__ import annotations

import json

import distributions
import pytest

RECIPE = """# {about}.
defaults: [quickstart, _self_]
experiment_name: {name}
seed: 3
"""


def package(site, name, recipes, target="{package}.recipes:{recipe}.yaml"):
    """Install a package whose modules raise when they are imported."""
    module = name.replace("-", "_")
    (site / module / "recipes").mkdir(parents=True)
    (site / module / "__init__.py").write_text("raise SystemExit('imported')\n")
    for recipe in recipes:
        text = RECIPE.format(about=f"What {name} teaches", name=f"{name}-{recipe}")
        (site / module / "recipes" / f"{recipe}.yaml").write_text(text)
    targets = {recipe: target.format(package=module, recipe=recipe) for recipe in recipes}
    distributions.write_metadata(site, name, "1.2", {"plugrl.recipes": targets})
    return site / module / "recipes"


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "recipe-site"
    folder.mkdir()
    return folder


@pytest.fixture
def run(plugrl, site):
    return lambda *words, **more: plugrl(*words, PYTHONPATH=str(site), **more)


def shown(run, name, **more):
    done = run("config", "show", name, **more)
    return done.returncode, done.stdout, done.stderr


def test_a_recipe_of_a_package_is_found_by_its_name(run, site):
    package(site, "rl-one", ["teach_one"])
    for name in ("teach_one", "rl-one/teach_one", "RL_One/teach_one"):
        code, out, err = shown(run, name)
        assert (code, "experiment_name: rl-one-teach_one" in out) == (0, True), err


def test_a_recipe_builds_on_another(run, site, tmp_path):
    folder = package(site, "rl-one", ["base_one"])
    (folder / "part.yaml").write_text("seed: 7\n")
    (folder / "base_one.yaml").write_text(
        "defaults: [plugrl/quickstart, _self_, part]\nexperiment_name: whole\n"
    )
    (tmp_path / "mine.yaml").write_text("defaults: [rl-one/base_one, _self_]\n")
    for name in ("mine.yaml", "base_one"):
        code, out, err = shown(run, name)
        assert code == 0, err
        assert "seed: 7" in out
        assert "experiment_name: whole" in out


def test_plugrls_own_names_are_never_taken(run, site):
    package(site, "rl-one", ["quickstart"])
    assert "rl-one" not in shown(run, "quickstart")[1]
    assert "rl-one-quickstart" not in shown(run, "plugrl/quickstart")[1]
    assert "experiment_name: rl-one-quickstart" in shown(run, "rl-one/quickstart")[1]
    rows = json.loads(run("plugins", "list", "--kind", "recipes", "--json").stdout)
    assert [row["status"] for row in rows] == [
        "the bare name is plugrl's own: write rl-one/quickstart"
    ]


def test_two_packages_with_one_name_are_named(run, site):
    package(site, "rl-one", ["same"])
    package(site, "rl-two", ["same"])
    code, _, err = shown(run, "same")
    assert (code, err) == (
        2,
        "error: recipe 'same' is provided by rl-one 1.2 and rl-two 1.2; write rl-one/same or "
        "rl-two/same\n",
    )
    assert "rl-two-same" in shown(run, "rl-two/same")[1]
    assert "rl-one-same" in shown(run, "same", only="rl-one")[1]


def test_ls_lists_recipes_with_what_they_are_about(run, site):
    package(site, "rl-one", ["teach_one"])
    rows = json.loads(run("ls", "recipes", "--json").stdout)
    row = next(row for row in rows if row["name"] == "teach_one")
    assert (row["provider"], row["reference"]) == ("rl-one 1.2", "rl-one/teach_one")
    assert row["about"] == "What rl-one teaches"
    assert [r["provider"].split()[0] for r in rows if r["name"] == "quickstart"] == ["plugrl"]


@pytest.mark.parametrize(
    ("comment", "about"),
    [
        ("# Teaches a model\n#   to add. It takes a minute.", "Teaches a model to add"),
        ("# Dr. GRPO: no spread,\n# and sums. One minute.", "Dr. GRPO: no spread, and sums"),
        ("# Sums (Cobbe et al. 2021) for\n# it. More.", "Sums (Cobbe et al. 2021) for it"),
        ("# Version 1.5 of it\n#\n# Another paragraph", "Version 1.5 of it"),
        ("seed: 1\n# No beginning.", ""),
    ],
)
def test_ls_shows_the_whole_first_sentence_of_the_comment(run, site, comment, about):
    folder = package(site, "rl-one", ["teach_one"])
    (folder / "teach_one.yaml").write_text(f"{comment}\ndefaults: [quickstart, _self_]\n")
    rows = json.loads(run("ls", "recipes", "--json").stdout)
    assert next(row for row in rows if row["name"] == "teach_one")["about"] == about


def test_no_line_of_ls_ends_within_brackets_or_quotes(run):
    """A summary that is cut off at an abbreviation lacks what closes."""
    rows = [row["about"] for row in json.loads(run("ls", "--json").stdout)]
    assert len(rows) > 100
    for about in rows:
        assert about.count("(") == about.count(")"), about
        assert about.count("`") % 2 == 0, about


def test_an_unknown_name_has_close_ones_and_a_disabled_package_is_named(run, site):
    package(site, "rl-one", ["teach_one"])
    code, _, err = shown(run, "teech_one")
    assert (code, err) == (
        2, "error: teech_one: no such file or recipe; did you mean teach_one?\n",
    )  # fmt: skip
    code, _, err = shown(run, "teach_one", only="")
    assert code == 2
    assert "; the recipe is provided by rl-one 1.2, which is disabled by" in err


@pytest.mark.parametrize(
    "target",
    ["{package}.recipes:gone.yaml", "{package}.gone:x.yaml", "{package}.recipes", "gone:x"],
)
def test_a_recipe_without_a_file_is_the_packages_fault(run, site, target):
    package(site, "rl-one", ["lost"], target)
    code, _, err = shown(run, "lost")
    assert code == 3
    assert err.startswith("error: recipe 'lost' of rl-one 1.2: there is no file ")
    assert err.count("\n") == 1
    done = run("plugins", "check", "rl-one", "--json")
    (row,) = json.loads(done.stdout)
    assert (done.returncode, row["status"], row["kind"]) == (3, "failed", "recipe")
    assert "there is no file" in row["problem"]


def test_check_reads_the_file(run, site):
    folder = package(site, "rl-one", ["fine", "torn", "twice"])
    (folder / "torn.yaml").write_text("a: [1\n")
    (folder / "twice.yaml").write_text("seed: 1\nseed: 2\n")
    done = run("plugins", "check", "rl-one", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert {name: row["status"] for name, row in rows.items()} == {
        "fine": "ok",
        "torn": "failed",
        "twice": "failed",
    }
    assert "torn.yaml:2:1: not YAML" in rows["torn"]["problem"]
    assert "written twice" in rows["twice"]["problem"]
