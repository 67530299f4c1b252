"""Times broadcasts: ``python broadcast.py WORLD DEVICE BYTES`` prints seconds of the shortest."""

from __future__ import annotations

import sys
import tempfile
import time

import torch
import torch.distributed as dist


def broadcast(rank: int, world: int, device: str, size: int, file: str) -> None:
    """Broadcast ``size`` bytes among ``world`` processes, five times; the last rank prints."""
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=world)
    flat = torch.zeros(size, dtype=torch.uint8, device=device)
    seconds = []
    for _ in range(5):
        dist.barrier()
        began = time.perf_counter()
        dist.broadcast(flat, 0)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    if rank == world - 1:
        print(min(seconds[1:]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    world, size = int(sys.argv[1]), int(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        given = (world, sys.argv[2], size, f"{folder}/meeting")
        torch.multiprocessing.spawn(broadcast, given, nprocs=world)
