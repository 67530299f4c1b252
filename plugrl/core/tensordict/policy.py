"""``Policy``: a trained policy of a small network, apart from the run that trained it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from torch import nn

from plugrl.core.config.view import plain
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.agents.config import AgentConfig
from plugrl.core.tensordict.agents.operators import PolicyModule
from plugrl.core.tensordict.environment.layout import Layout
from plugrl.core.tensordict.environment.spaces import Spaces
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces, RawSpaces

if TYPE_CHECKING:
    from plugrl.core.tensordict.agents.agent import Agent
    from plugrl.core.tensordict.agents.distributions.choice import Squash
    from plugrl.core.tensordict.collect.normalisation import ObservationNormaliser

#: The key of a file's metadata, and the version of what stands there.
_METADATA, _FORMAT = "plugrl_policy", 1


class Policy(nn.Module):
    """Acts on observations; saved as one file, and a plain ``torch.nn.Module``.

    ``policy(observation)`` maps tensors to the likeliest actions, as networks see both.
    :meth:`act` takes and gives what an environment gives and takes.

    Args:
        agent: whose policy it is; its networks are shared, not copied.
        normaliser: scales its observations; None: they are taken as they are.
        squash: whether continuous actions are bent into their bounds, as for ``build_agents``.

    Raises:
        UsageError: the agent acts without networks.
    """

    mean: torch.Tensor | None
    scale: torch.Tensor | None

    def __init__(
        self,
        agent: Agent,
        normaliser: ObservationNormaliser | None = None,
        *,
        squash: Squash = False,
    ) -> None:
        super().__init__()
        if agent.policy_body is None or agent.policy_head is None:
            raise UsageError(f"agent {agent.name!r} acts without networks, so it has no policy")
        self.name = agent.name
        self.spaces = agent.spaces
        self.network = PolicyModule(agent.policy_body, agent.policy_head, agent.encoder, agent.mask)
        self.distribution = agent.distribution
        self._config, self._squash = agent.config, squash
        self._raw = _raw_of(agent.spaces)
        if normaliser is not None and not normaliser.statistics.count:
            normaliser = None  # before its first batch it changes nothing
        self._clip = None if normaliser is None else normaliser.clip
        mean, scale = (None, None) if normaliser is None else normaliser.mean_and_scale
        self.register_buffer("mean", None if mean is None else torch.from_numpy(mean))
        self.register_buffer("scale", None if scale is None else torch.from_numpy(scale))

    def params(self, observation: torch.Tensor) -> torch.Tensor:
        """``[..., *observation]`` to the parameters of the distribution over actions, ``[..., P]``.

        Of discrete actions these are logits.
        """
        if self._clip is not None:
            assert self.mean is not None
            assert self.scale is not None
            observation = ((observation - self.mean) * self.scale).clamp(-self._clip, self._clip)
        params: torch.Tensor = self.network(observation)
        return params

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """``[..., *observation]`` to the likeliest actions, ``[..., *action]``."""
        return self.distribution.mode(self.params(observation))

    @torch.no_grad()
    def act(
        self, observation: Any, *, sample: bool = False, generator: torch.Generator | None = None
    ) -> np.ndarray:
        """The action for an observation, or the actions for a batch of them.

        Args:
            observation: as the environment gives it, ``[*observation]`` or ``[N, *observation]``;
                where it has named parts, a mapping of these.
            sample: draw the action; by default it is the likeliest one.
            generator: draws; by default torch's own.

        Returns:
            As the environment takes it, ``[*action]`` or ``[N, *action]``.

        Raises:
            ContractError: the observation has another shape than the environment's.
        """
        batch, is_one = self._batch_of(observation)
        seen = torch.from_numpy(self._raw.observations(batch)).to(self._device)
        params = self.params(seen)
        drawn, likeliest = self.distribution.sample, self.distribution.mode
        action = drawn(params, generator) if sample else likeliest(params)
        given = self._raw.actions(action.cpu().numpy(), len(batch))
        return given[0] if is_one else given

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _batch_of(self, observation: Any) -> tuple[np.ndarray, bool]:
        layout = self.spaces.layout
        if layout is not None and isinstance(observation, Mapping):
            parts = {name: np.asarray(part) for name, part in observation.items()}
            first, shape = next(iter(layout.fields.items()))
            is_one = first in parts and parts[first].ndim == len(shape)
            return layout.pack({k: v[None] if is_one else v for k, v in parts.items()}), is_one
        array = np.asarray(observation)
        is_one = array.ndim == len(self._raw.shape)
        return (array[None] if is_one else array), is_one

    def save(self, path: str | Path) -> Path:
        """Write weights, spaces and the settings of the networks to one safetensors file.

        Raises:
            UsageError: the file cannot be written.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = Path(path)
        raw = self.spaces.raw
        described = {
            "format": _FORMAT,
            "name": self.name,
            "observation": _written_space(self.spaces.observation),
            "action": _written_space(self.spaces.action),
            "raw": None
            if raw is None
            else {
                "observation": _written_space(raw.observation),
                "action": _written_space(raw.action),
                "rescale": raw.rescale,
            },
            "layout": None
            if self.spaces.layout is None
            else {name: list(shape) for name, shape in self.spaces.layout.fields.items()},
            "agent": {**plain(self._config), **_STANDALONE},
            "squash": self._squash,
            "clip": self._clip,
        }
        weights = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(weights, path, {_METADATA: json.dumps(described)})
        except (OSError, SafetensorError) as error:
            said = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot write {path}: {said}") from error
        return path

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read what :meth:`save` wrote; bodies of plugins have to be installed.

        Raises:
            UsageError: there is no such file, or it holds no policy.
            ConfigError: its networks cannot be built here.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), "pt") as file:
                metadata = file.metadata() or {}
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            described = json.loads(metadata[_METADATA])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            reason = "" if isinstance(error, KeyError) else f": {error}"
            raise UsageError(
                f"{path} holds no policy{reason}; name a file that Policy.save wrote"
            ) from error
        if described["format"] != _FORMAT:
            raise UsageError(
                f"{path} was written by a newer plugrl (format {described['format']}); upgrade"
            )
        spaces = _read_spaces(described)
        agents = build_agents(
            {described["name"]: spaces},
            {AgentConfig.default_entry: described["agent"]},
            critic=False,
            squash=described["squash"],
        )
        policy = cls(agents.policies[described["name"]], squash=described["squash"])
        policy._clip = described["clip"]
        for name in ("mean", "scale"):
            policy.register_buffer(name, weights.get(name))
        try:
            policy.load_state_dict(weights)
        except RuntimeError as error:
            raise UsageError(
                f"{path} does not fit the networks that it names: a body of a plugin has changed; "
                "install the version that it was saved with"
            ) from error
        return policy


