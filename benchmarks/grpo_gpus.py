"""GRPO steps on several GPUs beside one: how training, sampling and weights scale.

``python benchmarks/grpo_gpus.py --devices N`` runs each layout of each work in a process of its own
and prints a JSON line as soon as it has ended, the most important first, so that a call that is cut
keeps what it has. ``one`` is one rank and one engine on one GPU; ``colocated`` has a rank and an
engine on each, ``separated`` ranks on one half and engines on the other. ``weak`` is 128 answers
of 512 tokens a GPU, ``strong`` 512 in all. ``ratio`` is the share of linear: tokens a second, by
those of ``one`` in the same call, by the number of GPUs.

Then come checks of the first work, colocated: ``weights`` of all GPUs after 20 steps are those of
one, but for the rounding of sums; a run goes on on one GPU and again on all (``resume``); with a
``killed_rank`` it ends with one line, and goes on from its checkpoint; a ``killed_engine`` is
replaced. ``--device cpu --works tiny`` runs on CPUs, with gloo.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _peers import positive
from grpo_gpu import model_folder

GRPO = Path(__file__).parent / "grpo"
#: Size of the model, prompts, samples and tokens of answers of each work: a GPU, or in all.
WORKS: dict[str, tuple[str | None, int, int, int, bool]] = {
    "0.6B-weak": ("0.6B", 16, 8, 512, True),
    "0.6B-strong": ("0.6B", 64, 8, 512, False),
    "4B-weak": ("4B", 16, 8, 512, True),
    "4B-strong": ("4B", 64, 8, 512, False),
    "tiny": (None, 2, 2, 8, True),
}
LAYOUTS = ("one", "colocated", "separated")
MODES = ("sync", "batch-async")
#: Functions of ``grpo/gpus_check.py``.
CHECKS = ("weights", "resume", "killed_rank", "killed_engine")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="grpo_gpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=positive, default=2, help="GPUs (2)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(cuda)")
    parser.add_argument(
        "--works", nargs="+", choices=WORKS, default=[w for w in WORKS if w != "tiny"]
    )
    # Without a value, none.
    parser.add_argument("--layouts", nargs="*", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--checks", nargs="*", choices=CHECKS, default=CHECKS)
    for name, default in {"steps": 3, "warm-up": 2, "threads": 8, "limit": 600}.items():
        about = "seconds of a line" if name == "limit" else "of each layout"
        parser.add_argument(
            f"--{name}", type=positive, default=default, help=f"{about} ({default})"
        )
    parser.add_argument("--compile", choices=("auto", "true", "false"), default="auto")
    parser.add_argument("--json", action="store_true", help="lines are JSON in any case")
    return parser.parse_args(given)


def cells(given: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Works, modes and layouts in the order of what matters: those of one work together."""
    return [
        (work, mode, layout)
        for work in given.works
        for mode in given.modes
        for layout in given.layouts
        if layout != "separated" or given.devices > 1
    ]


