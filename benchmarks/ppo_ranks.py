"""PPO of small networks by two processes that add their gradients up, beside one process.

``python benchmarks/ppo_ranks.py`` trains on CartPole-v1, on the CPU, the same number of steps and
optimizer steps in three ways: ``one`` process with one thread, one with ``two threads``, and ``two
processes`` with a thread each, of which each has half of the environments and of every minibatch,
and sums gradients with the other by gloo before an optimizer step. It prints, of the
best round, steps a second; steps for each second that the busier process computes, which other work
on the machine disturbs less and which leaves out how long processes wait for each other; and the
share of sums, the mean sum and the shortest one. ``small`` is two layers of 64 in each network and
minibatches of 128, ``wide`` two layers of 512 and minibatches of 1,024.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _peers import BenchmarkError, machine, positive, run

SIDE = Path(__file__).parent / "ppo" / "ranks_side.py"
#: Environments, steps of a minibatch, width of the layers, and measured iterations.
SETTINGS = {"small": (4, 128, 64, 20), "wide": (32, 1024, 512, 2)}
#: The ratio of each rate.
RATES = {"steps_per_second": "ratio", "cpu_steps_per_second": "cpu_ratio"}
#: Processes of each side, and threads of each.
SIDES = {"one": (1, 1), "two threads": (1, 2), "two processes": (2, 1)}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="ppo_ranks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--rounds", type=positive, default=3, help="runs of each side (3)")
    return parser.parse_args(given)


def run_side(settings: str, side: str) -> dict[str, Any]:
    """What the processes of a side took, of which they make the steps together.

    Raises:
        BenchmarkError: one failed.
    """
    environments, minibatch, width, iterations = SETTINGS[settings]
    world, threads = SIDES[side]
    # Threads that wait do so without computing, on a machine with other work.
    own = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    with tempfile.TemporaryDirectory(prefix="plugrl-bench-") as folder:
        given = {
            "environments": environments, "minibatch": minibatch, "width": width, "warm_up": 1,
            "iterations": iterations, "world": world, "threads": threads, "folder": folder,
        }  # fmt: skip
        processes = [
            subprocess.Popen(
                [sys.executable, str(SIDE), json.dumps({**given, "rank": rank})],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                env=own,
            )
            for rank in range(world)
        ]
        told = [process.communicate() for process in processes]
    if any(process.returncode for process in processes):
        raise BenchmarkError(f"{side} of {settings} failed: {told[0][1] or told[-1][1]}")
    found = [json.loads(out.splitlines()[-1]) for out, _ in told]
    seconds, busy = (max(each[name] for each in found) for name in ("seconds", "cpu_seconds"))
    steps = iterations * environments * 128
    return {
        "steps_per_second": steps / seconds,
        "cpu_steps_per_second": steps / busy,
        "sum_share": max(each["sum_seconds"] for each in found) / seconds,
        "sum_milliseconds": 1e3 * found[0]["sum_seconds"] / max(1, found[0]["sums"]),
        "shortest_sum_milliseconds": 1e3 * found[0]["shortest_sum"],
    }


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """The best round of each side, the sides in turn."""
    results: dict[str, Any] = {}
    for settings in given.settings:
        rounds: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for _ in range(given.rounds):
            for side, found in rounds.items():
                found.append(run_side(settings, side))
        best = {
            side: {name: max(each[name] for each in found) for name in RATES}
            | {name: min(each[name] for each in found) for name in found[0] if name not in RATES}
            for side, found in rounds.items()
        }
        for each in best.values():
            for name, ratio in RATES.items():
                each[ratio] = each[name] / best["one"][name]
        results[settings] = best
    return {"benchmark": "ppo_ranks", "settings": results, "machine": machine()}


def table(result: dict[str, Any]) -> str:
    """A row for each side and settings."""
    titles = ("steps/s", "ratio", "cpu steps/s", "ratio", "sums", "ms a sum", "shortest")
    lines = [f"{'settings':<10}{'side':<16}" + "".join(f"{title:>13}" for title in titles)]
    for settings, sides in result["settings"].items():
        for side, found in sides.items():
            lines.append(
                f"{settings:<10}{side:<16}"
                f"{found['steps_per_second']:>13,.0f}{found['ratio']:>13.2f}"
                f"{found['cpu_steps_per_second']:>13,.0f}{found['cpu_ratio']:>13.2f}"
                f"{found['sum_share']:>13.0%}{found['sum_milliseconds']:>13.2f}"
                f"{found['shortest_sum_milliseconds']:>13.2f}"
            )
    facts = result["machine"]
    lines.append(f"{facts['processor']}, {facts['cpus']} cores, load {facts['load']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(measure, table, arguments()))
