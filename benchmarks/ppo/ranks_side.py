"""One process, or one of several that add their gradients up, of ``ppo_ranks``.

It is given a JSON object and prints one: seconds of the measured iterations, seconds and number of
the sums, and the processor time of this process.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

import plugrl
from plugrl.trainers.vanilla_ppo import VanillaPpoTrainer

GIVEN = json.loads(sys.argv[1])
#: Wall and processor time at the end of each iteration, and seconds of each sum.
ENDS: list[tuple[float, float]] = []
SUMS: list[float] = []


@plugrl.register_trainer("noted_ppo")
class NotedPpo(VanillaPpoTrainer):
    """Notes when an iteration ends."""

    def _end_iteration(self, iteration: int, metrics: dict[str, float]) -> None:
        super()._end_iteration(iteration, metrics)
        if iteration == GIVEN["warm_up"]:
            SUMS.clear()
        ENDS.append((time.perf_counter(), time.process_time()))


def add_up(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Give all ranks the mean of their gradients; first, the weights of rank 0."""
    began = time.perf_counter()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not optimizer.state:
        for parameter in parameters:
            dist.broadcast(parameter.data, 0)
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, part in zip(
        parameters, flat.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.grad.copy_(part.view_as(parameter))
    SUMS.append(time.perf_counter() - began)


def configuration() -> dict[str, Any]:
    """The share of this rank in PPO on CartPole-v1."""
    world = GIVEN["world"]
    return {
        "experiment_name": "ppo_ranks",
        "seed": 1 + GIVEN["rank"],
        "scenario": {
            "type": "gymnasium",
            "id": "CartPole-v1",
            "num_envs": GIVEN["environments"] // world,
        },
        "agents": {"_default": {"body": {"type": "mlp", "hidden": [GIVEN["width"]] * 2}}},
        "rl": {
            "num_iterations": GIVEN["warm_up"] + GIVEN["iterations"],
            "frames_per_batch": 128 * GIVEN["environments"] // world,
            "num_epochs": 4,
            "minibatch_size": GIVEN["minibatch"] // world,
            "max_grad_norm": 0.5,
            "compile": False,
        },
        "validate": {"enabled": False},
        "trainer": "noted_ppo",
        "settings": {
            "runs_folder": GIVEN["folder"],
            "torch_threads": GIVEN["threads"],
            "device": "cpu",
            "progress": "none",
        },
    }


def main() -> None:
    """Train, and print what it took."""
    if GIVEN["world"] > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{GIVEN['folder']}/meeting",
            rank=GIVEN["rank"],
            world_size=GIVEN["world"],
        )
        register_optimizer_step_pre_hook(add_up)
    plugrl.train(configuration())
    first, last = ENDS[-1 - GIVEN["iterations"]], ENDS[-1]
    found = {
        "seconds": last[0] - first[0],
        "cpu_seconds": last[1] - first[1],
        "sum_seconds": sum(SUMS),
        "shortest_sum": min(SUMS, default=0.0),
        "sums": len(SUMS),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
