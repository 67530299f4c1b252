"""Measure the modes of weight sync: ``python docs/weight_modes.py --out FILE.json``.

Trains the quickstart under each of ``MODES`` for some seeds, several runs at a time, and reads
their second phase from the run folders. FILE.json is written after each run, and runs that it has
are not made again. ``--table FILE.json`` writes the table between the markers of
weight-sync-measurements.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import mean
from typing import Any

from plugrl.core.run.records.timeline_reader import BusyIntervals

#: The rows of the table: mode, threshold, what happens to open attempts.
MODES: dict[str, tuple[str, int, str]] = {
    "sync": ("sync", 0, ""),
    "batch-1": ("batch-async", 1, ""),
    "batch-2": ("batch-async", 2, ""),
    "fully-1": ("fully-async", 1, "continue"),
    "fully-2": ("fully-async", 2, "continue"),
    "fully-4": ("fully-async", 4, "continue"),
    "fully-2-finish": ("fully-async", 2, "finish"),
    "fully-2-restart": ("fully-async", 2, "restart"),
}
PHASE = "trainer.phases.1"
SCORE = "validation/exact_match"
PAGE = Path(__file__).with_name("weight-sync-measurements.md")
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
Record = dict[str, Any]


def settings(name: str) -> list[str]:
    """What a row changes in the quickstart."""
    mode, threshold, in_flight = MODES[name]
    if mode == "sync":
        return []
    changes = {"weight.sync_mode": mode, "weight.staleness_threshold": str(threshold)}
    if in_flight:
        pool = "trajectory_pool"
        changes |= {
            "weight.in_flight": in_flight,
            f"{pool}.check_batch_ready_function": "batch_size_reached",
            f"{pool}.batch_size": "256",
        }
    return [f"{PHASE}.{key}={value}" for key, value in changes.items()]


def train(name: str, seed: int, folder: Path, changes: Sequence[str]) -> Record:
    """One run in a process of its own, and what its folder says."""
    place = folder / f"{name}-{seed}-{time.time_ns()}"
    place.mkdir(parents=True)
    command = [sys.executable, "-m", "plugrl", "train", "quickstart", f"seed={seed}"]
    command += [f"settings.runs_folder={place}", "settings.progress=none"]
    alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    began = time.monotonic()
    with open(place / "output.txt", "wb") as output:
        code = subprocess.run(
            [*command, *settings(name), *changes],
            env={**os.environ, **alone},
            stdout=output,
            stderr=output,
            check=False,
        ).returncode
    record: Record = {"mode": name, "seed": seed, "seconds": round(time.monotonic() - began, 1)}
    if code:
        return record | {"error": f"exit code {code}, see {place / 'output.txt'}"}
    return record | measured(next(place.glob("*/*/metrics.jsonl")).parent)


def read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def measured(run: Path) -> Record:
    """The numbers of the second phase of a run."""
    lines = read(run / "metrics.jsonl")
    own = [line for line in lines if line.get("phase") == 2]
    begin = max((line["time/unix"] for line in lines if line.get("phase") == 1), default=0.0)
    spans = [span for span in read(run / "timeline.jsonl") if span["start"] >= begin]
    named = {
        name: [(s["start"], s["end"]) for s in spans if (s["lane"], s["name"]) == (lane, name)]
        for lane, name in [("rollout", "attempts")]
        + [("trainer", phase) for phase in ("rollout", "train", "sync", "validate")]
    }
    # Where nothing runs in the background, the trainer's wait is the rollout.
    rollout, trained = (
        BusyIntervals(named["attempts"] or named["rollout"]),
        BusyIntervals(named["train"]),
    )
    waited, validated = BusyIntervals(named["rollout"]), BusyIntervals(named["validate"])
    steps = len(named["train"])
    trainer = [span for name in ("rollout", "train", "sync") for span in named[name]]
    begin, end = min(start for start, _ in trainer), max(end for _, end in trainer)
    # Nothing else happens while the model is validated.
    edges = [begin, *(edge for span in validated.spans for edge in span), end]
    window = BusyIntervals((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)
    wall = window.seconds(begin, end)

    def share(busy: BusyIntervals) -> float:
        return busy.during(window).seconds(begin, end) / wall

    gaps = [line["sync/staleness_mean"] for line in own if "sync/staleness_mean" in line]

    def total(metric: str) -> int:
        return int(sum(line.get(metric, 0) for line in own))

    return {
        "steps": steps,
        "syncs": len(named["sync"]),
        "gap": int(max(line.get("sync/staleness_max", 0) for line in own)),
        "gap_mean": mean(gaps) if gaps else 0.0,
        "dropped": total("pool/stale"),
        "given_back": total("sync/given_back"),
        "restarted": total("sync/restarted"),
        "rollout_share": share(rollout),
        "train_share": share(trained),
        "overlap": share(rollout.during(trained)),
        "wait_share": share(waited),
        "score": next(line[SCORE] for line in reversed(own) if SCORE in line),
        "step_seconds": wall / steps,
        "phase_seconds": wall,
    }


def measure(args: argparse.Namespace) -> None:
    """Make the runs that FILE.json lacks."""
    done: list[Record] = json.loads(args.out.read_text("utf-8")) if args.out.exists() else []
    have = {(record["mode"], record["seed"]) for record in done if "error" not in record}
    done = [record for record in done if "error" not in record]
    changes = list(args.changes)
    if args.steps is not None:
        changes.append(f"{PHASE}.trainer.total_train_steps={args.steps}")
    wanted = [(name, seed) for seed in args.seeds for name in args.modes]
    with ThreadPoolExecutor(args.jobs) as pool:
        futures = [
            pool.submit(train, name, seed, args.runs, changes)
            for name, seed in wanted
            if (name, seed) not in have
        ]
        for future in as_completed(futures):
            done.append(future.result())
            fresh = args.out.with_name(args.out.name + ".new")
            fresh.write_text(json.dumps(done, indent=1) + "\n", "utf-8")
            fresh.replace(args.out)
            print(json.dumps(done[-1]), flush=True)


def row(name: str, records: Sequence[Mapping[str, Any]]) -> str:
    """A row of the table: means over the seeds, and the score of each."""
    mode, threshold, in_flight = MODES[name]
    words = [
        f"`{mode}`",
        str(threshold) if threshold else "",
        f"`{in_flight}`" if in_flight else "",
    ]
    own = sorted((r for r in records if r["mode"] == name), key=lambda record: record["seed"])
    if not own:
        return ""

    def average(key: str) -> float:
        return float(mean(record[key] for record in own))

    def percent(key: str) -> str:
        return f"{average(key):.0%}"

    numbers = [
        f"{average('syncs'):.0f} / {average('steps'):.0f}",
        str(max(record["gap"] for record in own)),
        f"{average('gap_mean'):.2f}",
        f"{average('dropped'):.0f}",
        f"{average('restarted'):.0f}",
        percent("rollout_share"),
        percent("train_share"),
        percent("overlap"),
        f"{1000 * average('step_seconds'):.0f}",
        " ".join(f"{record['score']:.3f}" for record in own),
    ]
    return "| " + " | ".join([*words, *numbers]) + " |"


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """The table of docs/weight-sync-measurements.md."""
    columns = ["mode", "threshold", "open attempts", "syncs / steps", "largest gap", "mean gap"]
    columns += ["dropped", "restarted", "rollout", "train", "both", "ms a step", "score by seed"]
    head = ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    good = [record for record in records if "error" not in record]
    return "\n".join([*head, *filter(None, (row(name, good) for name in MODES))])


def write_table(file: Path) -> None:
    """Put the table between the markers."""
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no lines {BEGIN} and {END}")
    records = json.loads(file.read_text("utf-8"))
    PAGE.write_text(f"{before}{begin}\n\n{table(records)}\n\n{end}{after}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--steps", type=int, help="training steps of the second phase")
    parser.add_argument("--runs", type=Path, default=Path("runs/weight_modes"))
    parser.add_argument("--set", nargs="+", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument("--table", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    if not args.out and not args.table:
        parser.error("--out FILE.json measures, --table FILE.json writes the table")
    if args.out:
        measure(args)
    if args.table:
        write_table(args.table)


if __name__ == "__main__":
    main()
