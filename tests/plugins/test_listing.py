"""Listings come from metadata: they work, and stay fast, whatever the plugins are like."""

from __future__ import annotations

import json

from plugrl.__about__ import __version__

#: The provider of what comes with plugrl.
OWN = f"plugrl {__version__}"


def rows(completed):
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def status(listing, distribution, name):
    found = [r for r in listing if r["distribution"] == distribution and r["name"] == name]
    assert len(found) == 1
    return found[0]["status"]


def test_list_shows_good_and_bad_plugins_alike(plugrl):
    listing = rows(plugrl("plugins", "list", "--third-party", "--json"))
    names = {row["distribution"] for row in listing}
    packages = """exit functions good heavy import-error misspelt nothing other-api shadow slow
        twin-a twin-b wrong-base wrong-group"""
    assert names == {f"plugrl-test-{name}" for name in packages.split()}
    assert status(listing, "plugrl-test-good", "greet") == "ok"


def test_list_tells_why_a_bare_name_means_something_else(plugrl):
    listing = rows(plugrl("plugins", "list", "--json"))
    assert status(listing, "plugrl-test-shadow", "clipped") == (
        "the bare name is plugrl's own: write plugrl-test-shadow/clipped"
    )
    assert status(listing, "plugrl", "clipped") == "ok"
    assert status(listing, "plugrl-test-twin-a", "twin") == (
        "plugrl-test-twin-b has the name too: write plugrl-test-twin-a/twin"
    )
    assert status(listing, "plugrl-test-shadow", "train") == (
        "never used: the name is a built-in command"
    )


def test_list_by_kind_and_as_a_table(plugrl):
    done = plugrl("plugins", "list", "--kind", "commands", "--third-party")
    assert done.returncode == 0
    lines = [line.split()[:3] for line in done.stdout.splitlines()]
    assert lines == [
        ["KIND", "NAME", "DISTRIBUTION"],
        ["command", "broken", "plugrl-test-import-error"],
        ["command", "greet", "plugrl-test-good"],
        ["command", "train", "plugrl-test-shadow"],
    ]


def test_list_of_an_unknown_kind_suggests_one(plugrl):
    done = plugrl("plugins", "list", "--kind", "trainr")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no kind 'trainr'; did you mean trainer")


def test_list_load_adds_the_components_of_hooks(plugrl):
    listing = rows(plugrl("plugins", "list", "--load", "--json", only="plugrl-test-good"))
    found = [row for row in listing if row["name"] == "found_at_run_time"]
    assert [(r["distribution"], r["kind"]) for r in found] == [("plugrl-test-good", "loss")]


def test_show_names_a_package_or_a_component(plugrl):
    [package] = rows(plugrl("plugins", "show", "plugrl_test.good", "--json"))
    assert package["summary"] == "A plugin that does everything right."
    assert [(row["kind"], row["name"]) for row in package["provides"]] == [
        ("trainer", "good"),
        ("loss", "good"),
        ("hook", "good"),
        ("command", "greet"),
    ]
    twins = rows(plugrl("plugins", "show", "twin", "--json"))
    assert [p["distribution"] for p in twins] == ["plugrl-test-twin-a", "plugrl-test-twin-b"]


def test_show_of_an_unknown_name_suggests_one(plugrl):
    done = plugrl("plugins", "show", "plugrl-test-god")
    assert done.returncode == 2
    assert "did you mean plugrl-test-good" in done.stderr


def test_ls_lists_one_kind(plugrl):
    listing = rows(plugrl("ls", "trainers", "--json", only="twin,good"))
    references = {row["reference"] for row in listing if row["provider"] != OWN}
    assert references == {"plugrl-test-good/good", "plugrl-test-twin-a/twin",
                          "plugrl-test-twin-b/twin"}  # fmt: skip


def test_ls_tells_what_a_component_is_about_and_how_stable_its_kind_is(plugrl):
    listing = rows(plugrl("ls", "--json", only="good"))
    own = {(r["kind"], r["name"]): r for r in listing if r["provider"].startswith("plugrl-test")}
    assert {key: row["stability"] for key, row in own.items()} == {
        ("trainer", "good"): "stable",
        ("loss", "good"): "provisional",
    }
    assert {key: row["about"] for key, row in own.items()} == {
        ("trainer", "good"): "Counts its steps",
        ("loss", "good"): "",
    }
    table = plugrl("ls", only="good").stdout
    assert table.splitlines()[0].split() == ["KIND", "NAME", "STABILITY", "PROVIDER", "ABOUT"]


def test_switched_off_plugins_are_listed_with_the_reason(plugrl):
    listing = rows(plugrl("-p", "no:plugrl_test_good", "plugins", "list", "--json"))
    assert status(listing, "plugrl-test-good", "greet") == (
        "disabled by -p no:NAME or plugins.disable"
    )
    listing = rows(plugrl("--no-plugins", "plugins", "list", "--json"))
    assert status(listing, "plugrl-test-good", "greet").startswith("disabled by --no-plugins")
    assert status(listing, "plugrl", "clipped") == "ok"
    listing = rows(plugrl("plugins", "list", "--json", only="slow"))
    assert status(listing, "plugrl-test-good", "greet") == "not among PLUGRL_PLUGINS"
    assert status(listing, "plugrl-test-slow", "slow") == "ok"


def test_env_names_the_plugins(plugrl):
    facts = rows(plugrl("env", "--json", only="plugrl-test-good"))
    assert facts["plugins"]["plugrl-test-good"] == "1.0"
    assert facts["plugins"]["plugrl-test-slow"] == "1.0 (not among PLUGRL_PLUGINS)"


IMPORTS = """
import runpy, sys
heavy = {"torch", "omegaconf", "pluggy", "rich", "yaml", "pydantic", "numpy"}
for line in ("--help", "plugins list", "plugins --help", "ls", "--version"):
    sys.argv = ["plugrl", *line.split()]
    try:
        runpy.run_module("plugrl", run_name="__main__")
    except SystemExit as done:
        assert done.code == 0, (line, done.code)
    found = [n for n in sys.modules if n.split(".")[0] in heavy or n.startswith("plugrl_test")]
    assert not found, (line, found)
"""


def test_help_and_lists_import_no_plugin_and_nothing_heavy(process):
    done = process("-c", IMPORTS)
    assert done.returncode == 0, done.stderr
    assert "plugrl-test-slow" in done.stdout
