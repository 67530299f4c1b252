"""Options of trackers that are wrong, and packages that are not there."""

import sys

import pytest
from tracked_config import CONFIG

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare


def refused(word):
    with pytest.raises(ConfigError) as caught:
        prepare(CONFIG, [word])
    (fault,) = caught.value.faults
    return str(fault)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio", "tensorboard"])
def test_a_missing_package_is_named_with_its_installation(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    assert refused(f"trackers=[{name}]") == (
        f"trackers[0] (command line): the tracker {name} needs the package {name}, which is "
        f'not installed: pip install "plugrl[{name}]"'
    )


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("trackers=[wandbb]", "wandb"),
        ("trackers=[{type: wandb, projekt: x}]", "project"),
        ("trackers=[{type: wandb, mode: maybe}]", "offline"),
        ("trackers=[{type: wandb, tags: x}]", "trackers[0].tags"),
        ("trackers=[{type: mlflow, tags: [x]}]", "trackers[0].tags"),
        ("trackers=[{type: trackio, samples: 3}]", "trackers[0].samples"),
        ("trackers=[{type: jsonl, path: [x]}]", "trackers[0].path"),
        ("logger={backend: wandb, mlflow: {}}", "mlflow"),
        ("logger.wandb.project=x", "or change the first tracker with trackers.0.project"),
        ("settings.tracker_timeout=0", "tracker_timeout"),
        ("trackers=[{type: tensorboard, flush_seconds: 0}]", "flush_seconds"),
        ("settings.tracker_timeout=.nan", "tracker_timeout"),
    ],
)
def test_wrong_options_are_refused_with_their_place(word, says):
    line = refused(word)
    assert says in line
    assert "command line" in line


def test_guides_and_our_spelling_are_one():
    ours = "trackers=[{type: wandb, project: p, tags: [a]}]"
    theirs = "logger={backend: wandb, wandb: {project: p, tags: [a]}}"
    trees = [prepare(CONFIG, [word]).validated.tree["trackers"] for word in (ours, theirs)]
    assert trees[0] == trees[1]
    assert trees[0][0]["project"] == "p"
    several = prepare(CONFIG, ["logger={backend: [console, jsonl, wandb]}"])
    assert [t["type"] for t in several.validated.tree["trackers"]] == ["jsonl", "wandb"]
