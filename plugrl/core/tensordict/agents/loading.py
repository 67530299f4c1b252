"""What agents have learned, to a checkpoint of their run and from one, of theirs or of another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.errors import ConfigError, PlugrlError, RunError
from plugrl.core.loaded_run import find_checkpoint
from plugrl.core.run.checkpoints import checkpoint as checkpoints
from plugrl.core.run.folder import find
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    import numpy as np

    from plugrl.core.tensordict.agents.agent import Agent
    from plugrl.core.tensordict.learn.learner import Learner

#: What a part may be taken from where the other run has no part of its name.
_STANDS_FOR = {"policy_body": "body", "value_body": "body", "body": "policy_body"}


@dataclass(frozen=True)
class TrainedWeights:
    """What one phase of a sequence gives the next: the weights of each policy by name."""

    policies: Mapping[str, Mapping[str, torch.Tensor]]

    def give(self, policies: Mapping[str, Agent]) -> None:
        """Copy every part that both have; a body of one phase begins both bodies of the next.

        Args:
            policies: those of the next phase; one that loaded from a run keeps what it loaded.

        Raises:
            ConfigError: there is no such part, or one has another shape.
        """
        given = 0
        for name, agent in policies.items():
            if agent.config["load_from"] is not None:
                given += 1
                continue
            for part, module in agent.parts.items():
                found = _of_part(self.policies.get(name, {}), part)
                if found:
                    _copy(module, found, f"agents.{name}: {part} of the phase before")
                    given += 1
        if not given:
            raise ConfigError(
                f"agents: the phase before trained {', '.join(self.policies)}, and this one has "
                f"{', '.join(policies)} and no part to take over; give policies the same names"
            )


def load_parts(agent: Agent, where: str, runs_folder: str = "runs") -> None:
    """Give parts of an agent the weights that its ``load_from`` names.

    Args:
        agent: whose parts.
        where: its settings stand, for messages.
        runs_folder: where runs are looked up.

    Raises:
        ConfigError: the run has no such policy or part, or one of another shape.
        UsageError: there is no such run or checkpoint, or more than one run is meant.
        RunError: the checkpoint is damaged.
    """
    config = agent.config
    run = find(os.path.expanduser(config["load_from"]), Path(runs_folder))
    state = checkpoints.load(find_checkpoint(run, config["load_checkpoint"]))
    weights = _weights(state, config["load_policy"], agent.name, where, run.name)
    chosen = config["load_parts"] or list(agent.parts)
    for part in chosen:
        if part not in agent.parts:
            has = ", ".join(agent.parts)
            raise ConfigError(f"{where}.load_parts: this agent has no {part}; its parts are {has}")
        found = _of_part(weights, part)
        if not found:
            has = ", ".join(sorted({name.partition(".")[0] for name in weights})) or "nothing"
            raise ConfigError(
                f"{where}.load_from: {run.name} has no {part}, but {has}; name what there is in "
                "load_parts"
            )
        _copy(agent.parts[part], found, f"{where}.load_from: {part} of {run.name}")


def restore_policies(policies: Mapping[str, Agent], saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Give all policies the weights of a checkpoint of their run.

    Args:
        policies: by name.
        saved: ``weights`` by policy name.

    Raises:
        RunError: other policies or shapes were saved, since the configuration changed.
    """
    remedy = "take the agents, and an environment with the spaces, that the run began with"
    if set(policies) != set(saved):
        raise RunError(
            f"the checkpoint has the policies {', '.join(saved)}, and now there are "
            f"{', '.join(policies)}; {remedy}"
        )
    for name, agent in policies.items():
        own, weights = agent.state_dict(), saved[name]["weights"]
        for key in (*own, *weights):
            has, needs = (list(each[key].shape) if key in each else None for each in (weights, own))
            if has != needs:
                raise RunError(
                    f"the checkpoint does not fit policy {name}: {key} has there "
                    f"{f'shape {has}' if has is not None else 'no weights'}, and here "
                    f"{f'shape {needs}' if needs is not None else 'none'}; {remedy}"
                )
        agent.load_state_dict(weights)


