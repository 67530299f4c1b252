"""Whole runs of PPO on CartPole-v1, beside Stable-Baselines3 and TorchRL.

``python benchmarks/ppo_cartpole.py --peer-python PATH`` trains with equal settings, on one thread,
by five sides, each in a process of its own that takes turns of 65,536 steps with the others:
plugrl, plugrl with ``rl.compile: true``, plugrl with TorchRL's loss and advantages
(``ppo.implementation: torchrl``), SB3's PPO, and TorchRL's own collector and PPO. It prints steps
per second of each, and their ratios to SB3's, by wall time and by processor time; ``--json`` prints
one object, whose ``ratio`` is plugrl's by wall time with the first of the settings. ``small`` is 4
environments x 128 steps with minibatches of 128, ``wide`` is 64 x 128 with 2,048; 4 epochs each.
The peers live in an environment of their own: ``--make-peer FOLDER`` makes one, and ``--no-peer``
measures plugrl alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _peers import Peer, known, machine, positive, run
from _rounds import rate, take_turns
from _rounds import summary as summed_up

PPO = Path(__file__).parent / "ppo"
PEERS = Peer("Stable-Baselines3 and TorchRL", ["stable_baselines3", "torchrl"])
#: The script of each side and its further arguments. Ratios are to the first peer.
OWN = {
    "plugrl": ["--implementation", "plugrl"],
    "compiled": ["--implementation", "compiled"],
    "torchrl_loss": ["--implementation", "torchrl"],
}
OTHERS = {"sb3": "sb3_side.py", "torchrl": "torchrl_side.py"}
RATIOS = {
    "plugrl": "ratio",
    "compiled": "ratio_compiled",
    "torchrl_loss": "ratio_torchrl_loss",
    "torchrl": "ratio_torchrl",
}
SETTINGS = ("small", "wide")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="ppo_cartpole",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    PEERS.add_arguments(parser)
    parser.add_argument("--settings", choices=SETTINGS, help="one of the settings (both)")
    parser.add_argument("--steps", type=positive, default=300_000, help="of a run (300000)")
    parser.add_argument("--rounds", type=positive, default=3, help="runs of each side (3)")
    return parser.parse_args(given)


def run_round(
    peer: str | None, settings: str, steps: int, seed: int, folder: Path
) -> dict[str, dict[str, Any]]:
    """All sides from their start to their reports, a turn of each after the other."""
    common = [str(folder), settings, "--steps", str(steps), "--seed", str(seed)]
    own = {
        name: (sys.executable, PPO / "plugrl_side.py", [*common, *words])
        for name, words in OWN.items()
    }
    others = {name: (peer, PPO / script, common) for name, script in OTHERS.items() if peer}
    return take_turns({**own, **others}, folder)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds and sum them up.

    Raises:
        BenchmarkError: there is no peer, or a side failed.
    """
    peer = PEERS.python(given)
    chosen = [given.settings] if given.settings else list(SETTINGS)
    results: dict[str, Any] = {}
    versions: dict[str, dict[str, str]] = {}
    for settings in chosen:
        rounds = []
        for number in range(1, given.rounds + 1):
            with tempfile.TemporaryDirectory(prefix="plugrl-bench-") as folder:
                reports = run_round(peer, settings, given.steps, number, Path(folder))
            rounds.append(reports)
            versions = {name: known(report["versions"]) for name, report in reports.items()}
            rates = {name: round(rate(report, "seconds")) for name, report in reports.items()}
            print(f"{settings}, round {number}: steps/s {rates}", file=sys.stderr)
        results[settings] = summary(rounds)
    first = {name: results[chosen[0]][name] for name in _ratio_names()}
    return {
        "benchmark": "ppo_cartpole",
        **first,
        "settings": results,
        "work": {"steps": given.steps, "rounds": given.rounds},
        "threads": 1,
        "versions": versions,
        "machine": machine(),
    }


def _ratio_names() -> list[str]:
    return [f"{prefix}{name}" for prefix in ("", "cpu_", "whole_") for name in RATIOS.values()]


def summary(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over rounds; see :func:`_rounds.summary`."""
    return summed_up(rounds, RATIOS, "sb3")


def table(result: dict[str, Any]) -> str:
    """The result for people: a row for each side and settings."""
    titles = ("settings", "side", "steps/s", "ratio", "cpu steps/s", "ratio", "whole ratio")
    lines = [f"{titles[0]:<10}{titles[1]:<14}" + "".join(f"{title:>13}" for title in titles[2:])]
    for settings, found in result["settings"].items():
        for side, rates in found["sides"].items():
            name = RATIOS.get(side)
            ratios = [found[f"{p}{name}"] if name else 1.0 for p in ("", "cpu_", "whole_")]
            wall, cpu, whole = (f"{'-' if r is None else format(r, '.2f'):>13}" for r in ratios)
            own, spent = rates["steps_per_second"], rates["cpu_steps_per_second"]
            row = f"{settings:<10}{side:<14}{own:>13,.0f}{wall}{spent:>13,.0f}{cpu}{whole}"
            lines.append(row)
    facts = result["machine"]
    lines.append(f"{facts['processor']}, {facts['cpus']} cores, load {facts['load']}, 1 thread")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(measure, table, arguments()))
