"""Agents that do not fit their environment, found before a run begins."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.errors import ConfigError, ContractError, PlugrlError
from plugrl.core.factory import Factory
from plugrl.core.tensordict.agents.agent import Agent, Policies
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.agents.loading import loading_faults
from plugrl.core.tensordict.evaluation import opponents_for
from plugrl.core.tensordict.learn.message_regression import regression_fault

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

_AT_KEY = re.compile(r"(agents(?:\.[\w-]+)+): (.*)")


def agent_faults(check: Preflight, trainer: type[Any]) -> Iterator[Finding]:
    """Build the agents once: names, spaces, bodies and weights that do not fit show then.

    An environment that cannot be made says so itself, and so does a run to load from that is not
    there.

    Args:
        check: what is asked about.
        trainer: the class of trainers of small networks that is to train them.
    """
    scenario = check.component("scenario")
    if scenario is None:
        return
    try:
        spaces = scenario(check.root["scenario"]).preview_agents(int(check.root.seed))
    except PlugrlError:
        return
    if spaces is None:
        return
    unheard = regression_fault(check.root.get("message_regression"), spaces)
    if unheard is not None:
        yield "message_regression", unheard
    section, folder = check.root.get("agents") or {}, check.validated.settings.runs_folder
    missing = any(loading_faults(section, check.root.experiment_name, folder))
    # A property depends on the sections: which parts there are is not known here.
    critic: Any = trainer.use_critic
    alone = trainer.trainer_type == "solo_agent"
    try:
        policies = build_agents(
            spaces,
            section,
            Factory(check.registry, check.validated.records),
            shared_body=bool((check.root.get("rl") or {}).get("use_shared_body")),
            critic=critic if isinstance(critic, bool) else True,
            squash=trainer.squash_actions,
            # How many labels there are changes no name and no body.
            labels=2 if alone else None,
            load=not (missing or isinstance(critic, property)),
            runs_folder=folder,
        )
        trained = trained_of(policies)
    except PlugrlError as error:
        said = _AT_KEY.match(str(error))
        yield (said[1], said[2]) if said else ("agents", str(error))
    else:
        takes_turns = any(each.takes_turns for each in spaces.values())
        fault = trainer.turns_fault(check.root) if takes_turns else None
        if fault is not None:
            # What it says of actions might recommend another that cannot learn here.
            yield check.path, f"agents of this scenario take turns, {fault}"
        else:
            yield from _action_faults(check.path, trained, trainer)
        yield from _loss_faults(check, trained, trainer)
        yield from _scaling_faults(check, policies)
        yield from _opponent_faults(check, policies)


def _action_faults(
    path: str, trained: Mapping[str, Agent], trainer: type[Any]
) -> Iterator[Finding]:
    try:
        for agent in trained.values():
            trainer.check_actions(agent)
    except ConfigError as error:
        yield path, str(error)


def _loss_faults(check: Preflight, trained: Mapping[str, Agent], trainer: Any) -> Iterator[Finding]:
    """Ask a trainer of users once for its loss, which need not be what one has to be.

    Other errors than that are left to the run: here is neither one nor an environment.
    """
    own = getattr(trainer, "_get_loss_module_and_gae", None)
    if own is None or own.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return
    asked = trainer(check.section, hyper_params=check.root)
    # It may draw random numbers, and warns again in the run.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for agent in trained.values():
            try:
                asked._loss_of(agent)
            except ContractError as error:
                yield check.path, str(error)
            except Exception:
                return


def _scaling_faults(check: Preflight, policies: Policies) -> Iterator[Finding]:
    asked = (check.root.get("rl") or {}).get("normalize_observations")
    if asked and all(agent.spaces.layout is not None for agent in policies.policies.values()):
        yield (
            "rl.normalize_observations",
            "has no effect here: observations with named parts are not scaled; remove it",
        )


def _opponent_faults(check: Preflight, policies: Policies) -> Iterator[Finding]:
    section: Any = check.root.get("validate") or {}
    opponent = section.get("opponent")
    if opponent is None or not section.get("enabled", True):
        return
    agents = {name: policies.policies[of].spaces for name, of in policies.policy_of.items()}
    if len(agents) == 1:
        yield "validate.opponent", f"has no effect with one agent, {next(iter(agents))}; remove it"
        return
    seats = sum(policies.policies[of].is_trained for of in policies.policy_of.values())
    if section.episodes < seats:
        yield (
            "validate.episodes",
            f"{section.episodes} is not one for each of {seats} trained agents against "
            f"validate.opponent; give at least {seats}",
        )
    try:
        opponents_for(agents, opponent)
    except ConfigError as error:
        yield "validate.opponent", str(error)


def trained_of(policies: Policies) -> dict[str, Agent]:
    """The policies whose weights can change, by name.

    Raises:
        ConfigError: there is none.
    """
    trained = {name: agent for name, agent in policies.policies.items() if agent.is_trained}
    if not trained:
        raise ConfigError(
            "no agent is trained: each is random or has factors of 0; give one is_random: false "
            "and an agent_lr_factor above 0"
        )
    return trained


def batch_fault(frames: int, num_envs: int) -> str | None:
    """Why a batch cannot have so many steps over all environments; None: it can."""
    if frames % num_envs == 0:
        return None
    return (
        f"{frames} is no multiple of {num_envs} environments; "
        f"take {frames // num_envs * num_envs or num_envs}"
    )


def frames_faults(check: Preflight) -> Iterator[Finding]:
    """A batch that cannot be shared out evenly among the environments."""
    rl, scenario = check.root.rl, check.root.get("scenario") or {}
    count = scenario.get("num_envs")
    # More than these there may be, where each is a batch, and never fewer.
    if isinstance(count, int) and count > 0 and rl.steps_per_env_per_iteration is None:
        fault = batch_fault(int(rl.frames_per_batch), count)
        if fault is not None:
            yield "rl.frames_per_batch", fault
