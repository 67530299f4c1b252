"""``Learner``: what trains one policy on the rows of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torchrl.objectives.common import LossModule

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.operators import PARAMS
from plugrl.core.tensordict.learn.compiling import CompiledLoss
from plugrl.core.tensordict.learn.loss_contract import (
    check_losses,
    load_targets_state,
    move_targets,
    targets_state,
    total_loss,
)
from plugrl.core.tensordict.learn.optimizer import AgentOptimizer, ParameterGroup

if TYPE_CHECKING:
    import numpy as np

    from plugrl.core.tensordict.agents.agent import Agent

#: Called with the name and value of what is not finite; it raises, or the step is left out.
NotFinite = Callable[[str, float], object]


class Learner:
    """The loss, advantages and optimizer of one policy.

    Args:
        agent: the networks.
        loss_module: gives losses (names that begin with ``loss_``) and metrics for rows.
        gae: writes ``advantage`` and ``value_target`` into a batch ``[R, T]`` and may give a dict
            of metrics; None: the loss needs none.
        optimizer: of the parameters.
        max_grad_norm: largest gradient norm of a step; None: any.
        compiled: whether the loss and its gradients go through ``torch.compile``.
    """

    def __init__(
        self,
        agent: Agent,
        loss_module: torch.nn.Module,
        gae: Any,
        optimizer: AgentOptimizer,
        max_grad_norm: float | None,
        *,
        compiled: bool = False,
    ) -> None:
        self.agent = agent
        self.loss_module = loss_module
        self.optimizer = optimizer
        self._gae = gae
        self.max_grad_norm = max_grad_norm
        self._is_checked = False
        self._compiled: CompiledLoss | None = None
        self.compile(compiled)

    @property
    def is_compiled(self) -> bool:
        """Whether the loss goes through ``torch.compile``; false where that failed."""
        return self._compiled is not None

    def compile(self, compiled: bool) -> None:
        """Let the loss go through ``torch.compile`` from now on, or no longer."""
        learning = self.optimizer.learning
        self._compiled = CompiledLoss(self.loss_module, learning) if compiled else None

    def estimate(self, batch: TensorDict) -> dict[str, float]:
        """Write the advantages of a batch ``[R, T]`` into it; give the metrics, if there are.

        Raises:
            ConfigError: agents take turns, and what estimates advantages does not know of it.
        """
        if self._gae is None:
            return {}
        if "waiting" in batch and not getattr(self._gae, "knows_turns", False):
            raise ConfigError(
                f"agents take turns, and {type(self._gae).__name__} takes each step for its own "
                "agent's; give GeneralisedAdvantage, such as with ppo.implementation: plugrl"
            )
        with torch.no_grad():
            answer = self._gae(batch, **self._value_parameters())
        return answer if isinstance(answer, dict) else {}

    def _value_parameters(self) -> dict[str, Any]:
        # TorchRL's functional losses hold the critic's parameters beside an empty network.
        module = self.loss_module
        if not isinstance(module, LossModule) or not getattr(module, "functional", False):
            return {}
        return {
            "params": module.critic_network_params.detach(),
            "target_params": module.target_critic_network_params,
        }

    def learn(
        self,
        rows: TensorDict,
        order: np.random.Generator,
        *,
        epochs: int,
        minibatch_size: int,
        not_finite: NotFinite,
    ) -> dict[str, float]:
        """Pass over the rows ``epochs`` times in minibatches of almost equal size.

        Returns:
            Means over the minibatches of what the loss module gave, and of the gradient norm
            before it was clipped.
        """
        self._add_params(rows)
        count = rows.batch_size[0]
        sizes = _sizes(count, minibatch_size)
        gathered: dict[str, list[torch.Tensor]] = {}
        norms: list[float] = []
        for _ in range(epochs):
            shuffled = rows[torch.from_numpy(order.permutation(count))]
            for minibatch in shuffled.split(sizes) if len(sizes) > 1 else (shuffled,):
                losses, norm = self._step(minibatch, not_finite)
                norms.append(norm)
                for name, value in losses.items():
                    number = torch.as_tensor(value).detach()
                    # Copied, as a loss module may give a buffer; TorchRL's penalty gives its
                    # divergences row by row.
                    number = number.float().mean() if number.ndim else number.clone()
                    gathered.setdefault(name, []).append(number)
        metrics = {
            name: float(torch.stack(values).float().mean()) for name, values in gathered.items()
        }
        return {**metrics, "grad_norm": sum(norms) / len(norms)}

    def _add_params(self, rows: TensorDict) -> None:
        # A penalty on the distance from the collecting policy reads its distributions; before the
        # first step, the policy is that one.
        keys = getattr(self.loss_module, "in_keys", ())
        if PARAMS in keys and PARAMS not in rows:
            with torch.no_grad():
                rows.set(PARAMS, self.agent.policy(rows["observation"]))

    def _step(
        self, minibatch: TensorDict, not_finite: NotFinite
    ) -> tuple[Mapping[str, torch.Tensor], float]:
        losses: Any = None if self._compiled is None else self._compiled(minibatch)
        if losses is None:
            self._compiled = None
            losses = self.loss_module(minibatch)
            self.optimizer.zero_grad()
            self._backward(losses)
        norm = self.optimizer.step(self.max_grad_norm)[self.agent.name]
        if not math.isfinite(norm):
            not_finite("gradient norm", norm)
        move_targets(self.loss_module)
        return losses, norm

    def _backward(self, losses: Any) -> None:
        backward = getattr(self.loss_module, "backward", None)
        if backward is not None:
            backward(losses)
            return
        if not self._is_checked:
            check_losses(losses, self.loss_module)
            self._is_checked = True
        total_loss(losses).backward()  # type: ignore[no-untyped-call]

    def state_dict(self) -> dict[str, Any]:
        """Moments of the optimizer, what the loss module keeps besides the weights, its targets."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "compiled": self.is_compiled,
            "loss": self._own_state(),
            "targets": targets_state(self.loss_module),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        if state["loss"]:
            self.loss_module.load_state_dict(state["loss"], strict=False)
        load_targets_state(self.loss_module, state.get("targets", {}))

    def _own_state(self) -> dict[str, torch.Tensor]:
        weights = {p.data_ptr() for p in self.agent.state_dict().values()}
        state = self.loss_module.state_dict()
        return {
            name: value
            for name, value in state.items()
            if isinstance(value, torch.Tensor) and value.data_ptr() not in weights
        }


def groups_of_agent(agent: Agent, lr: float) -> list[ParameterGroup]:
    """The agent's parameters, part by part."""
    return [
        ParameterGroup(agent.name, group.part, group.parameters, lr * group.lr_factor)
        for group in agent.parameter_groups()
    ]


def groups_of_loss(agent: Agent, loss_module: torch.nn.Module, lr: float) -> list[ParameterGroup]:
    """Parameters that a loss module has besides the agent's; they learn as critics do."""
    seen = {id(parameter) for parameter in agent.parameters()}
    own: dict[str, list[torch.nn.Parameter]] = {}
    for name, parameter in loss_module.named_parameters():
        if id(parameter) not in seen and parameter.requires_grad:
            own.setdefault(name.partition(".")[0], []).append(parameter)
    factor = float(agent.config["agent_lr_factor"]["critic"])
    return [
        ParameterGroup(f"{agent.name}/{part}", part, parameters, lr * factor)
        for part, parameters in own.items()
    ]


def _sizes(count: int, wanted: int) -> list[int]:
    """Sizes near ``wanted`` that add up to ``count`` and differ by at most one."""
    parts = max(1, round(count / wanted))
    small, larger = divmod(count, parts)
    return [small + 1] * larger + [small] * (parts - larger)
