"""From the section ``agents`` to the parts of each policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from plugrl.core.config.check import Checker
from plugrl.core.config.sources.origins import raise_faults
from plugrl.core.config.view import ConfigView, plain
from plugrl.core.errors import ConfigError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.run.process.memory import ParameterCounter
from plugrl.core.tensordict.agents.agent import Agent, Policies
from plugrl.core.tensordict.agents.config import AgentConfig
from plugrl.core.tensordict.agents.distributions.choice import Squash, distribution_for
from plugrl.core.tensordict.agents.distributions.continuous import Normal, SquashedNormal
from plugrl.core.tensordict.agents.distributions.deterministic import SquashedPoint
from plugrl.core.tensordict.agents.distributions.distribution import ActionDistribution
from plugrl.core.tensordict.agents.gsde import GsdeHead
from plugrl.core.tensordict.agents.loading import load_parts
from plugrl.core.tensordict.agents.observations import Encoder, encoder_for
from plugrl.core.tensordict.agents.parts import Body, Head, initialise, seeded
from plugrl.core.tensordict.agents.scripts import script_for
from plugrl.core.tensordict.environment.vector_environment import Script
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.plugins.kinds import Record
    from plugrl.core.tensordict.environment.vector_environment import AgentSpaces

DEFAULT = AgentConfig.default_entry


@dataclass(frozen=True)
class Settings:
    """The settings of one policy.

    Attributes:
        policy: its name.
        entry: the entry of ``agents`` that they are from.
        config: the entry, with its defaults.
        members: the agents that share the policy.
    """

    policy: str
    entry: str
    config: ConfigView
    members: list[str]

    @property
    def path(self) -> str:
        """Where they stand in the configuration."""
        return f"agents.{self.entry}"


class Seen(NamedTuple):
    """What a policy sees and does, and the shape of what it sees once it is encoded."""

    spaces: AgentSpaces
    shape: tuple[int, ...]


class Built(NamedTuple):
    """A body with the network that it built and the features that this gives."""

    body: Body
    network: nn.Module
    features: int


def settings_of(
    agents: Mapping[str, Any], section: Mapping[str, Any], records: dict[str, Record]
) -> list[Settings]:
    """The settings of each policy, in the order of the agents.

    Args:
        agents: by name.
        section: ``agents``.
        records: the components that the section picks are added.

    Raises:
        ConfigError: an entry is no agent and no policy, or agents of a policy differ.
    """
    filled = _filled(section, records)
    own = {agent: filled.get(agent, filled[DEFAULT]) for agent in agents}
    policy_of = {agent: own[agent]["policy"] or agent for agent in agents}
    for name in filled:
        if name != DEFAULT and name not in own and name not in policy_of.values():
            known = [*agents, *policy_of.values()]
            raise ConfigError(
                f"agents.{name}: the environment has no such agent{did_you_mean(name, known)}"
                f"; its agents are {', '.join(agents)}"
            )
    policies: dict[str, Settings] = {}
    for agent, policy in policy_of.items():
        entry = next(name for name in (policy, agent, DEFAULT) if name in filled)
        settings = policies.setdefault(policy, Settings(policy, entry, filled[entry], []))
        settings.members.append(agent)
        if _besides_policy(settings.config) != _besides_policy(filled[entry]):
            raise ConfigError(
                f"agents.{agent}: agents that share the policy {policy!r} have different settings; "
                f"write them once, under agents.{policy}"
            )
    return list(policies.values())


def _besides_policy(settings: ConfigView) -> dict[str, Any]:
    return {key: value for key, value in settings.to_dict().items() if key != "policy"}


def _filled(section: Mapping[str, Any], records: dict[str, Record]) -> dict[str, ConfigView]:
    checker = Checker()
    checker.records = records
    values = {DEFAULT: {}, **plain(section)}
    filled = checker.value(values, dict[str, AgentConfig], ("agents",), {})
    raise_faults(checker.faults, "agents is wrong")
    return {
        name: ConfigView(value, f"agents.{name}", checked=True) for name, value in filled.items()
    }


class Builder:
    """Builds the parts of policies.

    Args:
        factory: builds bodies.
        shared_body: one body for both heads.
        critic: whether there are value heads.
        squash: bound continuous actions by a tanh.
        labels: in place of policy and critic, a head for so many labels.
        seed: of the run.
    """

    def __init__(
        self,
        factory: Factory,
        *,
        shared_body: bool,
        critic: bool,
        squash: Squash,
        seed: int,
        labels: int | None = None,
    ) -> None:
        self._factory = factory
        self._shared_body = shared_body
        self._critic = critic
        self._squash = squash
        self._labels = labels
        self._seed = seed
        self._growing = ParameterCounter()

    def parts(
        self, settings: Settings, spaces: Mapping[str, AgentSpaces]
    ) -> tuple[Encoder, ActionDistribution, dict[str, nn.Module]]:
        """Encoder, distribution and networks of a policy.

        Raises:
            ConfigError: its agents have different spaces, or one that is not supported.
        """
        first, *others = settings.members
        for agent in others:
            if spaces[agent] != spaces[first]:
                raise ConfigError(
                    f"agents {first} and {agent} cannot share the policy {settings.policy!r}: "
                    "their spaces differ; give each a policy of its own"
                )
        try:
            encoder = encoder_for(spaces[first].observation)
            distribution = distribution_for(spaces[first].action, squash=self._squash)
        except ConfigError as error:
            raise ConfigError(f"agent {first!r}: {error}") from error
        if settings.config.is_random or settings.config.scripted is not None:
            return encoder, distribution, {}
        seen = Seen(spaces[first], encoder.shape)
        if self._labels is not None:
            built = self._body(settings, "body", "body", seen)
            head = self._head(settings, "solo_head", built, seen, outputs=self._labels)
            return encoder, distribution, {"body": built.network, "solo_head": head}
        return encoder, distribution, self._networks(settings, seen, distribution)

    def _networks(
        self, settings: Settings, seen: Seen, distribution: ActionDistribution
    ) -> dict[str, nn.Module]:
        body = "body" if self._shared_body else "policy_body"
        built = self._body(settings, body, "body", seen)
        parts = {
            body: built.network,
            "policy_head": self._head(
                settings,
                "policy_head",
                built,
                seen,
                outputs=distribution.parameters,
                distribution=distribution,
            ),
        }
        if not self._critic:
            return parts
        if not self._shared_body:
            key = "body" if settings.config.value_body is None else "value_body"
            built = self._body(settings, "value_body", key, seen)
            parts["value_body"] = built.network
        parts["value_head"] = self._head(settings, "value_head", built, seen, outputs=1)
        return parts

    def _body(self, settings: Settings, part: str, key: str, seen: Seen) -> Built:
        config, path = settings.config, f"{settings.path}.{key}"
        body: Body = self._factory.build("body", config[key], path)
        with seeded(self._seed, settings.policy, part):
            try:
                with self._growing.limit_size():
                    network, features = body.build_for(seen.spaces, seen.shape)
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from error
            if config.use_orthogonal_initialisation:
                initialise(network, config.orthogonal_initialisation_gain)
        return Built(body, network, features)

    def _head(
        self,
        settings: Settings,
        part: str,
        built: Built,
        seen: Seen,
        *,
        outputs: int,
        distribution: ActionDistribution | None = None,
    ) -> nn.Module:
        config = settings.config
        with seeded(self._seed, settings.policy, part):
            try:
                with self._growing.limit_size():
                    own = built.body.head(part, seen.spaces, built.features, outputs)
                    if distribution is not None:
                        check_noise(config[part], distribution, own)
                    if own is not None:
                        return own
                    head = new_head(config[part], built.features, outputs, distribution)
            except ConfigError as error:
                raise ConfigError(f"{settings.path}.{part}: {error}") from error
            if config.use_orthogonal_initialisation:
                initialise(head, config.orthogonal_initialisation_gain, config[part].gain)
        return head


def check_noise(
    config: ConfigView, distribution: ActionDistribution, own: nn.Module | None
) -> None:
    """Refuse settings of the noise of actions where there is none of that kind.

    Args:
        config: the section ``policy_head``.
        distribution: over the actions.
        own: the head that a body brings; None: an ordinary one.

    Raises:
        ConfigError: a setting has no effect.
    """
    drawn = isinstance(distribution, Normal) and not isinstance(distribution, SquashedPoint)
    if config.use_sde and not (drawn and own is None):
        why = "this body brings its own head" if drawn else "actions here have no normal noise"
        raise ConfigError(f"use_sde has no effect, as {why}; leave it out")
    free = distribution.free_parameters > 0 and own is None
    if config.log_std_init is not None and not (config.use_sde or free):
        raise ConfigError(
            "log_std_init has no effect, as no weights alone are the deviations of actions here; "
            "leave it out"
        )


def new_head(
    config: ConfigView, features: int, outputs: int, distribution: ActionDistribution | None
) -> nn.Module:
    """A head as its section says.

    Args:
        config: ``policy_head``, ``value_head`` or ``solo_head``.
        features: what the body gives.
        outputs: what the head gives.
        distribution: over the actions that a policy head describes; None: another head.
    """
    layered: dict[str, Any] = {"hidden": config.hidden, "activation": config.activation}
    if distribution is None:
        return Head(features, outputs, **layered)
    log_std_init = config.log_std_init
    if not config.use_sde:
        free = distribution.free_parameters
        return Head(features, outputs, free=free, free_init=log_std_init or 0.0, **layered)
    squashed = isinstance(distribution, SquashedNormal)
    if log_std_init is None:
        log_std_init = -3.0 if squashed else 0.0
    return GsdeHead(
        features,
        outputs // 2,
        log_std_init=log_std_init,
        expln=config.use_expln,
        # Where a tanh is all but 1; the bound of Stable-Baselines3.
        mean_bound=2.0 if squashed else None,
        **layered,
    )


def build_agents(
    spaces: Mapping[str, AgentSpaces],
    section: Mapping[str, Any],
    factory: Factory | None = None,
    *,
    shared_body: bool = False,
    critic: bool = True,
    squash: Squash = False,
    labels: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    load: bool = True,
    runs_folder: str = "runs",
) -> Policies:
    """Build the networks of all agents of an environment.

    Weights depend on the seed and the policy's name alone, so that neither the order of agents
    nor what was drawn before changes them.

    Args:
        spaces: of each agent.
        section: ``agents``: settings by agent or policy; ``_default`` has those of the others.
        factory: builds bodies; by default with what is installed.
        shared_body: one body for both heads.
        critic: whether there are value heads.
        squash: bound continuous actions by a tanh.
        labels: give agents one body and a head that guesses one of so many labels, and neither
            policy nor critic.
        seed: of the run.
        device: where the networks are.
        load: whether ``load_from`` is honoured; a resumed run brings its weights itself.
        runs_folder: where ``load_from`` is looked up.

    Raises:
        ConfigError: a name, a space, a shape or a run to load from is wrong.
        UsageError: ``load_from`` names no run or checkpoint, or more than one run.
        RunError: the checkpoint is damaged.
    """
    records: dict[str, Record] = {}
    settings = settings_of(spaces, section, records)
    registry = default_registry() if factory is None else factory.registry
    if factory is not None:
        # What the run began with, rather than what its section means by now.
        records |= factory.below("agents")
    builder = Builder(
        Factory(registry, records),
        shared_body=shared_body,
        critic=critic,
        squash=squash,
        labels=labels,
        seed=seed,
    )
    policies: dict[str, Agent] = {}
    for each in settings:
        parts = builder.parts(each, spaces)
        agent = Agent(each.policy, spaces[each.members[0]], *parts, each.config)
        if each.config.scripted is not None:
            agent.follow(_script_of(each, agent))
        if load and each.config.load_from is not None:
            load_parts(agent, each.path, runs_folder)
        policies[each.policy] = agent.to(device)
    policy_of = {member: each.policy for each in settings for member in each.members}
    return Policies(policies, {agent: policy_of[agent] for agent in spaces})


def _script_of(settings: Settings, agent: Agent) -> Script:
    try:
        return script_for(settings.config.scripted, agent.spaces)
    except ConfigError as error:
        raise ConfigError(f"{settings.path}.scripted: {error}") from error
