"""Whole runs of small networks with the settings of RL Baselines3 Zoo, beside its figures.

``python benchmarks/zoo.py dqn/CartPole-v1 ppo/Acrobot-v1`` trains each pair of an algorithm and an
environment with several seeds, ``--jobs`` runs side by side on one thread each. The settings are
the files ``zoo/ALGORITHM/ENVIRONMENT.yaml``, which ``plugrl train`` takes too; words after the name
of a pair change them: ``"dqn/CartPole-v1 rl.lr=1e-3 dqn.double=true"``. A run ends with 100
episodes by the last policy and its likeliest actions, as the Zoo's figures were made. Each run that
is over becomes a line of ``--out`` at once, and what has its line there is not made again.

``--table`` makes no runs: it sums up the lines of the files that follow, with the mean and the
deviation over seeds, and the interquartile mean with its 95 % bootstrap interval (Agarwal et al.
2021, "Deep reinforcement learning at the edge of the statistical precipice", 2108.13264).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from _peers import BenchmarkError, machine, positive, run

SETTINGS = Path(__file__).parent / "zoo"
METRIC = "validation/mean_episode_return"
#: Mean and deviation over episodes of one run of the Zoo (its benchmark.md, by RL Baselines3 Zoo's
#: trained agents), with the shortest pairs first. Its environments are LunarLander-v2, Hopper-v3
#: and such; None: it has no figure.
PUBLISHED: dict[str, tuple[float, float] | None] = {
    "reinforce/CartPole-v1": None,
    "reinforce/Acrobot-v1": None,
    "ppo/CartPole-v1": (500.000, 0.000),
    "ppo/MountainCarContinuous-v0": (88.343, 2.572),
    "ppo/Pendulum-v1": (-172.225, 104.159),
    "dqn/CartPole-v1": (500.000, 0.000),
    "a2c/LunarLander-v3": (155.751, 80.419),
    "a2c/CartPole-v1": (500.000, 0.000),
    "a2c/Acrobot-v1": (-83.353, 17.213),
    "a2c/MountainCar-v0": (-111.263, 24.087),
    "a2c/Pendulum-v1": (-162.965, 103.210),
    "ppo/Acrobot-v1": (-73.506, 18.201),
    "dqn/MountainCar-v0": (-100.849, 9.925),
    "td3/Pendulum-v1": (-151.855, 90.227),
    "ppo/LunarLander-v3": (242.119, 31.823),
    "ppo/LunarLanderContinuous-v3": (270.863, 32.072),
    "ppo/MountainCar-v0": (-110.423, 19.473),
    "dqn/Acrobot-v1": (-76.639, 11.752),
    "dqn/LunarLander-v3": (154.382, 79.241),
    "sac/Pendulum-v1": (-156.995, 88.714),
    "sac/MountainCarContinuous-v0": (94.679, 1.134),
    "a2c/MountainCarContinuous-v0": (91.166, 0.255),
    "ppo/InvertedPendulum-v5": None,
    "ppo/Hopper-v5": (2410.435, 10.026),
    "ppo/HalfCheetah-v5": (5819.099, 663.530),
    "sac/Hopper-v5": (2325.547, 1129.676),
    "sac/HalfCheetah-v5": (9535.451, 100.470),
    "td3/Hopper-v5": (3606.390, 4.027),
    "td3/HalfCheetah-v5": (9655.666, 969.916),
}
#: Points of the curve that a line keeps.
_POINTS = 50
#: The runs that go on now.
_RUNNING: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Job:
    """One run: a pair, what is changed of its settings, and a seed."""

    pair: str
    overrides: tuple[str, ...]
    seed: int

    def command(self, runs: str) -> list[str]:
        """``plugrl train`` with its run folder in ``runs``."""
        settings = f"{SETTINGS / self.pair}.yaml"
        words = [*self.overrides, f"seed={self.seed}", f"settings.runs_folder={runs}"]
        return [sys.executable, "-m", "plugrl", "train", "-q", settings, *words]


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", help="pairs (all), or files after --table")
    parser.add_argument("--table", action="store_true", help="sum up files of lines; no runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="(0 to 4)")
    parser.add_argument("--jobs", type=positive, default=1, help="runs side by side (1)")
    parser.add_argument("--limit", type=float, help="seconds after which runs are ended")
    parser.add_argument("--out", type=Path, default=Path("zoo.jsonl"), help="(zoo.jsonl)")
    return parser.parse_args(given)


def jobs_of(what: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """All seeds of each pair, pair by pair.

    Raises:
        BenchmarkError: a pair has no settings.
    """
    jobs = []
    for words in what or PUBLISHED:
        pair, *overrides = words.split()
        if pair not in PUBLISHED:
            raise BenchmarkError(f"there is no pair {pair!r}; pairs: {', '.join(PUBLISHED)}")
        jobs += [Job(pair, tuple(overrides), seed) for seed in seeds]
    return jobs


def rows_of(files: Sequence[Path]) -> dict[Job, dict[str, Any]]:
    """The lines of runs that ended well."""
    rows = {}
    for file in files:
        for row in map(json.loads, file.read_text("utf-8").splitlines()):
            if "error" not in row:
                rows[Job(row["pair"], tuple(row["overrides"]), row["seed"])] = row
    return rows


def made(job: Job, ends: float) -> dict[str, Any]:
    """Make one run and give its line, whatever becomes of it."""
    row = {"pair": job.pair, "overrides": job.overrides, "seed": job.seed}
    began = time.monotonic()
    if began >= ends:
        return {**row, "error": "not begun before --limit"}
    with tempfile.TemporaryDirectory(prefix="plugrl-zoo-") as runs, tempfile.TemporaryFile() as log:
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {**os.environ, **one, "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(
            job.command(runs), env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        _RUNNING.append(process)
        late = threading.Timer(min(ends - began, threading.TIMEOUT_MAX), process.kill)
        late.start()
        # The processor time of this run alone, start and evaluation included.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        _RUNNING.remove(process)
        late.cancel()
        row |= {"cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1)}
        row |= {"wall_seconds": round(time.monotonic() - began, 1)}
        if process.returncode != 0:
            log.seek(0)
            last = log.read().decode(errors="replace").strip().splitlines()[-3:]
            return {**row, "error": f"exit code {process.returncode}", "log": last}
        (metrics,) = Path(runs).glob("*/*/metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    return {**row, **figures(lines)}


def figures(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The last evaluation of a run, its steps, and the returns of its training on the way."""
    learned = [
        [line["rollout/frames"], round(line["rollout/mean_episode_return"], 2)]
        for line in lines
        if "rollout/mean_episode_return" in line
    ]
    evaluated = next(line for line in reversed(lines) if METRIC in line)
    return {
        "return": evaluated[METRIC],
        "episodes": evaluated["validation/episodes"],
        "steps": max(line.get("rollout/frames", 0) for line in lines),
        "curve": thinned(learned),
    }


