"""Generalised advantage estimation with the value head of the trained model.

Source: arXiv 1506.02438, equations 11 and 16, over the trained tokens of a row, in PPO's form
(arXiv 1707.06347, equations 11 and 12). With V_t the value before trained token t, 0 behind the
last one, and r_t its reward: delta_t = r_t + gamma V_(t+1) - V_t, A_t = delta_t + gamma lambda
A_(t+1), and the value head learns the return A_t + V_t. Tokens between turns, which are not
trained, are passed over. The end of a row is the end of the episode, also where its answer was cut
off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.component import traits
from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ContractError
from plugrl.core.estimators import gae as generalised_advantage
from plugrl.core.estimators import whiten
from plugrl.core.text.learn.advantages import rewards_of_tokens

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch


@dataclass
class GaeConfig:
    """Options of the advantage ``gae``."""

    gamma: float = described(1.0, "discount of rewards, by trained tokens", at_least=0, at_most=1)
    lam: float = described(
        0.95, "weight of longer returns: 0 one step, 1 the whole return", at_least=0, at_most=1
    )
    normalize: bool = described(True, "subtract the mean and divide by the deviation of the batch")
    epsilon: float = described(1e-8, "added to the deviation", at_least=0, at_most=1)


@traits(Config=GaeConfig, reads=(), needs=("values",))
def gae(
    rewards: torch.Tensor,
    group: torch.Tensor,
    run: torch.Tensor,
    valid: torch.Tensor,
    batch: Batch,
    config: Any,
) -> torch.Tensor:
    """Advantages of the trained tokens, [R, T]; ``batch.values["returns"]`` gets the returns.

    Raises:
        ContractError: the batch has no ``old_values``, because nothing has a value head.
    """
    values = batch.values.get("old_values")
    if values is None:
        raise ContractError(
            "advantage gae needs batch.values['old_values'], which a self-hosted trainer takes "
            "from the value head; choose another trainer.algorithm.advantage"
        )
    mask = (batch.values["loss_mask"] != 0) & valid[:, None]
    values = torch.where(mask, values, 0.0)
    token_rewards = rewards_of_tokens(batch)
    advantages = generalised_advantage(token_rewards, values, config.gamma, config.lam, valid=mask)
    batch.values["returns"] = advantages + values
    return whiten(advantages, mask, config.epsilon) if config.normalize else advantages
