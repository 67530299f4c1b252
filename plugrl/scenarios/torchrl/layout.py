"""Where the agents of a TorchRL environment stand in its TensorDicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.environment.spaces import WRAP, Spaces
from plugrl.core.tensordict.environment.vector_environment import AGENT
from plugrl.scenarios.torchrl.specs import Converter, converter

Key = tuple[str, ...]
_MASKS = ("mask", "action_mask")


@dataclass(frozen=True)
class EpisodeFlags:
    """The keys that say that an episode is over, of one place in the tree."""

    done: Sequence[Key] = ()
    terminated: Sequence[Key] = ()
    truncated: Sequence[Key] = ()


@dataclass(frozen=True)
class AgentSlot:
    """One agent: its keys, and its index along the agents' dimension of its group or None.

    Attributes:
        name: of the agent.
        index: None where the agent has entries of its own.
        observed_index: the same for what it observes, which may be common to all.
        rewarded_index: the same for its reward.
        own: ends of its own episode.
        outer: ends of the episode of all.
        mask: says where it takes part; None: everywhere.
    """

    name: str
    index: int | None
    action: Key
    observation: Key
    observed_index: int | None
    reward: Key
    rewarded_index: int | None
    own: EpisodeFlags
    outer: EpisodeFlags
    mask: Key | None
    observed: Converter
    acted: Converter
    spaces: Spaces


class Layout:
    """The agents of an environment.

    Args:
        environment: a subclass of ``EnvBase``.
        name: how messages call it.
        observation: name of the entry that networks see; null: ``observation``, ``pixels`` or the
            only one there is.
        rescale: networks act in [-1, 1] instead of within the bounds.
        groups: the names of the agents of each group.

    Raises:
        ConfigError: specs are of kinds that networks cannot take, or the entries are ambiguous.
    """

    def __init__(
        self,
        environment: Any,
        name: str,
        *,
        observation: str | None,
        rescale: bool,
        groups: Mapping[str, Sequence[str]],
    ) -> None:
        self.name = name
        self.batch: tuple[int, ...] = tuple(environment.batch_size)
        self.rows = int(np.prod(self.batch)) if self.batch else 1
        self._environment = environment
        self._wanted = observation
        self._rescale = rescale
        self._groups = groups
        self._observations = _keys(environment.full_observation_spec)
        self._rewards = [_key(key) for key in environment.reward_keys]
        self._dones = [_key(key) for key in environment.done_keys]
        actions = [_key(key) for key in environment.action_keys]
        self._check_actions(actions)
        self.places = [place for key in actions for place in self._places(key)]
        names = [place.name for place in self.places]
        if len(set(names)) < len(names):
            raise ConfigError(f"{name} has several agents of one name: {', '.join(names)}")

    def _check_actions(self, actions: Sequence[Key]) -> None:
        if not actions:
            raise ConfigError(f"{self.name} takes no action, so that nothing can be learned in it")
        parents = [key[:-1] for key in actions]
        twice = next((parent for parent in parents if parents.count(parent) > 1), None)
        if twice is not None:
            names = ", ".join(_key_name(key) for key in actions if key[:-1] == twice)
            raise ConfigError(
                f"{self.name} has an agent that acts through several entries ({names}); join them "
                "with a transform of yours in scenario.transforms"
            )

    def _places(self, action: Key) -> list[AgentSlot]:
        parent = action[:-1]
        spec = _without_batch(self._environment.full_action_spec[action], self.batch, self.name)
        count = self._count(parent)
        observation = self._observation(parent)
        reward = _nearest(self._rewards, parent)
        observed = self._environment.full_observation_spec[observation]
        observed = _without_batch(observed, self.batch, self.name)
        mask = next((key for key in self._observations if key == (*parent, "mask")), None)
        places = []
        for index in range(count or 1):
            name = self._agent(parent, count, index)
            own = None if count is None else index
            shared = None if observation[:-1] != parent else own
            who = f"{self.name} (agent {name!r})"
            seen = converter(
                observed if shared is None else observed[shared], f"{who}: observation"
            )
            acted = converter(spec if own is None else spec[own], f"{who}: action")
            places.append(
                AgentSlot(
                    name=name,
                    index=own,
                    action=action,
                    observation=observation,
                    observed_index=shared,
                    reward=reward,
                    rewarded_index=None if reward[:-1] != parent else own,
                    own=self._ends(parent),
                    outer=self._outer(parent),
                    mask=mask,
                    observed=seen,
                    acted=acted,
                    spaces=Spaces(
                        who, seen.space, acted.space, rescale=self._rescale, remedies=WRAP
                    ),
                )
            )
        return places

    def _count(self, parent: Key) -> int | None:
        """How many agents share the entries of a group; None: they are one agent's own."""
        if not parent:
            return None
        shape = tuple(self._environment.full_action_spec[parent].shape)[len(self.batch) :]
        if len(shape) > 1:
            raise ConfigError(
                f"{self.name} has agents along {len(shape)} dimensions in {_key_name(parent)!r}; "
                "one is what can be taken here"
            )
        return int(shape[0]) if shape else None

    def _agent(self, parent: Key, count: int | None, index: int) -> str:
        if not parent:
            return AGENT
        group = list(self._groups.get(parent[0], ())) if len(parent) == 1 else []
        if count is not None and len(group) == count:
            return str(group[index])
        return parent[-1] if count is None else f"{_key_name(parent)}_{index}"

    def _observation(self, parent: Key) -> Key:
        seen = [key for key in self._observations if key[-1] not in _MASKS]
        own = [key for key in seen if key[:-1] == parent] or [k for k in seen if len(k) == 1]
        if (*parent, "action_mask") in self._observations:
            raise ConfigError(
                f"{self.name} forbids some actions with action_mask, which policies here do not "
                "know; let the environment take every action"
            )
        names = [key[-1] for key in own]
        usual = [self._wanted] if self._wanted else ["observation", "pixels"]
        for wanted in usual:
            if wanted in names:
                return own[names.index(wanted)]
        if len(own) == 1 and not self._wanted:
            return own[0]
        there = ", ".join(names) or "none"
        raise ConfigError(
            f"{self.name} has no observation {self._wanted!r}; it has: {there}"
            if self._wanted
            else f"{self.name} has several observations ({there}); name one in "
            "scenario.observation, or join them with torchrl.envs:CatTensors"
            if own
            else f"{self.name} shows nothing to observe"
        )

    def _ends(self, parent: Key) -> EpisodeFlags:
        return _ends(key for key in self._dones if key[:-1] == parent)

    def _outer(self, parent: Key) -> EpisodeFlags:
        return _ends(
            key
            for key in self._dones
            if len(key) <= len(parent) and parent[: len(key) - 1] == key[:-1]
        )

    def flags(
        self, tensordict: TensorDictBase, keys: Sequence[Key], index: int | None
    ) -> np.ndarray:
        """Whether any of the keys is true, ``[rows]``."""
        found = np.zeros(self.rows, bool)
        for key in keys:
            found |= self._rows(tensordict.get(key), index).reshape(self.rows, -1).any(axis=1)
        return found

    def observation(self, tensordict: TensorDictBase, place: AgentSlot) -> np.ndarray:
        """What an agent sees, ``[rows, *observation]``."""
        tensor = tensordict.get(place.observation)
        if place.observed_index is not None:
            tensor = tensor.select(len(self.batch), place.observed_index)
        return place.spaces.observations(place.observed.array(tensor, (self.rows,)))

    def reward(self, tensordict: TensorDictBase, place: AgentSlot) -> np.ndarray:
        """What an agent earned, ``[rows]``."""
        reward = self._rows(tensordict.get(place.reward), place.rewarded_index)
        return reward.reshape(self.rows, -1).sum(axis=1).astype(np.float32)

    def present(self, tensordict: TensorDictBase, place: AgentSlot) -> np.ndarray:
        """Where an agent takes part, ``[rows]``."""
        if place.mask is None:
            return np.ones(self.rows, bool)
        return self.flags(tensordict, [place.mask], place.index)

    def write(self, tensordict: TensorDictBase, actions: Mapping[str, np.ndarray]) -> None:
        """Put the agents' actions, ``[rows, *action]`` in terms of the environment, in place."""
        grouped: dict[Key, list[torch.Tensor]] = {}
        for place in self.places:
            tensor = place.acted.tensor(actions[place.name], self.batch)
            grouped.setdefault(place.action, []).append(tensor)
        for place in self.places:
            parts = grouped.pop(place.action, None)
            if parts is not None:
                whole = parts[0] if place.index is None else torch.stack(parts, len(self.batch))
                tensordict.set(place.action, whole)

    def _rows(self, tensor: torch.Tensor, index: int | None) -> np.ndarray:
        if index is not None:
            tensor = tensor.select(len(self.batch), index)
        array: np.ndarray = tensor.detach().cpu().numpy()
        return array


