"""PPO over thousands of copies of CartPole on one GPU, beside TorchRL.

``python benchmarks/ppo_gpu.py`` trains on the same environment, with equal settings, by two sides
in processes of their own, one after the other: plugrl (scenario ``tensor``), and TorchRL's
collector, advantages and loss with its own compilation and CUDA graphs. It prints steps per second
of both and their ratio, the seconds to the first iteration, and what episodes returned in the end;
``--json`` prints one object. TorchRL is there wherever plugrl is. On the CPU (``--device cpu``)
nothing is captured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _peers import BenchmarkError, machine, positive, run

FOLDER = Path(__file__).parent / "ppo_tensors"
sys.path.insert(0, str(FOLDER))
import cart_poles  # noqa: E402 - it is found there alone

SIDES = ("plugrl", "torchrl")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="ppo_gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=positive, default=3, help="runs of each side (3)")
    parser.add_argument("--no-peer", action="store_true", help="measure plugrl alone")
    parser.add_argument("--peer-python", default=sys.executable, help="of TorchRL (this one)")
    cart_poles.add_arguments(parser)
    return parser.parse_args(given)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds and sum them up.

    Raises:
        BenchmarkError: there is no GPU, or a side failed.
    """
    if given.device != "cpu":
        import torch

        if not torch.cuda.is_available():
            raise BenchmarkError("there is no GPU; measure the CPU with --device cpu")
    rounds = []
    for number in range(1, given.rounds + 1):
        words = cart_poles.given_by(argparse.Namespace(**{**vars(given), "seed": number})).words()
        sides = SIDES[:1] if given.no_peer else SIDES
        rounds.append({side: _side(given.peer_python, side, words) for side in sides})
        rates = {side: round(report["steps_per_second"]) for side, report in rounds[-1].items()}
        print(f"round {number}: steps/s {rates}", file=sys.stderr)
    ratios = [
        each["plugrl"]["steps_per_second"] / each["torchrl"]["steps_per_second"]
        for each in rounds
        if "torchrl" in each
    ]
    return {
        "benchmark": "ppo_gpu",
        "ratio": statistics.median(ratios) if ratios else None,
        "ratio_by_round": ratios or None,
        "sides": {side: [each[side] for each in rounds] for side in rounds[0]},
        "work": vars(cart_poles.given_by(given)),
        "machine": {**machine(), "device": _device(given.device)},
    }


def _side(peer: str, side: str, words: list[str]) -> dict[str, Any]:
    python = sys.executable if side == "plugrl" else peer
    script = FOLDER / f"{side}_side.py"
    done = subprocess.run(
        [python, str(script), *words],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env={"OMP_NUM_THREADS": "1", **os.environ},
    )
    if done.returncode != 0:
        raise BenchmarkError(f"{script.name} failed with exit code {done.returncode}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def _device(name: str) -> str:
    if name == "cpu":
        return "cpu"
    import torch

    return str(torch.cuda.get_device_name())


def table(result: dict[str, Any]) -> str:
    """The result for people: a row for each side."""
    titles = ("side", "steps/s", "ratio", "ms an iteration", "s to the first", "return")
    lines = ["".join(f"{title:>17}" for title in titles)]
    for side, reports in result["sides"].items():
        rate, iteration, first, mean = (
            statistics.median(report[name] for report in reports)
            for name in (
                "steps_per_second",
                "seconds_per_iteration",
                "seconds_to_first_iteration",
                "return",
            )
        )
        ratio = "-" if result["ratio"] is None or side != "plugrl" else f"{result['ratio']:.2f}"
        times = f"{1000 * iteration:>17.2f}{first:>17.1f}{mean:>17.1f}"
        lines.append(f"{side:>17}{rate:>17,.0f}{ratio:>17}{times}")
    facts = result["machine"]
    lines.append(f"{facts['device']}, {facts['processor']}, load {facts['load']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(measure, table, arguments()))
