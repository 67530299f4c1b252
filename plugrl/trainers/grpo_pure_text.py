"""GRPO for agents that talk by a protocol: policy gradients on the very tokens that they said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.errors import RunError
from plugrl.core.text.batch import Batch
from plugrl.core.text.self_hosted import SelfHostedTrainerConfig
from plugrl.trainers.kit import TALKING_ON
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


class GrpoPureTextTrainer(SelfHostedGrpoTrainer):
    """Plays several episodes about each problem and reinforces what paid an agent more than others.

    An agent's reward is compared with its own in the other episodes about the same problem, never
    with those of other agents: groups are by problem and agent. Each trained model learns from
    the agents that it speaks for.
    """

    Config: ClassVar[type] = SelfHostedTrainerConfig
    score: ClassVar[str] = "accuracy"
    #: Sections with which the conformance kit trains it.
    conformance: ClassVar[Mapping[str, Any]] = TALKING_ON

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Besides what its base looks for: a worker whose trajectories say whose they are."""
        yield from super().preflight(check)
        worker = check.component("rollout_worker")
        gives = None if worker is None else getattr(worker, "gives", None)
        if gives is not None and "agent" not in gives:
            yield (
                "rollout_worker.type",
                "gives trajectories that do not say of which agent they are; take the worker "
                "protocol, or the trainer self_hosted_grpo for a single agent",
            )

    def _compute_advantage(self, batch: Batch) -> Batch:
        """Advantages within the attempts of one agent at one problem.

        Raises:
            RunError: a valid trajectory does not say whose it is.
        """
        agents = batch.metadata.get("agent")
        if agents is None:
            if bool(batch.metadata["valid"].any()):
                raise RunError(
                    "trajectories have no field 'agent', which grpo_pure_text groups by; take the "
                    "rollout worker protocol, or set trajectory['agent'] in yours"
                )
            return super()._compute_advantage(batch)
        groups = batch.metadata["group_id"]
        batch.metadata["group_id"] = [
            f"{group}/{agent}" for group, agent in zip(groups, agents, strict=True)
        ]
        batch = super()._compute_advantage(batch)
        batch.metadata["group_id"] = groups
        return batch