def loading_faults(
    section: Mapping[str, Mapping[str, Any]], experiment: str, runs_folder: str = "runs"
) -> Iterator[tuple[str, str]]:
    """Settings of ``agents`` that name no run to load from, and what is wrong with each.

    Only files are looked for; parts and shapes are compared when agents are built.

    Args:
        section: ``agents``.
        experiment: the name of the experiment that is about to begin.
        runs_folder: where runs are looked up.
    """
    for name, config in section.items():
        run = config.get("load_from")
        if run is None:
            continue
        if run in ("latest", experiment):
            yield (
                f"agents.{name}.load_from",
                f"{run} is the run that trains, once it has begun; name the other run by its id",
            )
            continue
        try:
            folder = find(os.path.expanduser(run), Path(runs_folder))
            find_checkpoint(folder, config.get("load_checkpoint", "newest"))
        except PlugrlError as error:
            yield f"agents.{name}.load_from", str(error)


def _weights(
    checkpoint: Mapping[str, Any], policy: str | None, name: str, where: str, run: str
) -> Mapping[str, torch.Tensor]:
    """The weights of the policy that is meant, by name."""
    trainer = checkpoint.get("trainer")
    policies = trainer.get("policies") if isinstance(trainer, Mapping) else None
    if not isinstance(policies, Mapping) or not policies:
        raise ConfigError(f"{where}.load_from: {run} has no policies; name a run of small networks")
    wanted = policy or (name if name in policies or len(policies) > 1 else next(iter(policies)))
    if wanted not in policies:
        key = "load_policy" if policy else "load_from"
        raise ConfigError(
            f"{where}.{key}: {run} has no policy {wanted!r}{did_you_mean(wanted, policies)}; its "
            f"policies are {', '.join(policies)}; name one in load_policy"
        )
    weights: Mapping[str, torch.Tensor] = policies[wanted]["weights"]
    return weights


def _of_part(weights: Mapping[str, torch.Tensor], part: str) -> dict[str, torch.Tensor]:
    for name in (part, _STANDS_FOR.get(part, part)):
        found = {
            key.removeprefix(f"{name}."): value
            for key, value in weights.items()
            if key.startswith(f"{name}.")
        }
        if found:
            return found
    return {}


def _copy(module: torch.nn.Module, weights: Mapping[str, torch.Tensor], what: str) -> None:
    own = module.state_dict()
    for name in (*own, *weights):
        if name not in own or name not in weights:
            side = "lacks" if name not in weights else "has another layer,"
            raise ConfigError(f"{what} {side} {name}; build the part as that run did")
        if own[name].shape != weights[name].shape:
            raise ConfigError(
                f"{what} has {name} of shape {list(weights[name].shape)}, and here it is "
                f"{list(own[name].shape)}; build the part as that run did"
            )
    module.load_state_dict(dict(weights))


def learning_state(
    policies: Mapping[str, Agent],
    learners: Mapping[str, Learner],
    orders: Mapping[str, np.random.Generator],
) -> dict[str, Any]:
    """What policies have learned and how they go on, for a checkpoint; all by name of the policy.

    Args:
        policies: the networks.
        learners: what trains them.
        orders: what shuffles their rows.
    """
    return {
        "policies": {name: {"weights": dict(each.state_dict())} for name, each in policies.items()},
        "learners": {name: each.state_dict() for name, each in learners.items()},
        "orders": {name: each.bit_generator.state for name, each in orders.items()},
    }


def restore_learning(
    state: Mapping[str, Any],
    policies: Mapping[str, Agent],
    learners: Mapping[str, Learner],
    orders: Mapping[str, np.random.Generator],
) -> None:
    """Take back what :func:`learning_state` gave; errors as :func:`restore_policies`."""
    restore_policies(policies, state["policies"])
    for name, learner in learners.items():
        learner.load_state_dict(state["learners"][name])
    for name, order in orders.items():
        order.bit_generator.state = state["orders"][name]
