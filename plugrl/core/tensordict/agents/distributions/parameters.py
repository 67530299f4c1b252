"""A distribution over actions as one of torch's, for TorchRL."""

from __future__ import annotations

from typing import Any

import torch

from plugrl.core.tensordict.agents.distributions.distribution import ActionDistribution


class ParametersDistribution(torch.distributions.Distribution):
    """An ``ActionDistribution`` at given parameters, as a distribution of torch.

    Args:
        params: ``[..., P]``.
        of: what the parameters describe.
    """

    arg_constraints: dict[str, Any] = {}

    def __init__(self, params: torch.Tensor, of: ActionDistribution) -> None:
        self.params = params
        self.of = of
        self._drawn: tuple[torch.Tensor, torch.Tensor] | None = None
        self._entropy: torch.Tensor | None = None
        super().__init__(params.shape[:-1], torch.Size(of.action_shape), validate_args=False)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether actions can be differentiated: those that are real numbers can."""
        return bool(self.of.action_dtype.kind == "f")

    @property
    def mode(self) -> torch.Tensor:
        """The likeliest action."""
        return self.of.mode(self.params)

    @property
    def deterministic_sample(self) -> torch.Tensor:
        """What TorchRL takes where it does not explore: the mode."""
        return self.mode

    @property
    def logits(self) -> torch.Tensor:
        """Log-probabilities of all choices, where actions are one of several."""
        return self._of_choices("logits")

    @property
    def probs(self) -> torch.Tensor:
        """Probabilities of all choices, where actions are one of several."""
        return self._of_choices("probs").exp()

    def _of_choices(self, name: str) -> torch.Tensor:
        try:
            return self.of.logits(self.params)
        except NotImplementedError as error:
            # As for any attribute that is missing: what reads it may do without.
            raise AttributeError(f"no {name}: {error}") from None

    def rsample(self, sample_shape: Any = ()) -> torch.Tensor:
        """Actions that carry gradients, with ``sample_shape`` in front."""
        params = self.params.expand(*sample_shape, *self.params.shape)
        action, log_prob = self.of.rsample(params)
        # The density of this very action is asked for next, and is exact as it was drawn.
        self._drawn = (action, log_prob)
        return action

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        """Actions without gradient, with ``sample_shape`` in front."""
        with torch.no_grad():
            return self.of.sample(self.params.expand(*sample_shape, *self.params.shape))

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of actions."""
        if self._drawn is not None and self._drawn[0] is value:
            return self._drawn[1]
        # Losses ask for both, and both together cost little more than one.
        params = self.params
        drawn = value.ndim - len(self.of.action_shape) - (params.ndim - 1)
        if drawn > 0:
            return self.of.log_prob(params.expand(*value.shape[:drawn], *params.shape), value)
        log_prob, self._entropy = self.of.log_prob_and_entropy(params, value)
        return log_prob

    def entropy(self) -> torch.Tensor:
        """Entropy in nats."""
        return self.of.entropy(self.params) if self._entropy is None else self._entropy


@torch.distributions.register_kl(ParametersDistribution, ParametersDistribution)  # type: ignore[no-untyped-call, untyped-decorator]
def _divergence(one: ParametersDistribution, other: ParametersDistribution) -> torch.Tensor:
    return one.of.divergence(one.params, other.params)
