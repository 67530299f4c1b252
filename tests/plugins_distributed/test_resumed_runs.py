"""Runs of two ranks that were killed: resumed, they are those that were not."""

import json
import os
import signal

import kills
import pytest
import torch
from here import configuration, spread

from plugrl import hookimpl
from plugrl.core.errors import RunError
from plugrl.core.experiment import prepare, resume, start
from plugrl.core.run.checkpoints import checkpoint
from plugrl.plugins.distributed import train_service

pytestmark = pytest.mark.slow


def tree(folder, steps=4):
    """Four steps, of which each but the first two may be lost."""
    return spread(
        configuration(
            "self_hosted_grpo",
            folder,
            {"trainer": {"total_train_steps": steps}, "settings": {"checkpoint_every": 2}},
        )
    )


def learned(folder):
    """The numbers of each step that do not tell the time, and the weights at the end."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = checkpoint.load(checkpoint.latest(folder / "checkpoints"))
    (weights,) = find(last, "weights")
    numbers = {
        line["step"]: {
            name: value
            for name, value in line.items()
            if not any(word in name for word in ("time", "seconds", "second", "memory", "/s"))
        }
        for line in lines
    }
    return numbers, weights


def find(state, name):
    if hasattr(state, "items"):
        for key, value in state.items():
            if (
                key == name
                and hasattr(value, "items")
                and any(isinstance(v, torch.Tensor) for v in value.values())
            ):
                yield value
            elif key != "optimizer":
                yield from find(value, name)


def assert_same(one, other):
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(value, other[1][name]) for name, value in one[1].items())


class Killer:
    """Kills a rank after a step."""

    def __init__(self, step, rank, taken):
        self.step, self.rank, self.taken = step, rank, taken

    @hookimpl
    def plugrl_step_end(self, step):
        if step == self.step:
            os.kill(self.taken[-1].processes[self.rank], signal.SIGKILL)


@pytest.fixture(scope="module")
def learned_once():
    return []


@pytest.fixture
def uninterrupted(cluster, learned_once, tmp_path):
    if not learned_once:
        learned_once.append(learned(start(prepare(tree(tmp_path / "whole"))).folder))
    return learned_once[0]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("step", [1, 3])
def test_a_run_that_lost_a_rank(cluster, uninterrupted, rank, step, tmp_path, monkeypatch):
    taken, take = [], train_service.take_ranks
    monkeypatch.setattr(
        train_service, "take_ranks", lambda *key: taken.append(take(*key)) or taken[-1]
    )
    experiment = prepare(tree(tmp_path / "runs"))
    experiment.plugins.manager.register(Killer(step, rank, taken))
    with pytest.raises(RunError, match=f"rank {rank} on node .* was killed"):
        start(experiment)
    (folder,) = (tmp_path / "runs" / "runs" / "conformance").iterdir()
    assert_same(learned(resume(folder).folder), uninterrupted)


@pytest.mark.parametrize("line", [2, 4])
def test_a_run_whose_driver_was_killed(uninterrupted, line, tmp_path):
    made = tmp_path / "experiment.json"
    made.write_text(json.dumps(tree(tmp_path / "runs")))
    kills.kill(line, 0.05, "train", made, cwd=tmp_path)
    (folder,) = (tmp_path / "runs" / "runs" / "conformance").iterdir()
    kills.finish("resume", folder, cwd=tmp_path)
    assert_same(learned(folder), uninterrupted)
