"""Copies of one command are refused, and what only looks like them is not."""

import pytest

from plugrl.core.errors import UsageError
from plugrl.core.experiment import prepare
from plugrl.core.run.process.launchers import refuse_copies


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        ({"WORLD_SIZE": "2", "RANK": "0"}, "torchrun"),
        ({"WORLD_SIZE": "16", "RANK": "15", "LOCAL_RANK": "7"}, "accelerate"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "mpirun"),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, "mpiexec"),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8"}, "srun"),
    ],
)
def test_copies_are_refused(environment, launcher):
    with pytest.raises(UsageError, match="rollout_worker.processes") as caught:
        refuse_copies(environment)
    assert launcher in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WORLD_SIZE": "1", "RANK": "0"},
        # A variable of somebody's own, and the one process of a batch script.
        {"WORLD_SIZE": "8"},
        {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"WORLD_SIZE": "", "RANK": ""},
        {"WORLD_SIZE": "many", "RANK": "0"},
    ],
)
def test_one_process_is_not(environment):
    refuse_copies(environment)


def test_what_trains_refuses_before_it_reads_anything(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UsageError, match="2 copies"):
        prepare("there-is-no-such-file.yaml", setup=True)
