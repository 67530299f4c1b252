"""GRPO steps on one GPU, beside TRL's: whole steps, and decoding and training alone.

``python benchmarks/grpo_gpu.py --peer-python PATH`` measures every work, or those of ``--works``,
one side after the other in processes of their own, and prints seconds a step, their ratio and the
peak memory of both; ``--json`` prints one object. Models are random, of the shapes of Qwen3, in
bfloat16; every answer has as many tokens as the work says, and every one is trained on. plugrl has
its defaults, but for the compilation, which ``--compile auto`` leaves to them too. TRL lives in an
environment of its own: ``--make-peer FOLDER`` makes one, ``--no-peer`` measures plugrl alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _peers import BenchmarkError, Peer, Side, known, machine, positive, run

GRPO = Path(__file__).parent / "grpo"
TRL = Peer("TRL", ["trl"])


@dataclass(frozen=True)
class Work:
    """What a step is.

    Attributes:
        size: of the model.
        prompts, samples: their product are the answers.
        tokens: new ones of each answer.
        micro: rows of a pass of TRL, as many as are fast for it.
        shortest: new tokens of the shortest answers; None: all have the same.
        lora: rank of an adapter; 0: all weights are trained.
    """

    size: str
    prompts: int
    samples: int
    tokens: int
    micro: int
    shortest: int | None = None
    lora: int = 0


WORKS = {
    "128x512": Work("0.6B", 16, 8, 512, 16),
    "drawn": Work("0.6B", 16, 8, 512, 16, shortest=64),
    "512x128": Work("0.6B", 64, 8, 128, 16),
    "8x4096": Work("0.6B", 2, 4, 4096, 2),
    "4B-lora-64x512": Work("4B", 8, 8, 512, 8, lora=16),
    "1.7B-128x512": Work("1.7B", 16, 8, 512, 8),
}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="grpo_gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    TRL.add_arguments(parser)
    parser.add_argument(
        "--works", nargs="+", choices=[*WORKS, "parts"], default=[*WORKS, "parts"],
        help="which; parts: decoding and training of 128x512 alone (all)",
    )  # fmt: skip
    sizes = {"steps": 3, "warm-up": 2, "peer-steps": 2, "threads": 8}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"({default})")
    parser.add_argument(
        "--compile", choices=("auto", "true", "false"), default="true",
        help="of plugrl's trainer and sampler (true: these runs are short)",
    )  # fmt: skip
    return parser.parse_args(given)


def words(folder: Path, work: Work, given: argparse.Namespace, steps: int) -> list[str]:
    """The command line of a side."""
    numbers = {
        "prompts": work.prompts, "samples": work.samples, "tokens": work.tokens,
        "shortest": work.shortest or work.tokens, "threads": given.threads, "steps": steps,
        "warm-up": given.warm_up, "lora": work.lora, "micro": work.micro,
    }  # fmt: skip
    named = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    return [str(folder), *named, "--compile", given.compile, "--device", "cuda"]


def side(
    python: str, script: str, folder: Path, work: Work, given: argparse.Namespace, steps: int
) -> dict[str, Any]:
    """All steps of one side, which has the GPU alone, and the seconds to its first step.

    Raises:
        BenchmarkError: it failed.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    visible = {"CUDA_VISIBLE_DEVICES": first, "HF_HUB_OFFLINE": "1"}
    began = time.perf_counter()
    made = Side(
        python, GRPO / script, words(folder, work, given, steps), folder,
        threads=given.threads, environment={**visible, "TOKENIZERS_PARALLELISM": "false"},
    )  # fmt: skip
    try:
        line = made.read()
        first = time.perf_counter() - began
        while line == "done":
            made.go()
            line = made.read()
    except BaseException:
        made.kill()
        raise
    made.close()
    report: dict[str, Any] = json.loads(line)
    return {**report, "first_step_after": first}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measure the works and sum them up.

    Raises:
        BenchmarkError: there is no GPU or no peer, or a side failed.
    """
    import torch

    if not torch.cuda.is_available():
        raise BenchmarkError("there is no GPU; grpo_cpu measures the CPU")
    peer = TRL.python(given)
    found: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="plugrl-bench-") as temporary:
        for name in given.works:
            work = WORKS["128x512" if name == "parts" else name]
            folder = model_folder(Path(temporary), work.size, "cuda")
            if name == "parts":
                found[name] = side(
                    sys.executable, "parts_side.py", folder,
                    Work(**{**vars(work), "shortest": 64}), given, given.steps,
                )  # fmt: skip
                print(f"parts: {found[name]}", file=sys.stderr)
                continue
            own = side(sys.executable, "plugrl_side.py", folder, work, given, given.steps)
            # At once, so that a call that is cut keeps it.
            print(f"{name}, plugrl alone: {summary(work, own, None)}", file=sys.stderr)
            other = None
            if peer is not None:
                other = side(peer, "trl_side.py", folder, work, given, given.peer_steps)
            versions = {"plugrl": own["versions"], **({"peer": other["versions"]} if other else {})}
            found[name] = summary(work, own, other)
            print(f"{name}: {found[name]}", file=sys.stderr)
    return {
        "benchmark": "grpo_gpu",
        "works": found,
        "compile": given.compile,
        "device": torch.cuda.get_device_name(),
        "versions": {name: known(own) for name, own in versions.items()},
        "machine": machine(),
    }


def model_folder(parent: Path, size: str | None, device: str) -> Path:
    """A folder with prompts and a model of ``size`` (None: a tiny one), made once on ``device``.

    Raises:
        BenchmarkError: it could not be written.
    """
    folder = parent / (size or "tiny")
    if not folder.exists():
        folder.mkdir()
        code = (
            f"import sys; sys.path.insert(0, {str(GRPO)!r})\nfrom small_model import *\n"
            f"folder = Path({str(folder)!r})\nwrite_prompts(folder / 'prompts.jsonl')\n"
            f"write_model(folder / 'model', {size!r}, {device!r})"
        )
        if subprocess.run([sys.executable, "-c", code], stdout=sys.stderr).returncode != 0:
            raise BenchmarkError(f"the model of {size} could not be written")
    return folder


def summary(work: Work, own: dict[str, Any], other: dict[str, Any] | None) -> dict[str, Any]:
    """Medians of a work, and its ratio."""
    seconds = statistics.median(own["seconds"])
    mean = ((work.shortest or work.tokens) + work.tokens) / 2
    result = {
        "plugrl_seconds": seconds,
        "plugrl_gib": own["peak_gib"],
        "new_tokens_per_second": work.prompts * work.samples * mean / seconds,
        "plugrl_first_step_after": own["first_step_after"],
        "phases": {
            name: statistics.median(step[name] for step in own["phases"])
            for name in (own["phases"][0] if own["phases"] else ())
        },
    }
    if other is not None:
        peers = statistics.median(other["seconds"])
        result |= {
            "peer_seconds": peers,
            "peer_gib": other["peak_gib"],
            "ratio": seconds / peers,
            "peer_first_step_after": other["first_step_after"],
        }
    return result


def table(result: dict[str, Any]) -> str:
    """The result for people: a row a work."""
    lines = [f"{'work':<16}{'plugrl s':>10}{'TRL s':>10}{'ratio':>8}{'GiB':>8}{'TRL GiB':>9}"]
    for name, found in result["works"].items():
        if name == "parts":
            continue
        tail = f"{'-':>10}{'-':>8}{found['plugrl_gib']:>8.1f}{'-':>9}"
        if "ratio" in found:
            tail = f"{found['peer_seconds']:>10.2f}{found['ratio']:>8.3f}"
            tail += f"{found['plugrl_gib']:>8.1f}{found['peer_gib']:>9.1f}"
        lines.append(f"{name:<16}{found['plugrl_seconds']:>10.2f}{tail}")
    parts = result["works"].get("parts", {})
    if parts:
        fixed, drawn = parts["decode_tokens_per_second"], parts["drawn_tokens_per_second"]
        lines += [
            f"decoding alone {fixed:,.0f} tokens/s (first {parts['decode_first_seconds']:.1f} s)",
            f"budgets drawn from 64 to 512: {drawn:,.0f} tokens/s, {drawn / fixed:.2f} of that",
            f"temperature 0.7, top-p 0.9: {parts['top_p_tokens_per_second']:,.0f} tokens/s",
            f"training alone {parts['train_seconds']:.2f} s, {parts['train_peak_gib']:.1f} GiB",
        ]
    lines.append(f"{result['device']}, compile {result['compile']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(measure, table, arguments()))
