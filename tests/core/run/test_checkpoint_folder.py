"""Where checkpoints lie, how often they are saved and which of them stay."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import forking
import kills
import pytest
import torch
import yaml
from run_driver import StopAt, Toy

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import load_run, prepare
from plugrl.core.run.folder import find_all
from plugrl.core.run.run import Run

NAMES = ["step-00000001", "step-00000002", "step-00000003", "step-00000004"]


def train(run, until, scores=()):
    toy = Toy()
    run.attach(toy)
    run.restore()
    with run:
        for step in range(toy.done + 1, until + 1):
            if step <= len(scores):
                run.report_score(scores[step - 1])
            run.end_step(step, {"value": toy.step()})
    return toy


def names(folder) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def elsewhere(folder, **settings):
    return {"checkpoint_path": str(folder), "checkpoint_every": 1, **settings}


def test_each_run_has_a_folder_of_its_own_there(make_run, tmp_path):
    place = tmp_path / "new" / "place"
    runs = [make_run(settings=elsewhere(place)) for _ in range(2)]
    for run in runs:
        train(run, 1 + runs.index(run))
    assert names(place) == sorted(run.id for run in runs)
    assert names(place / runs[0].id) == NAMES[:1]
    assert names(place / runs[1].id) == NAMES[:2]
    assert (runs[0].folder / "checkpoints").resolve() == place / runs[0].id


def test_a_run_resumes_from_there_whatever_the_working_folder_is(make_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3)
    whole = train(make_run(settings={"checkpoint_every": 1}), 4)
    torch.manual_seed(3)
    run = make_run(settings=elsewhere("ck"), hooks=StopAt(2))
    train(run, 4)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    again = Run.open(run.folder)
    assert torch.equal(train(again, 4).weights, whole.weights)
    assert names(tmp_path / "ck" / run.id) == NAMES[2:]


def test_one_that_is_not_there_is_no_beginning_from_scratch(make_run, tmp_path):
    run = make_run(settings=elsewhere(tmp_path / "disk"))
    train(run, 2)
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    line = f"lie in {tmp_path / 'disk' / run.id}, which is not there; mount or restore it"
    with pytest.raises(ConfigError, match=line):
        Run.open(run.folder)
    with pytest.raises(ConfigError, match=line):
        load_run(run.folder).checkpoint()
    (run.folder / "checkpoints").unlink()
    assert Run.open(run.folder).step == 0


def test_a_copy_of_a_run_does_not_write_into_the_checkpoints_of_the_first(make_run, tmp_path):
    run = make_run(settings=elsewhere(tmp_path / "ck"))
    train(run, 1)
    copy = run.folder.with_name("copy")
    shutil.copytree(run.folder, copy, symlinks=True)
    with pytest.raises(ConfigError, match=f"are those of the run {run.id}, of which it is a copy"):
        Run.open(copy)
    shutil.copytree(tmp_path / "ck" / run.id, tmp_path / "own")
    (copy / "checkpoints").unlink()
    (tmp_path / "own").rename(copy / "checkpoints")
    train(Run.open(copy), 2)
    assert names(copy / "checkpoints") == NAMES[:2]
    assert names(tmp_path / "ck" / run.id) == NAMES[:1]


@pytest.mark.parametrize("where", ["file/below", "/proc/none", "/dev/null"])
def test_a_folder_that_cannot_be_written_leaves_no_run(make_run, tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(Exception, match="cannot make the folder of the checkpoints") as caught:
        make_run(settings=elsewhere(where))
    assert "settings.runs_folder" not in str(caught.value)
    assert find_all(tmp_path / "runs") == []
    assert names(tmp_path / "runs" / "toy") == []


def test_the_folder_of_the_runs_is_refused(make_run, tmp_path):
    with pytest.raises(ConfigError, match="is where the run folders lie"):
        make_run(settings=elsewhere(tmp_path / "runs" / "toy"))
    assert find_all(tmp_path / "runs") == []


@pytest.mark.parametrize(
    ("keep", "scores", "left"),
    [
        (1, (), NAMES[3:]),
        (1, (0.1, 0.9, 0.5), [NAMES[1], NAMES[3]]),
        (2, (), NAMES[2:]),
        (None, (0.1, 0.9, 0.5), NAMES),
    ],
)
def test_which_stay(make_run, keep, scores, left):
    run = make_run(settings={"checkpoint_every": 1, "keep_checkpoints": keep})
    train(run, 4, scores)
    assert names(run.folder / "checkpoints") == left


# The spellings of the guides.

TREE = {"trainer": {"type": "self_hosted_grpo", "total_train_steps": 3}}
BASE = {
    "experiment_name": "mine",
    "defaults": ["common/adder", "_self_"],
    "models": {"policy": {"train": "local"}},
    "data": {"batch_size": 2, "rollout_repeat_n": 2},
    "validate": {"enabled": False},
}


@pytest.fixture
def config(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump({**BASE, **TREE}))
    return path


def settings(config, *words):
    return prepare(config, words).validated.tree["settings"]


@pytest.mark.parametrize(("written", "kept"), [("true", 1), ("false", None)])
def test_whether_earlier_ones_are_removed(config, written, kept):
    assert settings(config)["keep_checkpoints"] == 2
    assert settings(config, f"trainer.remove_previous_ckpt={written}")["keep_checkpoints"] == kept


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("trainer.save_freq=-1", "must be at least 0, not -1"),
        ("trainer.save_freq=0.5", "must be a whole number"),
        ("trainer.save_freq=often", "must be a whole number"),
        ("trainer.save_freq=1e9", "must be a whole number, not 1000000000.0; write 1000000000"),
        ("trainer.remove_previous_ckpt=3", "must be true or false, not 3"),
        ("trainer.remove_previous_ckpt=old", "must be true or false, not 'old'"),
        ("trainer.checkpoint_path=''", "is empty; write a folder, or null"),
        ("trainer.checkpoint_path=[a]", "must be text"),
        ("settings.keep_checkpoints=0", "must be at least 1, not 0"),
    ],
)
def test_values_that_mean_nothing(config, word, line):
    with pytest.raises(ConfigError) as caught:
        prepare(config, [word])
    (fault,) = caught.value.faults
    assert line in fault
    assert "command line" in fault


@pytest.mark.parametrize("every", [0, 10**9])
def test_a_step_that_never_comes_saves_at_the_end(config, make_run, every):
    assert settings(config, f"trainer.save_freq={every}")["checkpoint_every"] == every
    run = make_run(settings={"checkpoint_every": every})
    train(run, 3)
    assert names(run.folder / "checkpoints") == NAMES[2:3]


def test_a_phase_may_not_have_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["trainer.phases.0.trainer.save_freq=5", "trainer.phases.1.settings.progress=none"]
    with pytest.raises(ConfigError) as caught:
        prepare("quickstart", words)
    assert [line.partition(":")[0] for line in caught.value.faults] == [
        "trainer.phases[0].trainer.save_freq (command line)",
        "trainer.phases[1].settings.progress (command line)",
    ]
    assert all("belongs to the whole run" in line for line in caught.value.faults)
    assert prepare("quickstart", ["trainer.phases.0.settings.device=cpu"])


def plugrl(*words: str) -> str:
    done = forking.run(["-m", "plugrl", *words], libraries=kills.LIBRARIES)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.integration
def test_commands_find_them(config, tmp_path):
    words = ["trainer.checkpoint_path=ck/${experiment_name}", "trainer.save_freq=1"]
    words.append("trainer.remove_previous_ckpt=true")
    plugrl("train", "a.yaml", *words)
    (run,) = Path("runs/mine").iterdir()
    place = tmp_path / "ck" / "mine" / run.name
    assert names(place) == ["step-00000003"]
    shown = json.loads(plugrl("runs", "show", "latest", "--json"))
    assert shown["checkpoints"] == ["step-00000003"]
    assert shown["checkpoint_path"] == str(place)
    assert "exact_match" in plugrl("eval", str(run), "validation", "validate.data.limit=2")
    plugrl("export", "latest", "model")
    assert Path("model/config.json").is_file()
    plugrl("sweep", "a.yaml", "seed=1,2", *words)
    assert len(names(tmp_path / "ck" / "mine")) == 3
