"""Runs of two ranks that were killed: resumed, they are those that were not."""

import json
import os
import resource
import signal
from pathlib import Path

import kills
import pytest
import torch
from here import configuration, spread

from plugrl import hookimpl
from plugrl.core.errors import RunError
from plugrl.core.experiment import prepare, resume, start
from plugrl.core.run.checkpoints import checkpoint
from plugrl.plugins.distributed import train_service
from plugrl.testing import tiny

pytestmark = pytest.mark.slow


#: States of so many megabytes that their memory goes back to the machine after each pass.
WIDE = {
    "models": {"policy": {"source": {"config": {"intermediate_size": 2**17}}}},
    "data": {"rollout_repeat_n": 96},
}


def tree(folder, sections=None):
    """Four steps, of which each but the first two may be lost."""
    own = {"trainer": {"total_train_steps": 4}, "settings": {"checkpoint_every": 2}}
    given = tiny.merged(own, sections or {})
    return spread(configuration("self_hosted_grpo", folder, given))


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


def find_number(state, name):
    """The first number of a name in a state."""
    if not hasattr(state, "items"):
        return None
    found = [v if k == name else find_number(v, name) for k, v in state.items()]
    return next((each for each in found if each is not None), None)


def assert_same(one, other):
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(value, other[1][name]) for name, value in one[1].items())


class Fate:
    """Does something to the process of a rank after a step."""

    def __init__(self, step, rank, taken, strike):
        self.step, self.rank, self.taken, self.strike = step, rank, taken, strike

    @hookimpl
    def plugrl_step_end(self, step):
        if step == self.step:
            self.strike(self.taken[-1].processes[self.rank])


def kill(process):
    os.kill(process, signal.SIGKILL)


def starve(process):
    """Give it no more memory than it has."""
    with open(f"/proc/{process}/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.prlimit(process, resource.RLIMIT_AS, (used, used))


@pytest.fixture(scope="module")
def learned_once():
    return []


@pytest.fixture
def uninterrupted(cluster, learned_once, tmp_path):
    if not learned_once:
        learned_once.append(learned(start(prepare(tree(tmp_path / "whole"))).folder))
    return learned_once[0]


@pytest.fixture
def struck(monkeypatch):
    """Runs to the end that a rank has; gives the folder of the run."""

    def run(configured, step, rank, strike, said):
        taken, take = [], train_service.take_ranks
        with monkeypatch.context() as patch:
            patch.setattr(
                train_service, "take_ranks", lambda *key: taken.append(take(*key)) or taken[-1]
            )
            experiment = prepare(configured)
            experiment.plugins.manager.register(Fate(step, rank, taken, strike))
            with pytest.raises(RunError, match=said):
                start(experiment)
        (folder,) = Path(configured["settings"]["runs_folder"], "conformance").iterdir()
        return folder

    return run


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("step", [1, 3])
def test_a_run_that_lost_a_rank(uninterrupted, struck, rank, step, tmp_path):
    said = f"rank {rank} on node .* was killed"
    folder = struck(tree(tmp_path / "runs"), step, rank, kill, said)
    assert_same(learned(resume(folder).folder), uninterrupted)


def test_a_run_whose_rank_ran_out_of_memory(cluster, struck, tmp_path):
    expected = learned(start(prepare(tree(tmp_path / "whole", WIDE))).folder)
    said = r"rank 1 on node \S+ .*out of memory.* while it .*; .*(lower|take) "
    folder = struck(tree(tmp_path / "runs", WIDE), 3, 1, starve, said)
    # The checkpoint of step 2 is whole; step 3 is made once more.
    last = checkpoint.load(checkpoint.latest(folder / "checkpoints"))
    assert find_number(last, "optimizer_steps") == 2
    assert_same(learned(resume(folder).folder), expected)


@pytest.mark.parametrize("line", [2, 4])
def test_a_run_whose_driver_was_killed(uninterrupted, line, tmp_path):
    made = tmp_path / "experiment.json"
    made.write_text(json.dumps(tree(tmp_path / "runs")))
    kills.kill(line, 0.05, "train", made, cwd=tmp_path)
    (folder,) = (tmp_path / "runs" / "runs" / "conformance").iterdir()
    kills.finish("resume", folder, cwd=tmp_path)
    assert_same(learned(folder), uninterrupted)
