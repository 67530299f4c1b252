"""Refuses to train as one of several copies that a launcher of data-parallel programs started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from plugrl.core.errors import UsageError

#: The variable with the number of copies, one that must be set beside it, and who sets them. Not
#: SLURM_NTASKS, which the one process of a batch script has too.
_LAUNCHERS = (
    ("WORLD_SIZE", "RANK", "torchrun or accelerate"),
    ("OMPI_COMM_WORLD_SIZE", None, "mpirun"),
    ("PMI_SIZE", "PMI_RANK", "mpiexec"),
    ("SLURM_STEP_NUM_TASKS", None, "srun"),
)


def refuse_copies(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse an environment in which this process is one of several copies of the same command.

    Each copy would train alone, in a run folder of its own.

    Raises:
        UsageError: a launcher started more than one.
    """
    for variable, beside, launcher in _LAUNCHERS:
        copies = environment.get(variable, "").strip()
        if beside is not None and beside not in environment:
            continue
        if copies.isdecimal() and int(copies) > 1:
            raise UsageError(
                f"{launcher} started {copies} copies of this command ({variable}={copies}), and "
                "each would train on its own: start it once, without the launcher; "
                "rollout_worker.processes gives a run more cores"
            )
