"""What a run folder shows of secrets: nothing, but in a file for its owner alone."""

import json
import os
import stat
import sys
from types import SimpleNamespace

import pytest
import torch
import yaml

from plugrl.core.config.sources.compose import compose
from plugrl.core.run.checkpoints.checkpoint import candidates
from plugrl.core.run.initialization import read_config
from plugrl.core.run.run import Run

SECRETS = ("planted-environment", "planted-literal", "planted-override", "sk-planted0123456789")
WORDS = ["judge.token=planted-override", "judge.note=sk-planted0123456789"]


class Model:
    """Something that checkpoints hold."""

    def state_dict(self):
        return {"weight": torch.zeros(1)}

    def load_state_dict(self, state):
        pass


def configuration(folder):
    settings = {"runs_folder": str(folder), "progress": "none", "checkpoint_every": 1}
    judge = {"api_key": "${oc.env:PLANTED}", "place": "${oc.env:PLANTED}/x", "plain": "\\${a}"}
    return {
        "experiment_name": "toy",
        "seed": "${oc.env:PLANTED_SEED}",
        "settings": settings,
        "judge": judge | {"password": "planted-literal"},
    }


def fail(run):
    run.end_step(1, {"loss": 0.0})
    run.guards._dumps.write("loss", 1, {"x": torch.zeros(1)})
    raise RuntimeError("the key sk-planted0123456789 is not known")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of one step, with a dump, that failed."""
    monkeypatch.setenv("PLANTED", "planted-environment")
    monkeypatch.setenv("PLANTED_SEED", "3")
    monkeypatch.setattr(sys, "argv", ["plugrl", "train", *WORDS])
    composed = compose(configuration(tmp_path), WORDS)
    assert not composed.faults
    tree = {**composed.tree, "seed": int(composed.tree["seed"])}
    run = Run.create(SimpleNamespace(tree=tree), composed)
    run.attach(Model())
    with pytest.raises(RuntimeError), run:
        fail(run)
    monkeypatch.delenv("PLANTED")
    monkeypatch.delenv("PLANTED_SEED")
    return run.folder


def test_only_a_file_of_the_owner_holds_secrets(run):
    private = run / "config.private.json"
    for path in (path for path in run.rglob("*") if path.is_file() and path != private):
        text = path.read_bytes().decode("utf-8", "replace")
        # The log has the traceback, which is of the source of this test.
        assert not [s for s in SECRETS if s in text and path.name != "log.txt"], path
    assert "key <hidden> is not known" in (run / "log.txt").read_text()
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert all(secret in private.read_text() for secret in SECRETS)
    (saved,) = candidates(run / "checkpoints")
    shown = {
        "api_key": "${oc.env:PLANTED}",
        "place": "${oc.env:PLANTED}/x",
        "plain": "${a}",
        "password": "<hidden>",
        "token": "<hidden>",
        "note": "<hidden>",
    }
    manifest = json.loads((saved / "manifest.json").read_text())
    assert manifest["config"]["judge"] == shown
    assert manifest["config"]["seed"] == 3  # What is learned depends on it.
    assert (run / "overrides.txt").read_text() == "judge.token=<hidden>\njudge.note=<hidden>\n"


def test_a_resume_has_the_values_that_the_run_began_with(run, monkeypatch, caplog):
    monkeypatch.setenv("PLANTED", "another")
    composed = compose(read_config(run))
    assert not composed.faults
    assert composed.tree["judge"] == {
        "api_key": "planted-environment",
        "place": "planted-environment/x",
        "plain": "${a}",
        "password": "planted-literal",
        "token": "planted-override",
        "note": "sk-planted0123456789",
    }
    # So has whoever begins another run with the file, and it withholds the same.
    again = compose(run / "config.yaml")
    assert again.tree == composed.tree
    assert again.references == {
        ("judge", "api_key"): "${oc.env:PLANTED}",
        ("judge", "place"): "${oc.env:PLANTED}/x",
    }
    resumed = Run.open(run)
    resumed.attach(Model())
    resumed.restore()
    with resumed:
        resumed.end_step(2, {"loss": 0.0})
    newest = json.loads((candidates(run / "checkpoints")[0] / "manifest.json").read_text())
    assert newest["step"] == 2
    assert newest["config"]["judge"]["api_key"] == "${oc.env:PLANTED}"
    assert not [secret for secret in SECRETS if secret in json.dumps(newest)]
    assert "planted" not in caplog.text


def test_an_edited_value_counts_and_its_change_is_told_without_it(run, caplog):
    file = run / "config.yaml"
    tree = yaml.safe_load(file.read_text())
    tree["judge"] |= {"api_key": "planted-edit", "password": "planted-edit", "place": "elsewhere"}
    file.write_text(yaml.safe_dump(tree))
    judge = read_config(run)["judge"]
    assert (judge["api_key"], judge["password"]) == ("planted-edit", "planted-edit")
    assert (judge["place"], judge["token"]) == ("elsewhere", "planted-override")
    resumed = Run.open(run)
    resumed.attach(Model())
    resumed.restore()
    resumed.finish("failed")
    assert 'judge.place was "${oc.env:PLANTED}/x" and is now "elsewhere"' in caplog.text
    assert 'judge.api_key was "${oc.env:PLANTED}" and is now "<hidden>"' in caplog.text
    assert "planted-edit" not in caplog.text


def test_without_the_file_of_the_owner_variables_are_read_and_literals_are_asked_for(
    run, monkeypatch
):
    os.unlink(run / "config.private.json")
    monkeypatch.setenv("PLANTED", "mine")
    composed = compose(run / "config.yaml")
    assert composed.tree["judge"]["place"] == "mine/x"
    assert sorted(fault.path for fault in composed.faults) == [
        "judge.note", "judge.password", "judge.token",
    ]  # fmt: skip
    assert "is hidden, and no config.private.json beside the file has its value; write it" in str(
        composed.faults[0]
    )
    monkeypatch.delenv("PLANTED")
    assert "environment variable PLANTED is not set" in str(compose(run / "config.yaml").faults)


def test_a_run_without_secrets_has_no_such_file(make_run):
    assert not (make_run().folder / "config.private.json").exists()
