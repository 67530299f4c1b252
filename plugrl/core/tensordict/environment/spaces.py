"""What networks see of an environment's spaces, and what its arrays are turned into for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatten_space

from plugrl.core.errors import ConfigError, ContractError, NonFiniteError
from plugrl.core.tensordict.environment.layout import Layout
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces, RawSpaces

_OWN = (
    "write a gymnasium.ObservationWrapper whose observations are a Box and name it in "
    "scenario.wrappers"
)
_FLATTEN = (
    "flatten it with scenario.wrappers=[gymnasium.wrappers:FlattenObservation], or keep some of "
    "its entries with gymnasium.wrappers:FilterObservation first"
)
_ACTIONS = (
    "write a gymnasium.ActionWrapper that takes a Box, Discrete, MultiDiscrete or MultiBinary and "
    "name it in scenario.wrappers"
)


#: What helps against numbers that are not finite, where ``scenario.wrappers`` are known.
WRAPPERS: Mapping[str, str] = {
    "observation": "mend the environment, or name a wrapper that repairs it in scenario.wrappers",
    "reward": "mend its reward, or bound it with a wrapper in scenario.wrappers",
}
#: What helps elsewhere.
WRAP = dict.fromkeys(WRAPPERS, "mend the environment, or wrap it so that its values stay finite")
_isfinite = np.isfinite


class Spaces:
    """The spaces of an environment as networks see them.

    Numbers are float32 or whole numbers from 0 on; images stay bytes.

    Args:
        name: how messages call the environment.
        observation: of one copy.
        action: of one copy.
        rescale: networks act in [-1, 1] instead of within the bounds of a Box.
        remedies: what helps where an observation or a reward is not finite.
        layout: the named parts of observations; None: they have none.

    Raises:
        ConfigError: a space is of a kind that networks cannot take; the text has the remedy.
    """

    def __init__(
        self,
        name: str,
        observation: spaces.Space[Any],
        action: spaces.Space[Any],
        *,
        rescale: bool = False,
        remedies: Mapping[str, str] = WRAPPERS,
        layout: Layout | None = None,
    ) -> None:
        self.name = name
        self._remedies = remedies
        seen, self._observed = _observation(name, observation)
        done, self._acted = _action(name, action, rescale)
        #: What networks see and do.
        self.agent = AgentSpaces(
            seen, done, layout, raw=RawSpaces(observation, action, rescale=rescale)
        )
        #: What the environment itself gives.
        self.raw = observation
        self.shape: tuple[int, ...] = seen.shape or ()
        self._is_float = np.dtype(seen.dtype).kind == "f"
        self._action_shape = done.shape or ()
        self._kinds = "f" if isinstance(done, spaces.Box) else "iub"

    def observations(self, batch: Any) -> np.ndarray:
        """A new array ``[N, *shape]`` of the dtype that networks see.

        Raises:
            ContractError: the environment gave arrays of another shape.
        """
        array = self._observed(batch)
        if array.shape[1:] != self.shape:
            raise ContractError(
                f"environment {self.name} gave observations of shape {array.shape[1:]}, and its "
                f"observation space has {self.shape}; mend its space or wrap it"
            )
        return array

    def actions(self, batch: np.ndarray, num_envs: int) -> np.ndarray:
        """What the copies are to be given for ``batch``, ``[N, *action]``.

        Raises:
            ContractError: the batch has another shape or type than the action space.
            NonFiniteError: an action is NaN or infinite.
        """
        if batch.shape != (num_envs, *self._action_shape) or batch.dtype.kind not in self._kinds:
            raise ContractError(
                f"environment {self.name} takes {num_envs} actions of {self.agent.action}, not an "
                f"array of {batch.dtype} with shape {batch.shape}; choose a trainer whose policies "
                "act in this space"
            )
        if self._kinds == "f" and not np.isfinite(batch).all():
            raise NonFiniteError(
                f"an action for environment {self.name} is NaN or infinite: the policy has "
                "diverged; lower rl.lr or set rl.max_grad_norm"
            )
        return self._acted(batch)

    def check(self, observation: np.ndarray, reward: np.ndarray | None, agent: str) -> None:
        """Refuse numbers that are not finite.

        Raises:
            NonFiniteError: the text names environment, agent and copy.
        """
        # Each step of a small environment is checked, and ``.all()`` takes three times as long.
        if self._is_float:
            flags = _isfinite(observation).tobytes()
            if flags != b"\1" * len(flags):
                self._refuse("observation", observation, agent)
        if reward is not None:
            flags = _isfinite(reward).tobytes()
            if flags != b"\1" * len(flags):
                self._refuse("reward", reward, agent)

    def _refuse(self, what: str, array: np.ndarray, agent: str) -> None:
        place = np.argwhere(~np.isfinite(array))[0]
        at = "".join(f"[{i}]" for i in place[1:])
        found = "NaN" if np.isnan(array[tuple(place)]) else "infinite"
        raise NonFiniteError(
            f"environment {self.name}: {what}{at} of agent {agent!r} in copy {place[0]} is "
            f"{found}; {self._remedies[what]}"
        )


def _observation(
    name: str, space: spaces.Space[Any]
) -> tuple[spaces.Space[Any], Callable[[Any], np.ndarray]]:
    if isinstance(space, spaces.Box):
        if space.dtype == np.uint8:
            return space, lambda batch: np.array(batch, np.uint8)
        return _float_box(space), lambda batch: np.array(batch, np.float32)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return _whole(name, space)
    if isinstance(space, spaces.MultiBinary):
        return space, lambda batch: np.array(batch, np.int8)
    kind = type(space).__name__
    raise ConfigError(
        f"environment {name} observes a {kind}, which networks cannot take; {_remedy(space)}"
    )


def _remedy(space: spaces.Space[Any]) -> str:
    """What makes an array of a space that is none: only what the space can be flattened with."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and _can_flatten(space):
        return _FLATTEN
    if not isinstance(space, spaces.Dict):
        return _OWN
    flat = [key for key, inner in space.spaces.items() if _can_flatten(inner)]
    if not flat:
        return _OWN
    rest = ", ".join(f"{key} ({type(space[key]).__name__})" for key in space if key not in flat)
    keys = f"kwargs: {{filter_keys: [{', '.join(flat)}]}}"
    return (
        f"leave out {rest}, which cannot be flattened, and flatten the rest with "
        f"scenario.wrappers=[{{path: gymnasium.wrappers:FilterObservation, {keys}}}, "
        "gymnasium.wrappers:FlattenObservation]"
    )