def thinned(points: Sequence[Sequence[float]]) -> list[list[float]]:
    """At most ``_POINTS`` points, each the mean of neighbours."""
    parts = np.array_split(np.array(points), min(_POINTS, len(points))) if points else []
    return [[round(float(x), 2) for x in part.mean(0)] for part in parts]


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """The mean without the lowest and the highest quarter, over the last axis."""
    cut = values.shape[-1] // 4
    ordered = np.sort(values, axis=-1)
    return np.asarray(ordered[..., cut : values.shape[-1] - cut].mean(-1))


def interval(values: np.ndarray) -> list[float]:
    """95 % of the interquartile means of runs drawn with replacement (percentile bootstrap)."""
    drawn = np.random.default_rng(0).choice(values, (10_000, values.size))
    return [float(end) for end in np.percentile(interquartile_mean(drawn), (2.5, 97.5))]


def summed_up(rows: dict[Job, dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each pair and change of settings, in the order of :data:`PUBLISHED`."""
    groups: dict[tuple[str, tuple[str, ...]], list[Job]] = {}
    for job in sorted(rows, key=lambda job: job.seed):
        groups.setdefault((job.pair, job.overrides), []).append(job)
    entries = []
    for (pair, overrides), jobs in groups.items():
        returns = np.array([rows[job]["return"] for job in jobs])
        entries.append(
            {
                "pair": pair,
                "overrides": list(overrides),
                "seeds": [job.seed for job in jobs],
                "returns": returns.tolist(),
                "mean": float(returns.mean()),
                "deviation": float(returns.std(ddof=1)) if returns.size > 1 else None,
                "interquartile_mean": float(interquartile_mean(returns)),
                "interval": interval(returns),
                "published": PUBLISHED.get(pair),
                "steps": rows[jobs[0]]["steps"],
                "cpu_seconds": float(np.median([rows[job]["cpu_seconds"] for job in jobs])),
            }
        )
    order = list(PUBLISHED)
    return sorted(entries, key=lambda e: (e["pair"].split("/")[1], order.index(e["pair"])))


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Make the runs that have no line yet, and sum up.

    Raises:
        BenchmarkError: a pair has no settings, or a file is not there.
    """
    files = [Path(name) for name in given.what] if given.table else [given.out]
    if given.table:
        missing = [str(file) for file in files if not file.exists()]
        if missing or not files:
            raise BenchmarkError(f"--table needs files of lines; not there: {missing or 'any'}")
    else:
        train(jobs_of(given.what, given.seeds), given)
    rows = rows_of(files)
    return {"benchmark": "zoo", "pairs": summed_up(rows), "threads": 1, "machine": machine()}


def train(jobs: Sequence[Job], given: argparse.Namespace) -> None:
    """Make runs side by side, and write a line for each as soon as it is over."""
    given.out.touch()
    done = rows_of([given.out])
    ends = time.monotonic() + given.limit if given.limit is not None else float("inf")
    lock = threading.Lock()

    def one(job: Job) -> None:
        try:
            row = made(job, ends)
        except Exception as error:
            # The other runs go on: what one of them lacks is said in its line.
            row = {**vars(job), "error": f"{type(error).__name__}: {error}"}
        with lock, given.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
            got = row.get("error") or f"{row['return']:.1f} in {row['cpu_seconds']} cpu s"
            print(f"{' '.join((job.pair, *job.overrides))} seed {job.seed}: {got}", file=sys.stderr)

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ThreadPoolExecutor(given.jobs) as pool:
        try:
            list(pool.map(one, [job for job in jobs if job not in done]))
        finally:
            # Whoever ends this process ends its runs: nobody would take their lines.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in _RUNNING:
                process.kill()
            signal.signal(signal.SIGTERM, before)


def table(result: dict[str, Any]) -> str:
    """The result for people, as a table of Markdown."""
    lines = [
        "| Environment | Algorithm | Seeds | Mean ± deviation | Interquartile mean, 95 % | Zoo "
        "| Steps | CPU seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for entry in result["pairs"]:
        algorithm, environment = entry["pair"].split("/")
        changed = "".join(f" `{words}`" for words in entry["overrides"])
        spread = "" if entry["deviation"] is None else f" ± {entry['deviation']:.1f}"
        low, high = entry["interval"]
        zoo = "" if entry["published"] is None else "{:.1f} ± {:.1f}".format(*entry["published"])
        lines.append(
            f"| {environment} | {algorithm}{changed} | {len(entry['seeds'])} "
            f"| {entry['mean']:.1f}{spread} "
            f"| {entry['interquartile_mean']:.1f} ({low:.1f} to {high:.1f}) | {zoo} "
            f"| {entry['steps']:,} | {entry['cpu_seconds']:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(measure, table, arguments()))
