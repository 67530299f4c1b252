"""Whether all that a configuration puts on a cluster fits there, seen before a run begins."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from plugrl.core.config.schemas.sections import ClusterConfig
from plugrl.core.run.process.cluster import configure, settings
from plugrl.plugins.ray import cluster

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

_CPU, _GPU = "CPU", "GPU"
#: More than anybody asks for, of what is not known before the cluster starts.
_PLENTY = 1e18


@dataclass(frozen=True, slots=True)
class Demand:
    """Actors that a part of the configuration asks for.

    Attributes:
        path: of the part.
        what: they are, such as ``rollout workers``.
        count: how many.
        each: what each takes of its machine.
    """

    path: str
    what: str
    count: int
    each: Mapping[str, float]


def findings(check: Preflight, key: str) -> Iterator[Finding]:
    """Actors of one part that do not fit, or that do not fit beside those of the others.

    A cluster that runs is joined and looked at; one that would be started here is not started.

    Args:
        check: of the part.
        key: says how many actors it has.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    wanted = demands(check)
    own = next((each for each in wanted if each.path == check.path), None)
    if own is None:
        return
    section = check.validated.settings.cluster.to_dict()
    machines, remedy = _machines(section, wanted)
    fault = cluster.unfit(machines, own.each, own.count)
    # What all ask for together is told once, by the first of them.
    if fault is None and own == wanted[0]:
        fault = excess(machines, wanted)
    if fault is not None:
        yield f"{check.path}.{key}", f"{fault}; {remedy}"


def demands(check: Preflight) -> list[Demand]:
    """All actors of the configuration."""
    found = []
    scenario = check.root.get("scenario") or {}
    if scenario.get("vectorization") == "ray":
        found.append(Demand("scenario", "environments", _copies(scenario, check), {_CPU: 1.0}))
    executor = (check.root.get("rollout_worker") or {}).get("executor")
    if _is(executor, "ray"):
        path = "rollout_worker.executor"
        found.append(Demand(path, "rollout workers", executor.workers, executor.resources))
    on_cpu = check.validated.settings.device == "cpu"
    for name, model in check.models.items():
        engine, ranks = model.get("inference"), model.get("train")
        path, label = f"models.{name}", f"of model {name!r}"
        if _is(engine, "ray"):
            what = f"replicas {label}"
            found.append(Demand(f"{path}.inference", what, engine.replicas, engine.resources))
        if _is(ranks, "fsdp"):
            each = {_CPU: 1.0} | ({} if on_cpu or not _has_gpus() else _rank_gpus(ranks))
            found.append(Demand(f"{path}.train", f"ranks {label}", ranks.workers, each))
    return found


def excess(machines: list[cluster.Node], wanted: list[Demand]) -> str | None:
    """Why demands exceed what all machines have together; None: they do not."""
    names = dict.fromkeys(name for each in wanted for name in each.each)
    for name in names:
        asked = [(each, each.count * each.each.get(name, 0)) for each in wanted]
        total = sum(amount for _, amount in asked)
        there = sum(node.resources.get(name, 0) for node in machines)
        if total > there:
            parts = [f"{each.count} {each.what} ({amount:g})" for each, amount in asked if amount]
            return (
                f"{', '.join(parts)} need {total:g} {name} in all, and "
                f"{', '.join(node.address for node in machines)} "
                f"{'have' if len(machines) > 1 else 'has'} {there:g}"
            )
    return None


def _machines(section: Mapping[str, Any], wanted: list[Demand]) -> tuple[list[cluster.Node], str]:
    """The machines of a cluster, and what to do where they do not suffice."""
    own = ClusterConfig(**section)
    if own.address or os.environ.get(cluster.ADDRESS_VARIABLE):
        before = asdict(settings())
        configure(section)
        try:
            return cluster.nodes(), "write fewer, or add machines to the cluster"
        finally:
            configure(before)
    here = {_CPU: float(own.cpus or os.cpu_count() or 1)}
    if any(each.each.get(_GPU) for each in wanted):
        here[_GPU] = float(_gpus())
    # What else this machine has, Ray finds out when it starts.
    here |= {n: _PLENTY for each in wanted for n in each.each if n not in (_CPU, _GPU)}
    remedy = "write fewer, or settings.cluster.cpus, which may exceed the cores"
    return [cluster.Node("", "this machine", here)], remedy


def _copies(scenario: Any, check: Preflight) -> int:
    """Environments that there are at once: those of evaluations stay beside those of training."""
    count: int = scenario.num_envs
    is_tested = (check.root.get("validate") or {}).get("enabled") or (
        check.root.get("rl") or {}
    ).get("num_test_iterations")
    return count + (scenario.num_test_envs or count if is_tested else 0)


def _is(section: Any, name: str) -> bool:
    return section is not None and str(section.get("type")).rpartition("/")[2] == name


def _rank_gpus(section: Any) -> dict[str, float]:
    return {_GPU: float(section.get("gpus", 1.0))}


def _gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


def _has_gpus() -> bool:
    return _gpus() > 0