def _ends(keys: Any) -> EpisodeFlags:
    found = list(keys)
    terminated = [key for key in found if key[-1].endswith("terminated")]
    truncated = [key for key in found if key[-1].endswith("truncated")]
    done = [key for key in found if key not in terminated and key not in truncated]
    return EpisodeFlags(done, terminated, truncated)


def _key(key: Any) -> Key:
    return (key,) if isinstance(key, str) else tuple(key)


def _keys(tree: Any) -> list[Key]:
    return [_key(key) for key in tree.keys(True, True)]


def _key_name(key: Key) -> str:
    return ".".join(key)


def _nearest(keys: Sequence[Key], parent: Key) -> Key:
    """The key of an agent's own place, or else of the nearest one above it."""
    above = [key for key in keys if key[:-1] == parent[: len(key) - 1]]
    return max(above or keys, key=len)


def _without_batch(spec: Any, batch: tuple[int, ...], name: str) -> Any:
    from torchrl.data import Stacked, StackedComposite

    if isinstance(spec, Stacked | StackedComposite):
        raise ConfigError(
            f"{name} has agents with different spaces in one group; give each a group of its own "
            "(group_map: MarlGroupMapType.ONE_GROUP_PER_AGENT)"
        )
    for _ in batch:
        spec = spec[0]
    return spec
