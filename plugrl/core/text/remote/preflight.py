"""What a remote-API trainer asks of its configuration, looked up before anything is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from plugrl.core.config.aliases import OF_ANY_LOSS
from plugrl.core.text.inference.services import BaseTrainService
from plugrl.core.text.learn.losses import declared_needs
from plugrl.core.text.models import wrong_service_fault
from plugrl.core.text.remote.service import RemoteTrainService
from plugrl.core.text.rollout.worker import RolloutWorker
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


def remote_findings(check: Preflight) -> Iterator[Finding]:
    """Services of another sort, losses and options they lack, and what no named loss can do."""
    algorithm = check.section.algorithm
    for key, remedy in OF_ANY_LOSS.items():
        if algorithm.get(key) is not None:
            yield f"trainer.algorithm.{key}", remedy
    advantage = check.component("trainer.algorithm.advantage")
    if "values" in declared_needs(advantage):
        yield (
            "trainer.algorithm.advantage",
            "needs a value head, which no named loss trains; choose another, such as grpo",
        )
    yield from unfit_services(check, RemoteTrainService)
    for service in trained_by(check).values():
        if issubclass(service, RemoteTrainService):
            fault = loss_fault(algorithm, service)
            if fault is not None:
                yield f"trainer.algorithm.{fault[0]}", fault[1]
            elif "advantages" not in service.losses[algorithm.loss_fn].inputs and getattr(
                check.validated.trainer, "learns_by_advantages", False
            ):
                yield (
                    "trainer.algorithm.loss_fn",
                    f"{algorithm.loss_fn} does not read advantages, from which trainer "
                    f"{check.section.get('type')} learns; take another, such as "
                    "importance_sampling",
                )
    worker = check.component("rollout_worker")
    look = getattr(worker, "training_temperatures", RolloutWorker.training_temperatures)
    for key, temperature, remedy in look(check.root.rollout_worker):
        if temperature not in (None, 0, 1):
            yield (
                f"rollout_worker.{key}",
                f"a service of named losses trains at temperature 1, so that answers drawn at "
                f"{temperature:g} would be taken for those of another policy; {remedy}",
            )


def trained_by(check: Preflight) -> dict[str, type[BaseTrainService]]:
    """The train services that the configuration picks, by model."""
    found = {name: check.component(f"models.{name}.train") for name in check.models}
    return {name: service for name, service in found.items() if service is not None}


def unfit_services(check: Preflight, kind: type[BaseTrainService]) -> Iterator[Finding]:
    """Train services that are not of the sort which the trainer needs."""
    for name, service in trained_by(check).items():
        if not issubclass(service, kind):
            yield f"models.{name}.train", wrong_service_fault(service, kind)


def loss_fault(
    algorithm: Mapping[str, Any], service: type[RemoteTrainService]
) -> tuple[str, str] | None:
    """The key below ``algorithm`` that does not fit the losses of a service, and why."""
    name = algorithm["loss_fn"]
    loss = service.losses.get(name)
    if loss is None:
        known = ", ".join(service.losses) or "none"
        close = did_you_mean(str(name), service.losses, 1)
        return "loss_fn", (
            f"{service.__name__} has no loss {name!r}; it has: {known}{close}. A loss of your own "
            "needs a self-hosted trainer, such as trainer.type: self_hosted_grpo"
        )
    for key in algorithm["loss_fn_config"] or {}:
        if key not in loss.options:
            known = ", ".join(loss.options) or "none"
            close = did_you_mean(str(key), loss.options, 1)
            return "loss_fn_config", f"loss {name!r} has no option {key!r}; it has: {known}{close}"
    options = {**loss.options, **(algorithm["loss_fn_config"] or {})}
    low, high = options.get("clip_low_threshold", 0.0), options.get("clip_high_threshold", 1.0)
    if not 0 <= low <= 1 <= high:
        return "loss_fn_config", (
            f"the ratio of equal weights is 1 and must be within the thresholds, which are "
            f"{low:g} and {high:g}; write 0 <= clip_low_threshold <= 1 <= clip_high_threshold"
        )
    if not loss.scales and algorithm["aggregation"] != "token-sum":
        return "aggregation", (
            f"loss {name!r} does not scale with its advantages, so that nothing can be averaged "
            "outside of the service; write token-sum"
        )
    return None
