"""From the section ``agents`` to the parts of each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from plugrl.core.config.check import Checker
from plugrl.core.config.origins import raise_faults
from plugrl.core.config.view import ConfigView, plain
from plugrl.core.errors import ConfigError
from plugrl.core.factory import Factory
from plugrl.core.registry import default_registry
from plugrl.core.suggest import did_you_mean
from plugrl.core.tensordict.agent_config import AgentConfig
from plugrl.core.tensordict.distributions import ActionDistribution, Squash, distribution_for
from plugrl.core.tensordict.observations import Encoder, encoder_for
from plugrl.core.tensordict.parts import Body, Head, initialise, seeded

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment import AgentSpaces

DEFAULT = AgentConfig.default_entry


def sections_of(
    agents: Mapping[str, Any], section: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, ConfigView]]:
    """The policy of each agent, and the settings of each policy, in the order of the agents.

    Raises:
        ConfigError: an entry is no agent and no policy, or agents of a policy differ.
    """
    filled = _filled(section)
    default = filled[DEFAULT]
    own = {agent: filled.get(agent, default) for agent in agents}
    policy_of = {agent: own[agent]["policy"] or agent for agent in agents}
    for name in filled:
        if name != DEFAULT and name not in own and name not in policy_of.values():
            known = [*agents, *policy_of.values()]
            raise ConfigError(
                f"agents.{name}: the environment has no such agent{did_you_mean(name, known)}"
                f"; its agents are {', '.join(agents)}"
            )
    policies: dict[str, ConfigView] = {}
    for agent, policy in policy_of.items():
        settings = filled.get(policy, own[agent])
        if policy in policies and _besides_policy(policies[policy]) != _besides_policy(settings):
            raise ConfigError(
                f"agents.{agent}: agents that share the policy {policy!r} have different settings; "
                f"write them once, under agents.{policy}"
            )
        policies.setdefault(policy, settings)
    return policy_of, policies


def _besides_policy(settings: ConfigView) -> dict[str, Any]:
    return {key: value for key, value in settings.to_dict().items() if key != "policy"}


def _filled(section: Mapping[str, Any]) -> dict[str, ConfigView]:
    checker = Checker()
    values = {DEFAULT: {}, **plain(section)}
    filled = checker.value(values, dict[str, AgentConfig], ("agents",), {})
    raise_faults(checker.faults, "agents is wrong")
    return {
        name: ConfigView(value, f"agents.{name}", checked=True) for name, value in filled.items()
    }


class Builder:
    """Builds the parts of policies.

    Args:
        factory: builds bodies; None: with what is installed.
        shared_body: one body for both heads.
        critic: whether there are value heads.
        squash: bound continuous actions by a tanh.
        seed: of the run.
    """

    def __init__(
        self, factory: Factory | None, *, shared_body: bool, critic: bool, squash: Squash, seed: int
    ) -> None:
        self._factory = factory or Factory(default_registry())
        self._shared_body = shared_body
        self._critic = critic
        self._squash = squash
        self._seed = seed

    def parts(
        self,
        policy: str,
        members: Sequence[str],
        spaces: Mapping[str, AgentSpaces],
        config: ConfigView,
    ) -> tuple[Encoder, ActionDistribution, dict[str, nn.Module]]:
        """Encoder, distribution and networks of a policy.

        Raises:
            ConfigError: its agents have different spaces, or one that is not supported.
        """
        first = spaces[members[0]]
        for agent in members[1:]:
            if spaces[agent] != first:
                raise ConfigError(
                    f"agents {members[0]} and {agent} cannot share the policy {policy!r}: their "
                    "spaces differ; give each a policy of its own"
                )
        try:
            encoder = encoder_for(first.observation)
            distribution = distribution_for(first.action, squash=self._squash)
        except ConfigError as error:
            raise ConfigError(f"agent {members[0]!r}: {error}") from error
        if config.is_random:
            return encoder, distribution, {}
        return encoder, distribution, self._networks(policy, encoder, distribution, config)

    def _networks(
        self, policy: str, encoder: Encoder, distribution: ActionDistribution, config: ConfigView
    ) -> dict[str, nn.Module]:
        first = "body" if self._shared_body else "policy_body"
        body, features = self._body(policy, first, encoder.shape, config, config.body)
        parts = {first: body}
        parts["policy_head"] = self._head(
            policy,
            "policy_head",
            features,
            config,
            outputs=distribution.parameters,
            free=distribution.free_parameters,
        )
        if not self._critic:
            return parts
        if not self._shared_body:
            chosen = config.value_body or config.body
            parts["value_body"], features = self._body(
                policy, "value_body", encoder.shape, config, chosen
            )
        parts["value_head"] = self._head(policy, "value_head", features, config, outputs=1)
        return parts

    def _body(
        self,
        policy: str,
        part: str,
        shape: tuple[int, ...],
        config: ConfigView,
        section: Mapping[str, Any],
    ) -> tuple[nn.Module, int]:
        key = "value_body" if part == "value_body" and config.value_body else "body"
        body: Body = self._factory.build("body", section, f"agents.{policy}.{key}")
        with seeded(self._seed, policy, part):
            try:
                network, features = body.build(shape)
            except ConfigError as error:
                raise ConfigError(f"agents.{policy}.{key}: {error}") from error
            if config.use_orthogonal_initialisation:
                initialise(network, config.orthogonal_initialisation_gain)
        return network, features

    def _head(
        self,
        policy: str,
        part: str,
        features: int,
        config: ConfigView,
        *,
        outputs: int,
        free: int = 0,
    ) -> Head:
        section = config[part]
        with seeded(self._seed, policy, part):
            head = Head(
                features,
                outputs,
                free=free,
                hidden=section.hidden,
                activation=section.activation,
            )
            if config.use_orthogonal_initialisation:
                initialise(head, config.orthogonal_initialisation_gain, section.gain)
        return head
