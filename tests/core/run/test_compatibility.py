"""Edited configurations of runs: what is refused, what is warned of, and what is free."""

import json

import pytest
import yaml

from plugrl.core.errors import ConfigError
from plugrl.core.run.checkpoints.compatibility import (
    check_dump,
    check_resume,
    warn_about_changes,
)
from plugrl.core.run.run import Run

TREE = {
    "seed": 1,
    "data": {"seed": None, "shuffle": True, "batch_size": 4},
    "models": {
        "policy": {
            "source": {"path": None, "config": {"hidden_size": 16}, "dtype": "float32"},
            "adapter": {"r": 8, "alpha": 16.0},
            "train": {"type": "local", "learning_rate": 0.01},
        }
    },
    "trainer": {
        "type": "sequence",
        "phases": [{"name": "a", "trainer": {"type": "x", "steps": 3}}, {"name": "b"}],
    },
    "settings": {"device": "cpu"},
}


@pytest.fixture
def folder(tmp_path):
    """A folder of checkpoints whose newest one was made with TREE."""
    made = tmp_path / "step-00000003"
    made.mkdir()
    manifest = {"format": 1, "files": {}, "config": TREE}
    (made / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def changed(path, value):
    tree = json.loads(json.dumps(TREE))
    *above, last = path.split(".")
    place = tree
    for key in above:
        place = place[int(key)] if isinstance(place, list) else place[key]
    place[last] = value
    return tree


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("models.policy.source.config.hidden_size", 32, "hidden_size was 16 and is now 32"),
        ("models.policy.source.config.layers", 2, "config.layers was absent and is now 2"),
        ("models.policy.source.dtype", "bfloat16", 'was "float32" and is now "bfloat16"'),
        ("models.policy.adapter", None, 'adapter was {"r": 8, "alpha": 16.0} and is now null'),
        ("models.policy.adapter.alpha", 32, "models.policy.adapter.alpha was 16.0 and is now 32"),
        ("models.policy.train", None, "models.policy.train was {"),
        ("models.judge", {"source": {}}, "models.judge was absent and is now {"),
        ("seed", 2, "seed was 1 and is now 2"),
        ("data.shuffle", False, "data.shuffle was true and is now false"),
        ("trainer.type", "grpo", 'trainer.type was "sequence" and is now "grpo"'),
        ("trainer.type", "größer", 'trainer.type was "sequence" and is now "größer"'),
        ("trainer.phases.0.trainer.type", "y", 'trainer.phases[0].trainer.type was "x"'),
        ("trainer.phases.1.name", "c", 'trainer.phases[1].name was "b" and is now "c"'),
    ],
)
def test_what_a_saved_state_belongs_to_is_refused(folder, path, value, says, caplog):
    with pytest.raises(ConfigError) as caught:
        check_resume(folder, changed(path, value))
    text = str(caught.value)
    assert says in text
    assert text.endswith("restore the value in config.yaml, or start a new run")
    assert "\n" not in text
    with pytest.raises(ConfigError, match="step is repeated with its own model"):
        check_dump(folder / "step-00000003", changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("models.policy.train.learning_rate", 0.1, "learning_rate was 0.01 and is now 0.1"),
        ("data.batch_size", 8, "data.batch_size was 4 and is now 8"),
        ("trainer.phases.0.trainer.steps", 5, "trainer.phases[0].trainer.steps was 3 and is now 5"),
    ],
)
def test_other_values_may_be_changed_knowingly(folder, path, value, says, caplog):
    tree = changed(path, value)
    check_resume(folder, tree)
    warn_about_changes(folder / "step-00000003", tree)
    assert len(caplog.messages) == 1
    assert says in caplog.messages[0]


@pytest.mark.parametrize(
    "tree",
    [
        TREE,
        changed("settings.device", "cuda"),
        changed("models.policy.adapter.alpha", 16),
        changed("models.policy.adapter.alpha", 16.0) | {"seed": 1.0},
    ],
)
def test_equal_values_and_settings_say_nothing(folder, tree, caplog):
    check_resume(folder, tree)
    warn_about_changes(folder / "step-00000003", tree)
    assert caplog.messages == []


def test_a_phase_that_is_gone_is_refused(folder):
    tree = json.loads(json.dumps(TREE))
    del tree["trainer"]["phases"][1]
    with pytest.raises(ConfigError, match=r'phases\[1\].name was "b" and is now absent'):
        check_resume(folder, tree)


def test_many_differences_stay_one_line(folder):
    tree = json.loads(json.dumps(TREE))
    tree["seed"] = 9
    tree["models"]["policy"]["source"] = {"path": "x", "config": {}, "dtype": "bfloat16"}
    with pytest.raises(ConfigError, match=r"; .*; .* and 1 more; restore the values"):
        check_resume(folder, tree)


def test_a_checkpoint_of_an_older_plugrl_is_taken_as_it_is(folder):
    made = folder / "step-00000003" / "manifest.json"
    made.write_text(json.dumps({"format": 1, "files": {}}))
    check_resume(folder, changed("seed", 7))


def test_values_that_yaml_writes_its_own_way_are_no_change(make_run, caplog):
    free = {"tuple": (1, 2), "small": 1e-5, "inf": float("inf"), "text": "1e-3", "n": {1: None}}
    run = make_run(seed=1, models={"policy": {"source": free}})
    with run:
        run.attach(Empty())
        run.end_step(1, {})
    again = Run.open(run.folder)
    again.attach(Empty())
    again.restore()
    again.finish("done")
    assert not [line for line in caplog.messages if "changed value" in line]


class Empty:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_the_configuration_of_now_stands_in_the_next_checkpoint(make_run, caplog):
    run = make_run(seed=1, rl={"lr": 0.1})
    with run:
        run.attach(Empty())
        run.end_step(1, {})
    file = run.folder / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"rl": {"lr": 0.2}}))
    for step in (2, 3):
        again = Run.open(run.folder)
        again.attach(Empty())
        with again:
            again.restore()
            again.end_step(step, {})
    said = [line for line in caplog.messages if "a changed value" in line]
    assert said == ["resuming with a changed value: rl.lr was 0.1 and is now 0.2"]
    assert said[0] in (run.folder / "log.txt").read_text()


def test_a_refused_run_is_left_as_it_was(make_run):
    run = make_run(seed=1)
    with run:
        run.attach(Empty())
        run.end_step(1, {})
    file = run.folder / "config.yaml"
    text = file.read_text()
    file.write_text(text.replace("seed: 1", "seed: 2"))
    before = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError, match="seed was 1 and is now 2"):
        Run.open(run.folder)
    assert {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()} == before
    file.write_text(text)
    Run.open(run.folder).finish("done")
