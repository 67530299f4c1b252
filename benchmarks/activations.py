"""Memory of a training pass beside what ``plugrl validate --devices`` plans for its activations.

``python benchmarks/activations.py`` makes a pass of each shape in a process of its own on the CPU:
``measured`` is by how much its memory grew at most, beyond the weights and the gradients of the
micro-batch before. ``planned`` is the row "activations" of the plan.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _peers import BenchmarkError, machine, run

_WIDE = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16}
_WIDE |= {"num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 2, "vocab_size": 8192}
_SMALL = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8}
_SMALL |= {"num_key_value_heads": 4, "head_dim": 32, "num_hidden_layers": 8, "vocab_size": 2048}
#: Model, data type, tokens of the micro-batch, and whether layers are computed again.
CASES: dict[str, tuple[dict[str, int], str, int, bool]] = {
    "8 layers of 256": (_SMALL, "float32", 4096, False),
    "8 layers of 256, again": (_SMALL, "float32", 4096, True),
    "2 layers of 1,024": (_WIDE, "float32", 1024, False),
    "2 layers of 1,024, again": (_WIDE, "float32", 1024, True),
    "2 layers of 1,024, bfloat16": (_WIDE, "bfloat16", 1024, False),
    "2 layers of 1,024, bfloat16, again": (_WIDE, "bfloat16", 1024, True),
    "32,768 words": ({**_SMALL, "vocab_size": 32768}, "float32", 4096, False),
}
#: Tokens of a row, of which all but the first are trained, and of which logits are there at once.
LENGTH, HEAD = 512, 1024


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="activations", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--side", choices=CASES, help="measure one case in this process")
    return parser.parse_args(given)


def resident(name: str) -> int:
    """Bytes of a row of this process's status: ``VmRSS`` now, or ``VmHWM`` at most."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{name}:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


def measure_here(case: str) -> dict[str, int]:
    """What a pass of a case was planned to take, and what it took."""
    import torch

    from plugrl.core.config.view import ConfigView
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.inference.services import ModelSpec
    from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
    from plugrl.core.text.learn.step import aggregation_weights
    from plugrl.core.text.trajectory import Trajectory
    from plugrl.plugins.distributed.plan import DevicePlan
    from plugrl.plugins.transformers.model_shape import ModelShape
    from plugrl.plugins.transformers.train_service import LocalTrainService
    from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

    torch.set_num_threads(1)
    config, dtype, tokens, again = CASES[case]
    source = {
        "path": None,
        "config": {**config, "model_type": "qwen3", "max_position_embeddings": 2 * LENGTH},
        "tokenizer": {"characters": "ab"},
        "dtype": dtype,
    }
    options = {
        "micro_batch_size": 64, "micro_batch_tokens": None, "gradient_checkpointing": again,
        "head_chunk_tokens": HEAD, "compile": False,
    }  # fmt: skip
    service = LocalTrainService(options)
    view = ConfigView(source, checked=True)
    service.load(ModelSpec("policy", view, 0, "cpu", trained=True, train_steps=1))

    def step(rows: int, length: int) -> None:
        ids = torch.randint(2, config["vocab_size"], (rows, length)).tolist()
        batch = Batch.from_trajectories([Trajectory(row, [0] + [1] * (length - 1)) for row in ids])
        mask = batch.values["loss_mask"]
        batch.values[LOSS_WEIGHTS] = aggregation_weights(mask, "token-mean")
        service.forward_backward(batch, WeightedLoss(cross_entropy, {}))

    # Gradients are there from now on, as in every micro-batch but the first.
    step(1, 16)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = resident("VmRSS")
    step(tokens // LENGTH, LENGTH)
    train = {"optimizer": "adamw", "master_weights": "auto"}
    shape = ModelShape.of(ConfigView({"source": source, "train": train}, checked=True))
    assert shape is not None
    plan = DevicePlan.of(shape, 1, split=1, tokens=tokens, computed_again=again, head_tokens=HEAD)
    return {"planned": plan.activations, "measured": resident("VmHWM") - before}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """All cases, one after the other.

    Raises:
        BenchmarkError: one failed.
    """
    results = {}
    # What is freed goes back to the machine, so that memory is what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    for case in given.cases:
        command = [sys.executable, __file__, "--side", case]
        done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")
        if done.returncode:
            raise BenchmarkError(f"{case} failed: {done.stderr.strip().splitlines()[-1:]}")
        results[case] = json.loads(done.stdout.splitlines()[-1])
    return {"benchmark": "activations", "cases": results, "machine": machine()}


def table(result: dict[str, Any]) -> str:
    """A row for each case, in MiB."""
    lines = [f"{'case':<36}{'planned':>10}{'measured':>10}{'ratio':>8}"]
    for case, found in result["cases"].items():
        planned, measured = (found[name] / 2**20 for name in ("planned", "measured"))
        lines.append(f"{case:<36}{planned:>10,.0f}{measured:>10,.0f}{measured / planned:>8.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    words = arguments()
    if words.side:
        print(json.dumps(measure_here(words.side)))
        sys.exit(0)
    sys.exit(run(measure, table, words))
