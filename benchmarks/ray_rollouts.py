"""Rollouts in actors of a Ray cluster: how they scale, what the driver takes in, what they cost.

``python benchmarks/ray_rollouts.py`` starts a cluster on this machine and prints one JSON object:

- ``sleeping``: 64 attempts whose code sleeps 0.2 seconds, on 1 to 8 actors that have started;
  linear is 64 times 0.2 seconds divided by the actors.
- ``short``: short trajectories a second, from two actors to a batch of arrays, and the share of
  the driver's processor time that each part takes.
- ``actors``: seconds until four actors are ready, and the memory of each and of its process while
  they wait.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import pstats
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from plugrl.core.config.check import configure
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import Registry
from plugrl.core.run.process import cluster as cluster_settings
from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.core.text.rollout.processes.executor import Executor
from plugrl.core.text.rollout.processes.lockstep import PooledRollouts
from plugrl.core.text.rollout.processes.messages import worker_setup
from plugrl.core.text.rollout.processes.pool import WorkerPool
from plugrl.core.text.trajectory import Trajectory

SLEEP = 0.2
CONCURRENT = 64
TOKENS = 64
#: Nobody is asked: attempts sleep, or make their trajectories up.
NO_MODEL: Any = SimpleNamespace(
    tokenizer=None, vocabulary_size=100, max_sequence_length=4096, sampling_options=frozenset()
)


def sleeps(task: Any) -> Trajectory:
    """An attempt that keeps its process busy with nothing."""
    time.sleep(SLEEP)
    return short(task)


def short(task: Any) -> Trajectory:
    """An attempt that takes no time at all."""
    tokens = [2 + (task.item + i) % 90 for i in range(TOKENS)]
    return Trajectory(
        tokens,
        [0] * 8 + [1] * (TOKENS - 8),
        logprobs=[-1.0] * TOKENS,
        versions=[-1] * 8 + [0] * (TOKENS - 8),
        group_id=task.group_id,
        run_id=task.run_id,
        reward=1.0,
    )


def rollouts(pool: WorkerPool, executor: Executor, name: str) -> LockstepRollouts:
    """Rollouts of a function of this file on the actors of an executor."""
    registry = Registry()
    record = registry.load_path("rollout_worker", Path(__file__), name)
    factory = Factory(registry, {"rollout_worker": record})
    section = configure(registry.load(record), {})
    worker = factory.build("rollout_worker", section, "rollout_worker")
    services = {"policy": NO_MODEL}
    setup = worker_setup(factory, section, services)
    executor.prepare(setup)
    pooled = PooledRollouts(pool, executor.workers, setup, worker, services)
    return LockstepRollouts(worker, services, 0, pooled=pooled)


def prompts(count: int) -> list[Prompt]:
    """``count`` problems."""
    return [Prompt({"prompt": "a"}, i, 0, f"0/{i}", i) for i in range(count)]


def timed(collect: LockstepRollouts, count: int, step: int) -> tuple[float, list[Trajectory]]:
    """Seconds that attempts at ``count`` problems take, and what they came to."""
    started = time.perf_counter()
    found = collect.collect(prompts(count), step, SamplingParams(max_new_tokens=2))
    return time.perf_counter() - started, found


def memory(pid: int) -> float:
    """Megabytes that a process has of its own, what it shares counted in part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def parent(pid: int) -> int:
    """The process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])


def executor_of(workers: int) -> Any:
    """The executor ``ray`` with so many actors."""
    registry = Registry()
    cls = registry.load(registry.resolve("executor", "ray"))
    return cls({"workers": workers})


def sleeping(counts: Sequence[int]) -> list[dict[str, float]]:
    """How attempts that sleep scale with the actors."""
    rows = []
    for count in counts:
        executor = executor_of(count)
        pool = WorkerPool(0, None, executor)
        collect = rollouts(pool, executor, "sleeps")
        timed(collect, count, 0)  # until all have started
        seconds = min(timed(collect, CONCURRENT, step)[0] for step in (1, 2))
        linear = SLEEP * CONCURRENT / count
        rows.append(
            {"actors": count, "seconds": round(seconds, 2), "of_linear": round(linear / seconds, 3)}
        )
        pool.close()
    return rows


def feeding(count: int) -> dict[str, Any]:
    """How many short trajectories the driver takes in, and where its time goes."""
    # The actors import this file, and need no torch.
    from plugrl.core.text.batch import Batch

    executor = executor_of(2)
    pool = WorkerPool(0, None, executor)
    collect = rollouts(pool, executor, "short")
    timed(collect, 100, 0)
    rates = []
    for step in (1, 2, 3):
        seconds, found = timed(collect, count, step)
        started = time.perf_counter()
        Batch.from_trajectories(found)
        rates.append(count / (seconds + time.perf_counter() - started))
    profile = cProfile.Profile(time.process_time)
    profile.enable()
    _, found = timed(collect, count, 4)
    Batch.from_trajectories(found)
    profile.disable()
    pool.close()
    stats: Any = pstats.Stats(profile)
    total = stats.total_tt
    parts = {
        "reading": "<built-in method _pickle.loads>",
        "checking": "check",
        "batch": "from_trajectories",
        "problems": "pack_problem",
    }
    taken = {where[2]: each[3] / total for where, each in stats.stats.items()}
    return {
        "a_second": round(max(rates)),
        "driver_microseconds_each": round(1e6 * total / count),
        "share": {part: round(taken.get(name, 0.0), 2) for part, name in parts.items()},
    }


def resting() -> dict[str, Any]:
    """What actors cost while they wait, and how long they take to start."""
    executor = executor_of(4)
    pool = WorkerPool(0, None, executor)
    started = time.perf_counter()
    timed(rollouts(pool, executor, "short"), 4, 0)
    ready = time.perf_counter() - started
    pids = [int(place["pid"]) for place in pool.places().values()]
    row = {
        "four_ready_after_seconds": round(ready, 2),
        "actor_megabytes": [memory(parent(pid)) for pid in pids],
        "process_megabytes": [memory(pid) for pid in pids],
    }
    pool.close()
    return row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--actors", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--trajectories", type=int, default=4000)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    cluster_settings.configure({"cpus": max([8, *options.actors]), "object_store_memory": 200.0})
    started = time.perf_counter()
    result: dict[str, Any] = {"actors": resting()}
    result["cluster_and_first_actors_seconds"] = round(time.perf_counter() - started, 1)
    if options.actors:
        result["sleeping"] = sleeping(options.actors)
    result["short"] = feeding(options.trajectories)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
