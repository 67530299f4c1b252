"""The overview, and tables of recipes, benchmarks and extras, have what they list whole."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Extras of people who work on plugrl itself.
_OWN = {"test", "dev", "docs"}


def code_of_first_cells(page: str) -> set[str]:
    """What stands in backticks in the first cell of each row of a page's tables."""
    cells = re.findall(r"^\| ([^|]*) \|", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def pages_of_the_site() -> set[str]:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]

    def names(node):
        if isinstance(node, str):
            yield node
        else:
            for child in node.values() if isinstance(node, dict) else node:
                yield from names(child)

    return set(names(nav))


def test_the_overview_leads_to_every_page():
    linked = re.findall(r"\]\(([\w/-]+\.md)", (DOCS / "index.md").read_text("utf-8"))
    assert pages_of_the_site() - {"index.md"} - set(linked) == set()


def test_every_recipe_has_a_place_in_the_table_of_recipes():
    text = (DOCS / "recipes.md").read_text("utf-8")
    rows = "".join(line for line in text.splitlines(keepends=True) if line.startswith("| "))
    named = set(re.findall(r"`(\w+)`", rows))
    # The variants of red-teaming are written by their ends.
    named |= {f"red_team_quickstart{end}" for end in named if end.startswith("_")}
    recipes = {path.stem for path in (ROOT / "plugrl" / "recipes").glob("*.yaml")}
    assert recipes - named == set()


def test_every_benchmark_is_in_both_tables_of_benchmarks():
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")}
    assert scripts - code_of_first_cells("docs/benchmarks.md") == set()
    named = code_of_first_cells("benchmarks/README.md")
    assert {f"{script}.py" for script in scripts} - named == set()


def test_every_extra_is_named_among_the_dependencies():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg", "utf-8")
    text = (DOCS / "dependencies.md").read_text("utf-8")
    named = code_of_first_cells("docs/dependencies.md") | set(
        re.findall(r"`plugrl\[(\w+)\]`", text)
    )
    assert set(setup["options.extras_require"]) - _OWN - named == set()


def test_the_extras_that_all_leaves_out_are_those_that_the_page_names():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg", "utf-8")
    extras = setup["options.extras_require"]
    brought = set(re.findall(r"[\w-]+", " ".join(re.findall(r"\[(.*?)\]", extras["all"]))))
    text = (DOCS / "dependencies.md").read_text("utf-8")
    sentence = text.split("`plugrl[all]` has every extra but", 1)[1].split(".\n", 1)[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == set(extras) - brought - _OWN - {"all"}
