"""``ActionMask``: choices that an observation rules out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.distributions.discrete import Categorical, MultiCategorical
from plugrl.core.tensordict.environment.layout import ACTION_MASK, Layout

if TYPE_CHECKING:
    from plugrl.core.tensordict.agents.distributions.distribution import ActionDistribution
    from plugrl.core.tensordict.environment.vector_environment import AgentSpaces


class ActionMask:
    """Puts -inf in the place of the logits of choices that are not allowed.

    A choice with one allowed value then has log-probability 0 and entropy 0.

    Args:
        layout: of observations, with a part ``action_mask``.
    """

    def __init__(self, layout: Layout) -> None:
        self._slice = layout.slices[ACTION_MASK]

    def torch(self, params: torch.Tensor, observation: torch.Tensor) -> torch.Tensor:
        """The logits ``[..., P]`` of observations ``[..., size]``, masked."""
        return params.masked_fill(observation[..., self._slice] <= 0.5, -torch.inf)

    def numpy(self, params: np.ndarray, observation: np.ndarray) -> np.ndarray:
        """The logits ``[N, P]`` of observations ``[N, size]``, masked, in a new array."""
        masked: np.ndarray = np.where(
            observation[:, self._slice] > 0.5, params, np.float32(-np.inf)
        )
        return masked


def mask_for(spaces: AgentSpaces, distribution: ActionDistribution) -> ActionMask | None:
    """The mask of an agent's actions; None: its observations have none.

    Raises:
        ConfigError: there is one, and it does not fit the actions.
    """
    layout = spaces.layout
    if layout is None or ACTION_MASK not in layout:
        return None
    wanted = (distribution.parameters,)
    discrete = isinstance(distribution, (Categorical, MultiCategorical))
    if not discrete or layout.fields[ACTION_MASK] != wanted:
        kind = "" if discrete else "; only Discrete and MultiDiscrete actions are masked"
        raise ConfigError(
            f"observations have an {ACTION_MASK} of shape {list(layout.fields[ACTION_MASK])}, and "
            f"actions are described by {wanted[0]} numbers{kind}"
        )
    return ActionMask(layout)
