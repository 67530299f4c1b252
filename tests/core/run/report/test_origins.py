"""Which values of a run differ from the recipe, as run folder and report say."""

from pathlib import Path

import plugrl
from plugrl.core.experiment import prepare
from plugrl.core.run.report.contents import RunContents
from plugrl.core.run.run import Run


def changed(source, overrides, tmp_path):
    """The keys that differ in a new run of a configuration, with the value of its file."""
    prepared = prepare(source, [*overrides, f"settings.runs_folder={tmp_path}"], preflight=False)
    run = Run.create(prepared.validated, prepared.composed)
    rows = RunContents(run.folder).read()["config"]
    run.finish("done")
    found = {row["key"]: (row["was"], row["origin"]) for row in rows if "was" in row}
    found.pop("settings.runs_folder")
    return found


def test_of_a_recipe_the_overrides_differ(tmp_path):
    assert changed("quickstart", ["seed=3", "project_name=p"], tmp_path) == {
        "seed": ("0", "command line"),
        "project_name": (None, "command line"),
    }


def test_parts_of_a_recipe_are_the_recipe(tmp_path):
    assert changed("arithmetic_claims", [], tmp_path) == {}


def test_of_a_file_over_a_recipe_the_file_differs(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [quickstart, _self_]\nseed: 5\n", encoding="utf-8")
    ((key, (was, origin)),) = changed(file, [], tmp_path).items()
    assert (key, was, origin.rpartition("/")[2]) == ("seed", None, "mine.yaml:2")


def test_of_a_file_without_a_recipe_the_overrides_differ(tmp_path):
    recipe = (Path(plugrl.__path__[0]) / "recipes" / "quickstart.yaml").read_text("utf-8")
    file = tmp_path / "mine.yaml"
    file.write_text(recipe, encoding="utf-8")
    assert changed(file, ["seed=1"], tmp_path) == {"seed": ("0", "command line")}
