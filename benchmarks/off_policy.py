"""Updates from old steps by DQN, TD3 and SAC, beside Stable-Baselines3.

``python benchmarks/off_policy.py --peer-python PATH`` trains with equal settings, on one thread, by
two sides, each in a process of its own that takes turns of 500 steps with the other: plugrl and
SB3; ``--compile`` adds plugrl with ``rl.compile: true``. The tasks and settings are those of RL
Baselines3 Zoo, with networks of 256 x 256: DQN on Acrobot-v1 with minibatches of 128, four updates
after each fourth step; TD3 and SAC on Pendulum-v1 with minibatches of 256, an update after each
step. The first 500 steps, many of which are at random, count for no ratio. It prints steps per
second and their ratios to SB3's, by wall time and by processor time, and how much of a step the
arithmetic of its products alone would take at the rate of the machine, which is measured too. The
peer lives in an environment of its own: ``--make-peer FOLDER`` makes one, and ``--no-peer``
measures plugrl alone.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _peers import Peer, known, machine, positive, run
from _rounds import rate, summary, take_turns

FOLDER = Path(__file__).parent / "off_policy"
PEER = Peer("Stable-Baselines3", ["stable_baselines3"])
RATIOS = {"plugrl": "ratio", "compiled": "ratio_compiled"}
ALGORITHMS = ("dqn", "td3", "sac")
#: Numbers of an observation and of an action, and rows of a minibatch.
_SIZES = {"dqn": (6, 3, 128), "td3": (3, 1, 256), "sac": (3, 1, 256)}
#: Products of two matrices of 512 x 512, timed in a process of its own.
_PEAK = """
import time, torch
torch.set_num_threads(1)
a, b, best = torch.randn(512, 512), torch.randn(512, 512), 1.0
out = torch.empty(512, 512)
for _ in range(200):
    began = time.perf_counter()
    torch.mm(a, b, out=out)
    best = min(best, time.perf_counter() - began)
print(2 * 512**3 / best)
"""


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="off_policy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    PEER.add_arguments(parser)
    parser.add_argument("--algorithm", choices=ALGORITHMS, help="one of them (all)")
    parser.add_argument("--compile", action="store_true", help="also with rl.compile: true")
    parser.add_argument("--steps", type=positive, default=4000, help="of a run that count (4000)")
    parser.add_argument("--rounds", type=positive, default=3, help="runs of each side (3)")
    return parser.parse_args(given)


def run_round(
    peer: str | None, algorithm: str, steps: int, seed: int, folder: Path, *, compiled: bool
) -> dict[str, dict[str, Any]]:
    """All sides from their start to their reports, a turn of each after the other."""
    common = [str(folder), algorithm, "--steps", str(steps), "--seed", str(seed)]
    own = FOLDER / "plugrl_side.py"
    sides: dict[str, Any] = {"plugrl": (sys.executable, own, common)}
    if compiled:
        sides["compiled"] = (sys.executable, own, [*common, "--compile"])
    if peer is not None:
        sides["sb3"] = (peer, FOLDER / "sb3_side.py", common)
    return take_turns(sides, folder)


def floor(algorithm: str) -> float:
    """Floating-point operations of the products of an update per step of the environment.

    A pass forward is one unit of a network, and each gradient, of weights or of inputs, another.
    """
    seen, done, batch = _SIZES[algorithm]

    def unit(inputs: int, outputs: int) -> float:
        return 2.0 * batch * (inputs * 256 + 256 * 256 + 256 * outputs)

    if algorithm == "dqn":
        # The network forward and back, and the target network forward.
        return 4 * unit(seen, done)
    critic = unit(seen + done, 1)
    # Two critics forward and back, and two target critics forward.
    updates = 2 * 3 * critic + 2 * critic
    if algorithm == "sac":
        # The policy twice forward and once back, and both critics with the gradient of an action.
        return updates + 4 * unit(seen, 2 * done) + 4 * critic
    # The target policy forward; in each other update the policy and one critic.
    return updates + unit(seen, done) + (3 * unit(seen, done) + 2 * critic) / 2


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds and sum them up.

    Raises:
        BenchmarkError: there is no peer, or a side failed.
    """
    peer = PEER.python(given)
    chosen = [given.algorithm] if given.algorithm else list(ALGORITHMS)
    peaks: list[float] = []
    rounds: dict[str, list[dict[str, dict[str, Any]]]] = {name: [] for name in chosen}
    versions: dict[str, dict[str, str]] = {}
    for number in range(1, given.rounds + 1):
        done = subprocess.run([sys.executable, "-c", _PEAK], capture_output=True, check=True)
        peaks.append(float(done.stdout))
        for algorithm in chosen:
            with tempfile.TemporaryDirectory(prefix="plugrl-bench-") as folder:
                reports = run_round(
                    peer, algorithm, given.steps, number, Path(folder), compiled=given.compile
                )
            rounds[algorithm].append(reports)
            versions = {name: known(report["versions"]) for name, report in reports.items()}
            rates = {name: round(rate(report, "cpu_seconds")) for name, report in reports.items()}
            print(f"{algorithm}, round {number}: cpu steps/s {rates}", file=sys.stderr)
    peak = statistics.median(peaks)
    ratios = {side: name for side, name in RATIOS.items() if side != "compiled" or given.compile}
    results = {
        algorithm: {
            **summary(found, ratios, "sb3"),
            "floor_milliseconds": 1000 * floor(algorithm) / peak,
        }
        for algorithm, found in rounds.items()
    }
    return {
        "benchmark": "off_policy",
        **{
            f"{prefix}{name}_{algorithm}": found[f"{prefix}{name}"]
            for algorithm, found in results.items()
            for prefix in ("", "cpu_")
            for name in ratios.values()
        },
        "algorithms": results,
        "gigaflops": peak / 1e9,
        "work": {"steps": given.steps, "rounds": given.rounds},
        "threads": 1,
        "versions": versions,
        "machine": machine(),
    }


def table(result: dict[str, Any]) -> str:
    """The result for people: a row for each algorithm and side."""
    titles = ("steps/s", "ratio", "cpu steps/s", "ratio", "cpu ms/step", "products")
    lines = [f"{'algorithm':<11}{'side':<10}" + "".join(f"{title:>13}" for title in titles)]
    for algorithm, found in result["algorithms"].items():
        for side, rates in found["sides"].items():
            name = RATIOS.get(side)
            ratios = [found[f"{prefix}{name}"] if name else 1.0 for prefix in ("", "cpu_")]
            wall, cpu = (f"{'-' if r is None else format(r, '.2f'):>13}" for r in ratios)
            own, spent = rates["steps_per_second"], rates["cpu_steps_per_second"]
            row = f"{algorithm:<11}{side:<10}{own:>13,.0f}{wall}{spent:>13,.0f}{cpu}"
            lines.append(f"{row}{1000 / spent:>13.2f}{found['floor_milliseconds']:>13.2f}")
    facts = result["machine"]
    lines.append(
        f"{facts['processor']}, {facts['cpus']} cores, load {facts['load']}, 1 thread, "
        f"{result['gigaflops']:.0f} GFLOPS"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(measure, table, arguments()))
