"""The time of a GRPO step of a small model on the CPU, beside TRL's.

``python benchmarks/grpo_cpu.py --peer-python PATH`` runs both sides, each in a process of its own
that makes one step in turn, and prints the median step of each round and the ratio; ``--json``
prints one object. A step is the rollout of 8 prompts x 8 samples x 32 new tokens, the rewards, one
AdamW step and the weight sync, in float32 on one thread. With ``--shortest 8``, answers have 8 to
32 tokens, the same on both sides; with ``--compile true``, plugrl's layers are compiled. TRL lives
in an environment of its own: ``--make-peer FOLDER`` makes one, and ``--no-peer`` measures plugrl
alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _peers import BenchmarkError, Peer, Side, known, machine, positive, run

GRPO = Path(__file__).parent / "grpo"
TRL = Peer("TRL", ["trl"])


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="grpo_cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    TRL.add_arguments(parser)
    sizes = {"rounds": 3, "steps": 25, "warm-up": 5, "threads": 1}
    for name, default in (sizes | {"prompts": 8, "samples": 8, "tokens": 32}).items():
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"({default})")
    parser.add_argument(
        "--shortest", type=positive, help="tokens of the shortest answers (all have --tokens)"
    )
    parser.add_argument(
        "--compile",
        choices=("auto", "true", "false"),
        default="auto",
        help="models.policy.train.compile of plugrl (auto)",
    )
    parsed = parser.parse_args(given)
    parsed.shortest = parsed.shortest or parsed.tokens
    if parsed.shortest > parsed.tokens:
        parser.error("--shortest must be at most --tokens")
    return parsed


def side(python: str, script: str, folder: Path, given: argparse.Namespace) -> Side:
    """A side in a process of its own, which makes a step whenever it is told to."""
    names = ("prompts", "samples", "shortest", "tokens", "threads", "steps", "warm_up", "compile")
    sizes = [w for n in names for w in (f"--{n}".replace("_", "-"), str(getattr(given, n)))]
    made = Side(
        python,
        GRPO / script,
        [str(folder), *sizes],
        folder,
        threads=given.threads,
        environment={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    made.read()  # the first step, with everything that is loaded for it
    return made


def run_round(
    sides: dict[str, tuple[str, str]], folder: Path, given: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Both sides from their start to their reports, one step of each in turn."""
    running: dict[str, Side] = {}
    reports: dict[str, dict[str, Any]] = {}
    try:
        for name, (python, script) in sides.items():
            running[name] = side(python, script, folder, given)
        while len(reports) < len(sides):
            for name, each in running.items():
                each.go()
                line = each.read()
                if line != "done":
                    reports[name] = json.loads(line)
    finally:
        for each in running.values():
            each.close() if len(reports) == len(sides) else each.kill()
    return reports


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds and sum them up.

    Raises:
        BenchmarkError: there is no peer, or a side failed.
    """
    peer = TRL.python(given)
    sides = {"plugrl": (sys.executable, "plugrl_side.py")}
    if peer is not None:
        sides["peer"] = (peer, "trl_side.py")
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory(prefix="plugrl-bench-") as temporary:
        folder = Path(temporary)
        parameters = int(_python(f"print(write_model(Path({str(folder / 'model')!r})))"))
        _python(f"write_prompts(Path({str(folder / 'prompts.jsonl')!r}))")
        for number in range(given.rounds):
            for name, report in run_round(sides, folder, given).items():
                reports[name].append(report)
                median = statistics.median(report["seconds"])
                print(f"round {number + 1}: {name} {median:.4f} s a step", file=sys.stderr)
    return summary(given, reports, parameters)


def _python(code: str) -> str:
    """What Python prints for ``code``, in a process that is not one of the measured ones."""
    code = f"import sys; sys.path.insert(0, {str(GRPO)!r})\nfrom small_model import *\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise BenchmarkError("the benchmark's model or prompts could not be written")
    return done.stdout


def summary(
    given: argparse.Namespace, reports: dict[str, list[dict[str, Any]]], parameters: int
) -> dict[str, Any]:
    """The object that ``--json`` prints: medians over rounds of the medians of a round."""
    result: dict[str, Any] = {"benchmark": "grpo_cpu"}
    for kind in ("seconds", "cpu_seconds"):
        rounds = {
            side: [statistics.median(report[kind]) for report in found]
            for side, found in reports.items()
        }
        peers = rounds.get("peer")
        own = rounds["plugrl"]
        ratios = [a / b for a, b in zip(own, peers, strict=True)] if peers else None
        prefix = kind.removesuffix("seconds")
        result |= {
            f"plugrl_{kind}": statistics.median(own),
            f"peer_{kind}": statistics.median(peers) if peers else None,
            f"{prefix}ratio": statistics.median(ratios) if ratios else None,
            f"{prefix}ratios": ratios,
            f"{kind}_by_round": rounds,
        }
    names = ("prompts", "samples", "shortest", "tokens", "rounds", "steps", "warm_up", "compile")
    tokens = given.prompts * given.samples * (given.shortest + given.tokens) / 2
    return result | {
        "new_tokens_per_second": tokens / result["plugrl_seconds"],
        "work": {name: getattr(given, name) for name in names} | {"parameters": parameters},
        "threads": given.threads,
        "versions": {side: known(found[0]["versions"]) for side, found in reports.items()},
        "machine": machine(),
    }


def table(result: dict[str, Any]) -> str:
    """The result for people: a row a round, then the medians."""
    own, peers = result["seconds_by_round"]["plugrl"], result["seconds_by_round"].get("peer")
    lines = [f"{'round':<8}{'plugrl s':>10}{'TRL s':>10}{'ratio':>8}"]
    for i, seconds in enumerate(own):
        tail = f"{peers[i]:>10.4f}{result['ratios'][i]:>8.3f}" if peers else f"{'-':>10}{'-':>8}"
        lines.append(f"{i + 1:<8}{seconds:>10.4f}{tail}")
    tail = f"{result['peer_seconds']:>10.4f}{result['ratio']:>8.3f}" if peers else ""
    lines.append(f"{'median':<8}{result['plugrl_seconds']:>10.4f}{tail}")
    if peers:
        cpu = f"{result['plugrl_cpu_seconds']:>10.4f}{result['peer_cpu_seconds']:>10.4f}"
        lines.append(f"{'cpu':<8}{cpu}{result['cpu_ratio']:>8.3f}")
    facts = result["machine"]
    lines.append(f"{facts['processor']}, {facts['cpus']} cores, {result['threads']} thread(s)")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(measure, table, arguments()))
