"""``OffPolicyLearner``: what trains one policy on minibatches of old steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from plugrl.core.tensordict.collect.replay_buffer import Key, ReplayBuffer
from plugrl.core.tensordict.learn.learner import Learner, NotFinite, groups_of_agent, groups_of_loss
from plugrl.core.tensordict.learn.loss_contract import check_losses, total_loss
from plugrl.core.tensordict.learn.optimizer import AgentOptimizer

if TYPE_CHECKING:
    from plugrl.core.tensordict.agents.agent import Agent
    from plugrl.core.tensordict.collect.rows import Rows


class OffPolicyLearner(Learner):
    """The loss, optimizer and old steps of one policy.

    Args:
        agent: the networks.
        loss_module: maps a minibatch to losses; ``update_targets()`` moves its target networks.
            Parameters of its own, such as those of critics, are trained too.
        buffer: the old steps.
        rl: the section.
    """

    def __init__(self, agent: Agent, loss_module: nn.Module, buffer: ReplayBuffer, rl: Any) -> None:
        lr = float(rl.lr)
        groups = [*groups_of_agent(agent, lr), *groups_of_loss(agent, loss_module, lr)]
        super().__init__(
            agent, loss_module, None, AgentOptimizer(groups, eps=rl.adam_eps), rl.max_grad_norm
        )
        self.buffer = buffer
        self.updates = 0
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}

    def update(
        self, losses: Mapping[str, torch.Tensor], not_finite: NotFinite, *, policy: bool = True
    ) -> None:
        """One optimizer step along the sum of the losses.

        Args:
            losses: what the loss module gave.
            not_finite: called for a gradient norm that is not finite.
            policy: whether the policy moves; if not, its weights and moments stay as they are.
        """
        if not self._is_checked:
            check_losses(losses, self.loss_module)
            self._is_checked = True
        self.optimizer.zero_grad()
        torch.autograd.backward(total_loss(losses))
        agents = None if policy else self.optimizer.active - {self.agent.name}
        for name, norm in self.optimizer.step(self.max_grad_norm, agents).items():
            if not math.isfinite(norm):
                not_finite(f"gradient norm of {name}", norm)
        self.updates += 1
        for name, value in losses.items():
            # Copied, as a loss module may give a parameter or a buffer.
            number = torch.as_tensor(value).detach()
            number = number if number.ndim == 0 else number.float().mean()
            sums = self._sums.get(name)
            self._sums[name] = number.clone() if sums is None else sums.add_(number)
            self._counts[name] = self._counts.get(name, 0) + 1

    def report(self) -> dict[str, float]:
        """Means of what the loss module gave since the last report, and the buffer's size."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return {**means, "updates": self.updates, "buffer": len(self.buffer)}

    def state_dict(self) -> dict[str, Any]:
        """Optimizer, critics and target networks, old steps and generators."""
        generator = getattr(self.loss_module, "generator", None)
        return {
            **super().state_dict(),
            "buffer": self.buffer.state_dict(),
            "updates": self.updates,
            "generator": None if generator is None else generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        super().load_state_dict(state)
        self.buffer.load_state_dict(state["buffer"])
        self.updates = int(state["updates"])
        generator = getattr(self.loss_module, "generator", None)
        if generator is not None:
            generator.set_state(state["generator"])


def steps_of(rows: Rows, part: slice) -> tuple[dict[Key, torch.Tensor], torch.Tensor]:
    """Collected steps ``part`` as the replay buffer takes them, and which of them are real."""
    assert rows.action is not None, "no step was taken"

    def flat(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array[part]).flatten(0, 1)

    steps: dict[Key, torch.Tensor] = {
        "observation": flat(rows.observation[:-1]),
        "action": flat(rows.action),
        ("next", "observation"): flat(rows.next),
        ("next", "reward"): flat(rows.reward).unsqueeze(-1),
        ("next", "terminated"): flat(rows.terminated).unsqueeze(-1),
    }
    return steps, flat(rows.real)