def sections(layout: str, mode: str, given: argparse.Namespace) -> dict[str, Any]:
    """What a layout changes in the configuration of one device."""
    both = given.devices if layout == "colocated" else 1
    half = max(1, given.devices // 2)
    engines, ranks = (half, given.devices - half) if layout == "separated" else (both, both)
    # The engines start first, and take more than half so that no two are on one GPU.
    shares = (1.0, 1.0) if layout == "separated" else (0.6, 0.4)
    on_gpu = given.device == "cuda"
    takes = {"CPU": 1.0, **({"GPU": shares[0]} if on_gpu else {})}
    wish = {"true": True, "false": False}.get(given.compile, "auto")
    engine = {"type": "transformers", "compile": wish}
    inference = {"type": "ray", "replicas": engines, "resources": takes, "engine": engine}
    train = {"type": "fsdp", "workers": ranks, "compile": wish, "gpus": shares[1]}
    policy = {"inference": {"compile": None, **inference}, "train": train}
    # Cores of their own, and room for weights and batches.
    cluster = {"cpus": engines + ranks, "object_store_memory": 4000.0 if on_gpu else 200.0}
    return {
        "models": {"policy": policy},
        "trainer": {"type": "noted_grpo"},
        "weight": {"sync_mode": mode, "staleness_threshold": 0 if mode == "sync" else 1},
        "settings": {"cluster": cluster},
    }


def call(
    script: str, folder: Path, cell: tuple[str, str, str], given: argparse.Namespace, **more: Any
) -> dict[str, Any]:
    """What a script of ``grpo/`` found of a layout, in a process of its own, or how it failed."""
    name, mode, layout = cell
    _, prompts, samples, tokens, weak = WORKS[name]
    world = 1 if layout == "one" else given.devices
    numbers = {
        "prompts": prompts * (world if weak else 1), "samples": samples, "tokens": tokens,
        "shortest": tokens, "threads": given.threads, "steps": given.steps,
        "warm-up": given.warm_up,
    }  # fmt: skip
    words = [str(folder), *(w for n, v in numbers.items() for w in (f"--{n}", str(v)))]
    words += ["--compile", given.compile, "--device", given.device]
    file = folder / "found.json"
    file.unlink(missing_ok=True)
    # A run folder of its own, since checks look for the one run in it.
    own = sections(layout, mode, given)
    own["settings"]["runs_folder"] = tempfile.mkdtemp(dir=folder)
    wanted = {"file": str(file), "words": words, "world": world, "sections": own, **more}
    command = [sys.executable, str(GRPO / script), json.dumps(wanted)]
    began = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=given.limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {given.limit} s"}
    if not file.exists():
        return {"failed": (done.stderr.strip().splitlines() or ["no reason given"])[-12:]}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return {**found, "whole_call_seconds": round(time.perf_counter() - began, 1)}


def measure(folder: Path, cell: tuple[str, str, str], given: argparse.Namespace) -> dict[str, Any]:
    """What a layout took, or how it failed."""
    name, mode, layout = cell
    _, prompts, samples, tokens, weak = WORKS[name]
    world = 1 if layout == "one" else given.devices
    row: dict[str, Any] = {"work": name, "mode": mode, "layout": layout, "devices": world}
    found = call("gpus_side.py", folder, cell, given)
    if "failed" in found:
        return row | found
    row |= summary(found, prompts * (world if weak else 1) * samples * tokens)
    row["whole_call_seconds"] = found["whole_call_seconds"]
    if world > 1 and found["sync_bytes"]:
        row |= broadcast(world, given.device, found["sync_bytes"])
    return row


def check(folder: Path, name: str, given: argparse.Namespace) -> dict[str, Any]:
    """What a check found, with ``passed``, or how it failed."""
    cell = given.works[0], "sync", "colocated"
    row = {"check": name, "work": cell[0], "devices": given.devices, "passed": False}
    return row | call("gpus_check.py", folder, cell, given, check=name)


def broadcast(world: int, device: str, size: int) -> dict[str, Any]:
    """What a broadcast of as many bytes moves a second."""
    command = [sys.executable, str(GRPO / "broadcast.py"), str(world), device, str(size)]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
        return {"broadcast_gb_per_second": size / float(done.stdout.split()[-1]) / 1e9}
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        return {"broadcast_failed": True}


def summary(found: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Medians of a layout."""
    seconds = statistics.median(found["seconds"])
    phases = found["phases"]
    row: dict[str, Any] = {
        "step_seconds": seconds,
        "each_step_seconds": found["seconds"],
        "first_step_seconds": found["first_step_seconds"],
        "last_step_after": found["last_step_after"],
        "tokens_per_second": tokens / seconds,
        "phases": {n: statistics.median(p.get(n, 0.0) for p in phases) for n in phases[0]},
    }
    if found["sync_seconds"]:
        sync = statistics.median(found["sync_seconds"])
        row |= {"sync_seconds": sync, "sync_share": sync / seconds}
        row["sync_gb_per_second"] = found["sync_bytes"] / sync / 1e9
    return row


def main(words: list[str] | None = None) -> int:
    """Measure and check all, a line each; 1 where one failed."""
    given, code = arguments(words), 0
    ones: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory(prefix="plugrl-bench-") as temporary:

        def folder_of(work: str) -> Path:
            return model_folder(Path(temporary), WORKS[work][0], given.device)

        for cell in cells(given):
            row = measure(folder_of(cell[0]), cell, given)
            if "failed" in row:
                code = 1
            elif cell[2] == "one":
                ones[cell[:2]] = row["tokens_per_second"]
            elif cell[:2] in ones:
                row["ratio"] = row["tokens_per_second"] / ones[cell[:2]] / row["devices"]
            print(json.dumps(row), flush=True)
        for name in given.checks:
            row = check(folder_of(given.works[0]), name, given)
            code = code if row["passed"] else 1
            print(json.dumps(row), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
