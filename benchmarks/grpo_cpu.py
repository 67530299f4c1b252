"""The time of a GRPO step of a small model on the CPU, beside TRL's.

``python benchmarks/grpo_cpu.py --peer-python PATH`` runs both sides, each in a process of its own
that makes one step in turn, and prints the median step of each round and the ratio; ``--json``
prints one object. A step is the rollout of 8 prompts x 8 samples x 32 new tokens, the rewards, one
AdamW step and the weight sync, in float32 on one thread. TRL lives in an environment of its own:
``--make-peer FOLDER`` makes one, and ``--no-peer`` measures plugrl alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GRPO = Path(__file__).parent / "grpo"
VARIABLE = "PLUGRL_BENCH_PEER_PYTHON"
#: What the peer's environment holds; the torch of both sides should be the same.
PEER = ("torch==2.13.0", "trl==1.16.*", "transformers==5.24.*", "datasets")


class BenchmarkError(Exception):
    """What keeps the benchmark from running, in one line; ``code`` is the exit code."""

    code = 1


class NoPeerError(BenchmarkError):
    """There is no environment with TRL where the command line says."""

    code = 2


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="grpo_cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    peer = parser.add_mutually_exclusive_group()
    peer.add_argument("--peer-python", metavar="PATH", help=f"Python that has TRL; or {VARIABLE}")
    peer.add_argument("--make-peer", metavar="FOLDER", help="make the peer's environment there")
    peer.add_argument("--no-peer", action="store_true", help="measure plugrl alone")
    sizes = {"rounds": 3, "steps": 25, "warm-up": 5, "threads": 1}
    for name, default in (sizes | {"prompts": 8, "samples": 8, "tokens": 32}).items():
        parser.add_argument(f"--{name}", type=_positive, default=default, help=f"({default})")
    return parser.parse_args(given)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def peer_python(given: argparse.Namespace) -> str | None:
    """The Python of the peer; None without a peer.

    Raises:
        NoPeerError: there is none, or TRL cannot be imported with it.
    """
    if given.no_peer:
        return None
    if given.make_peer:
        return make_peer(Path(given.make_peer))
    path = given.peer_python or os.environ.get(VARIABLE)
    if not path:
        raise NoPeerError(
            f"no Python with TRL: give --peer-python PATH or set {VARIABLE}, make one with "
            "--make-peer FOLDER, or measure plugrl alone with --no-peer"
        )
    # Not resolved: a virtual environment is found by the place of its link.
    path = os.path.abspath(os.path.expanduser(path))
    try:
        found = subprocess.run([path, "-c", "import trl"], capture_output=True, text=True)
    except OSError as error:
        raise NoPeerError(f"{path} cannot be run: {error.strerror or error}") from None
    if found.returncode != 0:
        reason = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NoPeerError(f"{path} has no usable TRL ({reason}); --make-peer FOLDER makes one")
    return path


def make_peer(folder: Path) -> str:
    """Make a virtual environment with TRL in ``folder``, unless one is there; its Python.

    Raises:
        BenchmarkError: it cannot be made.
    """
    python = folder.expanduser().absolute() / "bin" / "python"
    done = python.parent.parent / "peer-is-complete"
    if done.exists():
        return str(python)
    commands = [[sys.executable, "-m", "venv", str(folder.expanduser())]]
    commands.append([str(python), "-m", "pip", "install", "--quiet", *PEER])
    for command in commands:
        # Only the result goes to stdout.
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            raise BenchmarkError(f"the peer's environment was not made: {' '.join(command)} failed")
    done.touch()
    return str(python)


class Side:
    """One side in a process of its own, which makes a step whenever it is told to."""

    def __init__(self, python: str, script: str, folder: Path, given: argparse.Namespace) -> None:
        names = ("prompts", "samples", "tokens", "threads", "steps", "warm_up")
        sizes = [w for n in names for w in (f"--{n}".replace("_", "-"), str(getattr(given, n)))]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(given.threads))
        quiet = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
        self._script = script
        self._errors = folder / f"{script}.txt"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [python, str(GRPO / script), str(folder), *sizes],
                env={**os.environ, **threads, **quiet, "TOKENIZERS_PARALLELISM": "false"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._read()  # the first step, with everything that is loaded for it

    def step(self) -> dict[str, Any] | None:
        """Let it make its next step; the report when there is none.

        Raises:
            BenchmarkError: it failed; its stderr was passed on.
        """
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._read()
        return None if line == "done" else dict(json.loads(line))

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            code = self._process.wait()
            sys.stderr.write(self._errors.read_text(errors="replace"))
            raise BenchmarkError(f"{self._script} failed with exit code {code}")
        return line

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process if it has not ended."""
        if self._process.poll() is None:
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.kill()


def run_round(
    sides: dict[str, tuple[str, str]], folder: Path, given: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Both sides from their start to their reports, one step of each in turn."""
    running: dict[str, Side] = {}
    reports: dict[str, dict[str, Any]] = {}
    try:
        for name, (python, script) in sides.items():
            running[name] = Side(python, script, folder, given)
        while len(reports) < len(sides):
            for name, side in running.items():
                report = side.step()
                if report is not None:
                    reports[name] = report
    finally:
        for side in running.values():
            side.close() if len(reports) == len(sides) else side.kill()
    return reports


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds and sum them up.

    Raises:
        BenchmarkError: there is no peer, or a side failed.
    """
    peer = peer_python(given)
    sides = {"plugrl": (sys.executable, "plugrl_side.py")}
    if peer is not None:
        sides["peer"] = (peer, "trl_side.py")
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory(prefix="plugrl-bench-") as name:
        folder = Path(name)
        parameters = int(_python(f"print(write_model(Path({str(folder / 'model')!r})))"))
        _python(f"write_prompts(Path({str(folder / 'prompts.jsonl')!r}))")
        for number in range(given.rounds):
            for side, report in run_round(sides, folder, given).items():
                reports[side].append(report)
                median = statistics.median(report["seconds"])
                print(f"round {number + 1}: {side} {median:.4f} s a step", file=sys.stderr)
    return summary(given, reports, parameters)


def _python(code: str) -> str:
    """What Python prints for ``code``, in a process that is not one of the measured ones."""
    code = f"import sys; sys.path.insert(0, {str(GRPO)!r})\nfrom small_model import *\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
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
    names = ("prompts", "samples", "tokens", "rounds", "steps", "warm_up")
    sequences = given.prompts * given.samples
    return result | {
        "new_tokens_per_second": sequences * given.tokens / result["plugrl_seconds"],
        "work": {name: getattr(given, name) for name in names} | {"parameters": parameters},
        "threads": given.threads,
        "versions": {side: _known(found[0]["versions"]) for side, found in reports.items()},
        "machine": machine(),
    }


def _known(versions: dict[str, str | None]) -> dict[str, str]:
    return {name: version for name, version in versions.items() if version is not None}


def machine() -> dict[str, Any]:
    """What the times depend on."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


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


def main() -> int:
    """Measure and print; 1 or 2 with one line on stderr when that cannot be done."""
    given = arguments()
    try:
        result = measure(given)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    print(json.dumps(result, indent=2) if given.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