#: Settings of an agent that mean nothing without its run.
_STANDALONE: Mapping[str, Any] = {
    "policy": None,
    "load_from": None,
    "load_policy": None,
    "load_parts": [],
}


def _raw_of(spaces: AgentSpaces) -> Spaces:
    raw = spaces.raw or RawSpaces(spaces.observation, spaces.action)
    return Spaces(
        "of the policy", raw.observation, raw.action, rescale=raw.rescale, layout=spaces.layout
    )


def _read_spaces(described: Mapping[str, Any]) -> AgentSpaces:
    raw, layout = described["raw"], described["layout"]
    return AgentSpaces(
        _read_space(described["observation"]),
        _read_space(described["action"]),
        None if layout is None else Layout({name: tuple(shape) for name, shape in layout.items()}),
        raw=None
        if raw is None
        else RawSpaces(
            _read_space(raw["observation"]), _read_space(raw["action"]), rescale=raw["rescale"]
        ),
    )


def _written_space(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """A space as plain values; only those that networks can take occur."""
    kinds = gymnasium.spaces
    if isinstance(space, kinds.Box):
        return {
            "type": "Box",
            "low": _written_bound(space.low),
            "high": _written_bound(space.high),
            "shape": list(space.shape),
            "dtype": str(space.dtype),
        }
    if isinstance(space, kinds.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, kinds.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
        }
    if isinstance(space, kinds.MultiBinary):
        return {"type": "MultiBinary", "n": list(space.shape)}
    raise ConfigError(f"a {type(space).__name__} cannot be written down")


def _written_bound(bound: np.ndarray) -> Any:
    """One number where all are equal, as of images."""
    return bound.flat[0].item() if bound.size and (bound == bound.flat[0]).all() else bound.tolist()


def _read_space(written: Mapping[str, Any]) -> gymnasium.Space[Any]:
    kinds = gymnasium.spaces
    match written["type"]:
        case "Box":
            dtype, shape = np.dtype(written["dtype"]), tuple(written["shape"])
            low, high = (
                np.broadcast_to(np.asarray(written[name], dtype), shape).copy()
                for name in ("low", "high")
            )
            return kinds.Box(low, high, shape, dtype)
        case "Discrete":
            return kinds.Discrete(written["n"], start=written["start"])
        case "MultiDiscrete":
            return kinds.MultiDiscrete(written["nvec"], start=written["start"])
        case "MultiBinary":
            return kinds.MultiBinary(written["n"])
    raise UsageError(f"a policy acts in a space {written['type']!r}, which is not known; upgrade")
