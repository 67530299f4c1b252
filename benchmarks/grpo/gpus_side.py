"""One layout of ``grpo_gpus``: a run whose steps and syncs are timed.

It is given a JSON object: the file for what it found, the words of the other sides, and what the
configuration of one device is changed to.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()
GIVEN = json.loads(sys.argv[1])
# What plugrl's side of the benchmarks on one device reads.
sys.argv[1:] = GIVEN["words"]
sys.path.insert(0, str(Path(__file__).parent))

import plugrl_side  # noqa: E402

import plugrl  # noqa: E402
from plugrl.core.trainer import Capabilities  # noqa: E402
from plugrl.plugins.distributed.train_service import FsdpTrainService  # noqa: E402
from plugrl.testing.tiny import merged  # noqa: E402
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer  # noqa: E402

ENDS: list[float] = []
SYNCS: list[float] = []


@plugrl.register_trainer("noted_grpo")
class NotedGrpo(SelfHostedGrpoTrainer):
    """Notes when a step ends; writes no checkpoint, which nobody would read."""

    capabilities = Capabilities(resume=False)

    def _end_step(self, step: int, metrics: dict[str, float]) -> None:
        super()._end_step(step, metrics)
        # Step 0 is what a run reports before its first one.
        if step > 0:
            ENDS.append(time.perf_counter())


def note_syncs() -> None:
    """Note how long weights are on their way, without the probe that follows."""
    sync_to = FsdpTrainService.sync_to

    @functools.wraps(sync_to)
    def timed(self: FsdpTrainService, inference: Any) -> None:
        began = time.perf_counter()
        sync_to(self, inference)
        SYNCS.append(time.perf_counter() - began)

    FsdpTrainService.sync_to = timed  # type: ignore[method-assign]


def main() -> None:
    """Train, measure, and write what was found."""
    note_syncs()
    run = plugrl.train(merged(plugrl_side.configuration(plugrl_side.GIVEN), GIVEN["sections"]))
    warm = plugrl_side.GIVEN.warm_up
    rows = [row for row in run.metrics if row.get("step", 0) > 0]
    # The first step, whose beginning is not known, is one of the warm-up.
    seconds = [after - before for before, after in itertools.pairwise(ENDS)][warm - 1 :]
    moved = max((row.get("sync/bytes", 0) for row in rows), default=0)
    found = {
        "first_step_seconds": ENDS[0] - BEGAN,
        "last_step_after": ENDS[-1] - BEGAN,
        "seconds": seconds,
        "phases": [
            {n: v for n, v in r.items() if n.startswith("time/") and n != "time/unix"} for r in rows
        ][warm:],
        "sync_seconds": SYNCS[warm:],
        "sync_bytes": moved,
    }
    Path(GIVEN["file"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
