"""What is wrong with the ranks that a configuration asks for, before any of them starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from plugrl.plugins.ray import room

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


def worker_findings(check: Preflight) -> Iterator[Finding]:
    """A package that is missing, or more workers than the cluster has devices."""
    if find_spec("ray") is None:
        yield (
            f"{check.path}.type",
            'needs the package ray, which is not installed: pip install "plugrl[ray]"',
        )
        return
    settings = check.validated.settings
    if settings.cluster.address or os.environ.get("RAY_ADDRESS"):
        yield from room.findings(check, "workers")
        return
    gpus = torch.cuda.device_count()
    on_cpu = settings.device == "cpu" or (settings.device == "auto" and not gpus)
    there = (settings.cluster.cpus or os.cpu_count() or 1) if on_cpu else gpus
    wanted = sum(
        entry.train.workers for entry in check.models.values() if _is_ranks(entry.get("train"))
    )
    if wanted > there:
        kind = "CPU cores" if on_cpu else "GPUs"
        yield (
            f"{check.path}.workers",
            f"the models ask for {wanted} workers, and this machine has {there} {kind}; take "
            "fewer workers, or join a cluster by settings.cluster.address",
        )
    else:
        yield from room.findings(check, "workers")


def _is_ranks(section: Any) -> bool:
    return section is not None and str(section.get("type")).endswith("fsdp")
