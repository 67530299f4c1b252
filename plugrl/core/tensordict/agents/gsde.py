"""``GsdeHead``: generalised state-dependent exploration, noise that is a function of the features.

With features ``z`` of the layers below, ``W`` a matrix of noise and ``log_std`` trained weights of
its shape, an action is ::

    W ~ Normal(0, exp(log_std)), drawn once for many steps
    action = mean(z) + z W

so that within these steps equal observations bring equal actions, where noise of each step makes an
actuator tremble. Over all ``W``, an action is normal: its density, and all that a loss asks for, is
that of ``Normal(mean(z), sqrt(z^2 exp(log_std)^2))``. The features get no gradient from the noise.

Source: Raffin et al., arXiv 2005.05719, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from plugrl.core.tensordict.agents.parts import layers

#: Keeps variances above 0 where all features are 0; that of Stable-Baselines3.
_LEAST_VARIANCE = 1e-6


class GsdeHead(nn.Module):
    """Means of actions, and logarithms of the deviations that the noise has at the features.

    Args:
        features: what a body gives.
        size: the numbers of an action.
        hidden: widths of hidden layers, of whose features the noise is a function.
        activation: what follows each of them.
        log_std_init: of the weights of the noise, at first.
        expln: let deviations above 1 grow with the logarithm of ``log_std``, not with its
            exponential.
        mean_bound: means are kept within it; None: anywhere. A tanh maps those far out to one
            action, whatever the noise.
    """

    def __init__(
        self,
        features: int,
        size: int,
        *,
        hidden: Sequence[int],
        activation: str,
        log_std_init: float,
        expln: bool = False,
        mean_bound: float | None = None,
    ) -> None:
        super().__init__()
        last = hidden[-1] if hidden else features
        self.hidden = nn.Sequential(*layers(features, hidden, activation))
        self.mean = nn.Linear(last, size)
        self.log_std = nn.Parameter(torch.full((last, size), log_std_init))
        self.expln = expln
        self.mean_bound = mean_bound

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``[..., features]`` to means and logarithms of deviations, ``[..., 2 size]``."""
        latent = self.hidden(features)
        mean = self.mean(latent)
        if self.mean_bound is not None:
            mean = mean.clamp(-self.mean_bound, self.mean_bound)
        return torch.cat([mean, self._variance(latent).log() / 2], -1)

    def exploration_matrices(self, drawn: torch.Tensor) -> torch.Tensor:
        """Standard normal numbers ``[N, *log_std.shape]``, scaled to matrices ``W``."""
        return drawn * self._weight_std()

    def noise(self, features: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
        """``z W`` in units of its deviation, ``[N, size]``: standard normal over all ``W``.

        Args:
            features: ``[N, features]``.
            matrices: as :meth:`exploration_matrices` gives them.
        """
        latent = self.hidden(features)
        noise = torch.bmm(latent.unsqueeze(1), matrices).squeeze(1)
        return noise / self._variance(latent).sqrt()

    def _variance(self, latent: torch.Tensor) -> torch.Tensor:
        # Detached: what the mean is computed from is not bent to make the noise larger or smaller.
        return latent.detach().square() @ self._weight_std().square() + _LEAST_VARIANCE

    def _weight_std(self) -> torch.Tensor:
        if not self.expln:
            return self.log_std.exp()
        # Each branch sees only what it is taken for, since one that overflows has no gradient.
        above = self.log_std.clamp(min=0).log1p() + 1
        return torch.where(self.log_std > 0, above, self.log_std.clamp(max=0).exp())
