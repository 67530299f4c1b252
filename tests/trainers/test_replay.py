"""Dumped steps are repeated from their own weights and give the same loss."""

import json
import math
from pathlib import Path

import pytest
import torch
import yaml

import plugrl
from plugrl.core.errors import ConfigError, NonFiniteError, UsageError
from plugrl.core.replay import replay
from plugrl.testing import tiny


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run with a dump of step 2; what changes its folder takes a copy."""
    tree = tiny.config("self_hosted_grpo", tmp_path_factory.mktemp("kept"))
    tree["runtime_monitor"] = {"dump_steps": [2]}
    tree["trainer"]["algorithm"] = {"minibatches": 2}
    tree["trainer"]["total_train_steps"] = 3
    # No group of equal rewards: every minibatch then has a gradient.
    tree["data"]["rollout_repeat_n"] = 16
    return plugrl.train(tree)


@pytest.mark.integration
def test_a_kept_step_gives_the_recorded_loss_again(kept):
    replayed = replay(kept.folder, 2)
    assert [one.what for one in replayed] == ["minibatch 0", "minibatch 1"]
    for one in replayed:
        assert one.equal
        assert one.metrics["loss"] == one.recorded_loss
        assert one.metrics["non_finite_rows"] == 0
    # The line of the run has the mean over the minibatches of both.
    line = next(line for line in kept.metrics if line["step"] == 2)
    for name in ("loss", "grad_norm"):
        mean = sum(one.metrics[name] for one in replayed) / 2
        assert line[f"train/{name}"] == pytest.approx(mean, rel=1e-12)


@pytest.mark.integration
def test_replay_leaves_the_run_as_it_is(kept):
    before = {p: p.read_bytes() for p in kept.folder.rglob("*") if p.is_file()}
    replay(kept.folder, 2)
    assert {p: p.read_bytes() for p in kept.folder.rglob("*") if p.is_file()} == before


@pytest.mark.integration
def test_another_loss_is_told_by_exit_code_1(kept, copied, call):
    folder = copied(kept.folder)
    path = folder / "config.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["trainer"]["algorithm"]["loss"] = {"type": "cross_entropy"}
    path.write_text(yaml.safe_dump(tree))
    code, out, errors = call("replay", folder, 2, "--json")
    assert code == 1, errors
    assert [row["equal"] for row in json.loads(out)] == [False, False]


@pytest.mark.integration
def test_the_command_repeats_a_step(kept, call):
    code, out, errors = call("replay", kept.folder, 2)
    assert code == 0, errors
    head, *rows = out.splitlines()
    assert head.split() == ["WHAT", "RECORDED", "LOSS", "LOSS", "EQUAL", "GRAD", "NORM"]
    assert [line.split()[:2] for line in rows] == [
        ["minibatch", "0"],
        ["minibatch", "1"],
    ]


@pytest.mark.integration
@pytest.mark.parametrize("name", ["self_hosted_grpo", "sequence"])
def test_the_step_that_a_guard_stopped_is_repeated(config, registry, name):
    calls = []

    def poisoned(logp, batch, section):
        calls.append(1)
        return logp * (math.nan if len(calls) == 2 else 1.0), {}

    registry.register("loss", "poisoned", poisoned)
    tree = config()
    algorithm = {"loss": "poisoned"}
    trainer = {"type": "self_hosted_grpo", "total_train_steps": 3, "algorithm": algorithm}
    if name == "sequence":
        first = {"type": "self_hosted_cross_entropy", "total_train_steps": 1}
        tree["trainer"] = {
            "type": "sequence",
            "phases": [
                {"name": "a", "rollout_worker": {"type": "demonstration"}, "trainer": first},
                {"name": "b", "trainer": trainer},
            ],
        }
    else:
        tree["trainer"] = trainer
    with pytest.raises(NonFiniteError, match="dumps"):
        plugrl.train(tree)
    (folder,) = Path(tree["settings"]["runs_folder"]).glob("*/*")
    dump = next((folder / "dumps").iterdir())
    step = int(dump.name.split("-")[1])
    calls[:] = [1]
    (one,) = replay(folder, step)
    assert math.isnan(one.recorded_loss)
    assert one.equal
    assert not math.isfinite(one.metrics["grad_norm"])


@pytest.mark.integration
def test_a_step_without_a_dump_lists_those_that_have_one(kept, call):
    with pytest.raises(ConfigError, match=r"no dump of step 1; it has dumps of step 2"):
        replay(kept.folder, 1)
    code, _, errors = call("replay", kept.folder, 1)
    assert code == 2
    assert len(errors.strip().splitlines()) == 1


@pytest.mark.integration
def test_a_damaged_dump_is_named(kept, copied, call):
    folder = copied(kept.folder)
    tensors = next((folder / "dumps").iterdir()) / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    code, _, errors = call("replay", folder, 2)
    assert code == 1
    assert "tensors.safetensors is missing or cut short" in errors


@pytest.mark.integration
def test_a_trainer_without_replay_says_so():
    class Bare(plugrl.Trainer):
        Config = dict

        def train(self):
            return None

    with pytest.raises(UsageError, match="Bare cannot repeat a step; it needs a replay method"):
        Bare.replay(object.__new__(Bare), {})


@pytest.mark.integration
def test_weights_of_the_dump_are_those_before_the_optimizer_step(kept):
    from plugrl.core.run.checkpoints import dumps

    first, second = (state["batch"]["service"] for _, state in dumps.read(kept.folder, 2))
    assert second["optimizer_steps"] == first["optimizer_steps"] + 1
    assert any(
        not torch.equal(first["weights"][name], second["weights"][name])
        for name in first["weights"]
    )


@pytest.mark.integration
@pytest.mark.parametrize("name", ["self_hosted_grpo", "sequence"])
def test_a_step_without_an_update_says_that_it_leaves_no_dump(config, caplog, name):
    from plugrl.trainers.sequence import SequenceTrainer

    tree = config(name, **(SequenceTrainer.conformance if name == "sequence" else {}))
    # One attempt a prompt: no advantage is different from 0. Step 0 only validates.
    tree["data"]["rollout_repeat_n"] = 1
    last = 2 if name == "self_hosted_grpo" else 5
    tree["runtime_monitor"] = {"dump_steps": [0, 1, last]}
    run = plugrl.train(tree)
    said = [line for line in caplog.messages if "leaves no dump" in line]
    without = [0, 1, 2] if name == "self_hosted_grpo" else [0, 5]
    assert [int(line.split()[1]) for line in said] == without
    assert said[0] in (run.folder / "log.txt").read_text()
