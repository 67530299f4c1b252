"""The halves of a GRPO step alone: decoding with fixed and drawn budgets, and training.

It prints one JSON object: tokens a second of decoding, and seconds of a training pass.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import task
import torch

from plugrl.core.config.view import ConfigView
from plugrl.core.text.batch import Batch
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import ModelSpec
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

GIVEN = task.arguments()
ON_DEVICE = GIVEN.device == "cuda"
ROWS = GIVEN.prompts * GIVEN.samples
PROMPT = [10, 11, 12, 13, 14, 15]
WISH = {"true": True, "false": False}.get(GIVEN.compile, "auto")


def wait() -> None:
    """Wait for the device."""
    if ON_DEVICE:
        torch.cuda.synchronize()


def peak() -> float:
    """GiB of the device that were in use at once."""
    return torch.cuda.max_memory_allocated() / 2**30 if ON_DEVICE else 0.0


def median_of(work: Callable[[], object]) -> float:
    """Seconds of the median of a few times, after one that is not counted."""
    took = []
    for _ in range(GIVEN.warm_up + GIVEN.steps):
        wait()
        began = time.perf_counter()
        work()
        wait()
        took.append(time.perf_counter() - began)
    return sorted(took[GIVEN.warm_up :])[GIVEN.steps // 2]


def spec() -> ModelSpec:
    """The model of the benchmark's folder."""
    source = {"path": str(GIVEN.folder / "model"), "config": {}, "tokenizer": {}}
    view = ConfigView({**source, "dtype": "bfloat16" if ON_DEVICE else "float32"}, checked=True)
    return ModelSpec("policy", view, 0, GIVEN.device)


def decoding() -> dict[str, float]:
    """Tokens a second, and steps of a first request."""
    engine = TransformersInferenceService({"compile": WISH})
    engine.load(spec())
    lengths = task.lengths(GIVEN)
    drawn = [next(lengths) for _ in range(ROWS)]

    def asked(limits: list[int]) -> list[GenerationRequest]:
        return [
            GenerationRequest(
                PROMPT, SamplingParams(max_new_tokens=limit), (0, 0, i // GIVEN.samples, i, 0)
            )
            for i, limit in enumerate(limits)
        ]

    began = time.perf_counter()
    engine.generate(asked([GIVEN.tokens] * ROWS))
    wait()
    first = time.perf_counter() - began
    full = median_of(lambda: engine.generate(asked([GIVEN.tokens] * ROWS)))
    shorter = median_of(lambda: engine.generate(asked(drawn)))
    cut = SamplingParams(temperature=0.7, top_p=0.9, max_new_tokens=GIVEN.tokens)
    requests = [GenerationRequest(PROMPT, cut, (0, 0, i, 0, 0)) for i in range(ROWS)]
    return {
        "decode_first_seconds": first,
        "decode_tokens_per_second": ROWS * GIVEN.tokens / full,
        "drawn_tokens_per_second": sum(drawn) / shorter,
        "top_p_tokens_per_second": ROWS
        * GIVEN.tokens
        / median_of(lambda: engine.generate(requests)),
        "decode_peak_gib": peak(),
    }


def training() -> dict[str, float]:
    """Seconds of a forward and backward pass with its optimizer step."""
    service = LocalTrainService({"learning_rate": task.LEARNING_RATE, "compile": WISH})
    service.load(spec())
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(ROWS):
        answer = torch.randint(3, 250, (GIVEN.tokens,), generator=generator).tolist()
        rows.append(Trajectory([*PROMPT, *answer], [0] * len(PROMPT) + [1] * len(answer)))
    batch = Batch.from_trajectories(rows)
    batch.values[LOSS_WEIGHTS] = aggregation_weights(batch.values["loss_mask"], "token-mean")

    def step() -> None:
        service.forward_backward(batch, WeightedLoss(cross_entropy, {}))
        service.optimizer_step()

    if ON_DEVICE:
        torch.cuda.reset_peak_memory_stats()
    return {
        "train_seconds": median_of(step),
        "train_peak_gib": peak(),
    }


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    facts = decoding()
    torch.cuda.empty_cache()
    print(json.dumps({**facts, **training()}), file=out, flush=True)
