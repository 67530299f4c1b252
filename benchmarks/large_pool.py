"""Many trajectories in the driver: the pool, the checkpoint of it and the batch, by their number.

``python benchmarks/large_pool.py`` prints one JSON object with a row for each count, measured in a
process of its own: processor seconds of each part, and the most memory that the process had. The
trajectories come in groups of eight, one attempt after another, as in the async modes.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GROUP = 8
TOKENS = 1000


class Clock:
    """Processor seconds of the parts, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.process_time()

    def begin(self) -> None:
        """The next part begins."""
        self._since = time.process_time()

    def end(self, name: str) -> None:
        """A part has ended."""
        spent = time.process_time() - self._since
        self.seconds[name] = round(self.seconds.get(name, 0.0) + spent, 3)


def measure(count: int, tokens: int) -> dict[str, Any]:
    """Seconds and megabytes of ``count`` trajectories of so many tokens, in this process."""
    import numpy as np

    from plugrl.core.run.checkpoints.checkpoint import load, save
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.schedule.pool import TrajectoryPool
    from plugrl.core.text.trajectory import Trajectory

    draw, clock, at_first = np.random.default_rng(0), Clock(), peak()
    pool = TrajectoryPool(group_size=GROUP, batch_size=count, rule="batch_size_reached")
    mask = [0] * (tokens // 4) + [1] * (tokens - tokens // 4)
    versions = [-1] * (tokens // 4) + [3] * (tokens - tokens // 4)
    for number in range(count):
        made = Trajectory(
            draw.integers(0, 150_000, tokens).tolist(),
            list(mask),
            logprobs=(-draw.random(tokens)).tolist(),
            versions=list(versions),
            group_id=str(number // GROUP),
            run_id=number % GROUP,
        )
        clock.begin()
        pool.put([made])
        if (number + 1) % GROUP == 0:
            pool.group_finished(made.group_id)
        assert pool.ready() is (number + 1 == count)
        assert pool.complete("policy") == (number + 1) // GROUP * GROUP
        clock.end("pool")
    held = peak()
    with tempfile.TemporaryDirectory() as folder:
        clock.begin()
        path = save(Path(folder), 1, {"pool": pool.state_dict()})
        clock.end("save")
        saved = peak()
        size = sum(file.stat().st_size for file in path.iterdir())
        pool = TrajectoryPool(group_size=GROUP, batch_size=count, rule="batch_size_reached")
        made = None  # type: ignore[assignment]
        clock.begin()
        pool.load_state_dict(load(path)["pool"])
        clock.end("load")
    loaded = peak()
    clock.begin()
    taken = pool.take("policy")
    clock.end("pool")
    clock.begin()
    batch = Batch.from_trajectories(taken)
    clock.end("batch")
    assert len(batch) == count
    return {
        "trajectories": count,
        "processor_seconds": clock.seconds,
        "checkpoint_megabytes": round(size / 1e6),
        "peak_megabytes": {
            "pool": round(held - at_first),
            "save": round(saved - at_first),
            "load": round(loaded - at_first),
            "batch": round(peak() - at_first),
        },
    }


def peak() -> float:
    """The most megabytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured_apart(count: int, tokens: int) -> dict[str, Any]:
    """:func:`measure` in a process of its own, since memory that was had is not forgotten."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", str(count), "--tokens", str(tokens)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--counts", type=int, nargs="*", default=[25_000, 50_000, 100_000])
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--one", type=int, help="measure in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.tokens)))
        return
    rows = [measured_apart(count, options.tokens) for count in options.counts]
    print(json.dumps({"tokens": options.tokens, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
