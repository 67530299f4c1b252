"""Which distribution fits a space of actions."""

from __future__ import annotations

import math
from typing import Any, Literal

import gymnasium
import numpy as np

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.distributions.continuous import Normal, SquashedNormal
from plugrl.core.tensordict.agents.distributions.deterministic import SquashedPoint
from plugrl.core.tensordict.agents.distributions.discrete import (
    Bernoulli,
    Categorical,
    MultiCategorical,
)
from plugrl.core.tensordict.agents.distributions.distribution import ActionDistribution, Array
from plugrl.core.tensordict.environment.vector_environment import space_text

#: Widths of bounds within which float32 can scale actions and their gradients.
_WIDTHS = (1e-30, 1e30)
#: Whether continuous actions are bent into their bounds by a tanh, and then drawn or certain.
Squash = bool | Literal["deterministic"]


def distribution_for(space: gymnasium.Space[Any], *, squash: Squash = False) -> ActionDistribution:
    """The distribution over the actions of a space.

    Args:
        space: ``Discrete``, ``MultiDiscrete``, ``MultiBinary`` or ``Box`` of real numbers.
        squash: bound the actions of a ``Box`` by a tanh; by default they are those of a normal
            distribution, which environments clip. ``"deterministic"``: nothing is drawn.

    Raises:
        ConfigError: there is none for such a space.
    """
    spaces, shown = gymnasium.spaces, space_text(space)
    if math.prod(space.shape or ()) == 0:
        raise ConfigError(
            f"actions of {space_text(space)} consist of nothing; mend the action space"
        )
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(np.asarray(space.nvec), np.asarray(space.start))
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(tuple(space.shape))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
        if not squash:
            return Normal(low, high)
        wrong = _not_squashable(low, high)
        if wrong is None:
            if squash == "deterministic":
                return SquashedPoint(low, high)
            return SquashedNormal(low, high)
        finite = np.isfinite(low).all() and np.isfinite(high).all()
        bounded = "from -1 to 1 (scenario.actions=rescale does it)" if finite else _BOUNDED
        raise ConfigError(
            f"actions of {shown} cannot be squashed into bounds that are {wrong}; let the "
            f"environment take actions {bounded}, or take a trainer that does not squash"
        )
    raise ConfigError(
        f"actions of {shown} are not supported; wrap the environment so that they are "
        "Discrete, MultiDiscrete, MultiBinary or a Box of real numbers"
    )


#: What helps where there is nothing to rescale to.
_BOUNDED = "within bounds, by a gymnasium.ActionWrapper in scenario.wrappers"


def _not_squashable(low: Array, high: Array) -> str | None:
    """What is wrong with bounds that a tanh cannot bend actions into; None: nothing."""
    if not (low < high).all():
        return "equal or the wrong way round"
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return "not finite"
    width = high.astype(np.float64) - low
    if (width > _WIDTHS[1]).any():
        return f"further apart than {_WIDTHS[1]:g}"
    return f"closer than {_WIDTHS[0]:g}" if (width < _WIDTHS[0]).any() else None