def _can_flatten(space: spaces.Space[Any]) -> bool:
    """Whether a wrapper makes one array of a space; of packages' or empty ones, none can."""
    try:
        flat = flatten_space(space)
    except (NotImplementedError, ValueError):
        return False
    return isinstance(flat, spaces.Box)


def _float_box(space: spaces.Box) -> spaces.Box:
    if space.dtype == np.float32:
        return space
    # Bounds of a wider type may overflow, which is infinity and right.
    with np.errstate(over="ignore"):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    return spaces.Box(low, high, space.shape, np.float32)


def _choices(space: spaces.Discrete | spaces.MultiDiscrete) -> spaces.Space[Any]:
    """The space with choices from 0 on."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    return spaces.MultiDiscrete(space.nvec, dtype=np.int64)


def _whole(
    name: str, space: spaces.Discrete | spaces.MultiDiscrete
) -> tuple[spaces.Space[Any], Callable[[Any], np.ndarray]]:
    start: Any = space.start
    count = space.n if isinstance(space, spaces.Discrete) else space.nvec
    is_moved = bool(np.any(start))

    def chosen(batch: Any) -> np.ndarray:
        given = np.array(batch, np.int64)
        choices = given - start if is_moved else given
        # Later it would only be an index that is out of bounds.
        if choices.shape[1:] == space.shape and not ((choices >= 0) & (choices < count)).all():
            outside = ((choices < 0) | (choices >= count)).reshape(len(choices), -1).any(axis=1)
            row = int(np.flatnonzero(outside)[0])
            raise ContractError(
                f"environment {name} gave the observation {given[row].tolist()} of {space} in "
                f"copy {row}; mend its space or wrap it"
            )
        return choices

    return _choices(space), chosen


def _action(
    name: str, space: spaces.Space[Any], rescale: bool
) -> tuple[spaces.Space[Any], Callable[[np.ndarray], np.ndarray]]:
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        seen = _choices(space)
        start, dtype = space.start, space.dtype
        if not np.any(start):
            # A copy: an environment may change its actions in place.
            return seen, lambda batch: batch.astype(dtype)
        return seen, lambda batch: (batch + start).astype(dtype, copy=False)
    if isinstance(space, spaces.MultiBinary):
        return space, lambda batch: batch.astype(np.int8)
    if not isinstance(space, spaces.Box):
        kind = type(space).__name__
        raise ConfigError(
            f"environment {name} acts in a {kind}, which networks cannot give; {_ACTIONS}"
        )
    if not rescale:
        return _float_box(space), _clipped(space)
    if not space.is_bounded():
        raise ConfigError(
            f"environment {name} has actions without bounds, to which nothing can be rescaled; "
            "write scenario.actions: clip, or bound them by a gymnasium.ActionWrapper in "
            "scenario.wrappers"
        )
    return spaces.Box(-1.0, 1.0, space.shape, np.float32), _rescaled(space)


def _clipped(space: spaces.Box) -> Callable[[np.ndarray], np.ndarray]:
    low, high, dtype = space.low, space.high, space.dtype
    is_whole = dtype is not None and dtype.kind in "iu"

    def clip(batch: np.ndarray) -> np.ndarray:
        within = np.minimum(np.maximum(np.rint(batch) if is_whole else batch, low), high)
        given: np.ndarray = within.astype(dtype, copy=False)
        return given

    return clip


def _rescaled(space: spaces.Box) -> Callable[[np.ndarray], np.ndarray]:
    clip = _clipped(space)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)

    def rescale(batch: np.ndarray) -> np.ndarray:
        # Clipped twice: what rounding takes beyond a bound too.
        # The width itself may be more than the largest number.
        share = (np.clip(batch, -1.0, 1.0).astype(np.float64) + 1.0) / 2
        return clip(low * (1 - share) + high * share)

    return rescale
