"""``Learner``: the update of one policy, from the rows of a batch to its new weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDict
from torchrl.objectives.common import LossModule
from torchrl.objectives.value import ValueEstimatorBase

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.operators import PARAMS
from plugrl.core.tensordict.learn.compiled_loss import CompiledLoss
from plugrl.core.tensordict.learn.loss_contract import (
    check_losses,
    load_targets_state,
    move_targets,
    targets_state,
    total_loss,
)
from plugrl.core.tensordict.learn.optimizer import AgentOptimizer

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

    #: Whether minibatches have different numbers of rows.
    sizes_differ: ClassVar[bool] = True
    #: Whether a compiled graph may hold the step of the optimizer too.
    steps_in_graph: ClassVar[bool] = True

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
        self._compiled = None
        if compiled:
            self._compiled = CompiledLoss(
                self.loss_module,
                self.optimizer.learning,
                self.max_grad_norm,
                optimizer=self.optimizer if self.steps_in_graph else None,
                dynamic=self.sizes_differ,
            )

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
                "agent's; return GeneralisedAdvantage(self.agent, rl.gamma, rl.lmbda) instead, or "
                "write ppo.implementation: plugrl"
            )
        of_torchrl = isinstance(self._gae, ValueEstimatorBase)
        with torch.no_grad():
            answer = self._gae(batch, **(self._value_parameters() if of_torchrl else {}))
        return answer if isinstance(answer, dict) else {}

    def learn_batch(
        self,
        batch: TensorDict,
        order: np.random.Generator,
        *,
        epochs: int,
        minibatch_size: int | None,
        reads_next: bool,
        not_finite: NotFinite,
    ) -> dict[str, float]:
        """Estimate the advantages of a batch ``[R, T]`` and learn from its valid steps.

        Args:
            batch: as a collector gives it; advantages are written into it.
            order: shuffles its steps.
            epochs: how often all are passed over.
            minibatch_size: steps of one optimizer step; None: all.
            reads_next: whether the loss reads what followed a step, once its advantage is there.
            not_finite: see :meth:`learn`.

        Returns:
            What :meth:`learn` and :meth:`estimate` give; nothing where no step is valid.
        """
        estimates = self.estimate(batch)
        if not reads_next and "advantage" in batch:
            batch = batch.exclude("next")
        rows = valid_rows(batch)
        if rows.batch_size[0] == 0:
            return {}
        report = self.learn(
            rows,
            order,
            epochs=epochs,
            minibatch_size=minibatch_size or rows.batch_size[0],
            not_finite=not_finite,
        )
        return {**report, **estimates}

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

        Args:
            rows: ``[rows]``, with what :meth:`estimate` wrote.
            order: shuffles them.
            epochs: how often.
            minibatch_size: rows of one optimizer step.
            not_finite: called with the name and value of a gradient norm that is not finite; the
                weights stay as they were.

        Returns:
            Means over the minibatches of what the loss module gave, and of the gradient norm
            before it was clipped.
        """
        self._add_params(rows)
        means = Means()
        for _ in range(epochs):
            for minibatch in minibatches(rows, minibatch_size, order):
                losses, norms = self._optimize(minibatch)
                norm = norms[self.agent.name]
                if not math.isfinite(norm):
                    not_finite("gradient norm", norm)
                move_targets(self.loss_module)
                means.add(losses)
                means.add({"grad_norm": norm})
        return means.take()

    def _optimize(
        self, minibatch: TensorDict, agents: Collection[str] | None = None, **options: Any
    ) -> tuple[Mapping[str, torch.Tensor], dict[str, float]]:
        """One optimizer step; give what the loss module gave, and norms as the optimizer does.

        Args:
            minibatch: the rows.
            agents: whose step it is; None: that of all.
            options: what the loss module is called with besides.
        """
        losses = self._backward(minibatch, agents, **options)
        if self._compiled is not None and self._compiled.optimizer is not None:
            return losses, {agent: norm.item() for agent, norm in self._compiled.norms.items()}
        # Clips the gradients, where the compiled graph has not, then steps.
        return losses, self.optimizer.step(self.max_grad_norm, agents, clipped=self._clipped)

    @property
    def _clipped(self) -> Mapping[str, torch.Tensor] | None:
        """Norms of the gradients that a compiled graph has clipped; None: they are not clipped."""
        return None if self._compiled is None else self._compiled.norms

    def _backward(
        self, minibatch: TensorDict, agents: Collection[str] | None = None, **options: Any
    ) -> Mapping[str, torch.Tensor]:
        """Set the gradients of the losses of a minibatch; give what the loss module gave.

        Where a compiled graph holds the step of the optimizer, it was taken too.

        Args:
            minibatch: the rows.
            agents: of which gradients are needed; None: of all.
            options: what the loss module is called with besides.
        """
        if self._compiled is not None:
            compiled = self._compiled(minibatch, agents, **options)
            if compiled is not None:
                return compiled
            self._compiled = None
        losses: Mapping[str, torch.Tensor] = self.loss_module(minibatch, **options)
        self._differentiate(losses)
        return losses

    def _differentiate(self, losses: Mapping[str, torch.Tensor]) -> None:
        """Set the gradients of what the loss module gave."""
        self.optimizer.zero_grad()
        backward = getattr(self.loss_module, "backward", None)
        if backward is not None:
            backward(losses)
        else:
            self._check(losses)
            torch.autograd.backward(total_loss(losses))

    def _check(self, losses: Any) -> None:
        """Refuse what cannot be differentiated, the first time."""
        if not self._is_checked:
            check_losses(losses, self.loss_module)
            self._is_checked = True

    def _add_params(self, rows: TensorDict) -> None:
        # A penalty on the distance from the collecting policy reads its distributions; before the
        # first step, the policy is that one.
        keys = getattr(self.loss_module, "in_keys", ())
        if PARAMS in keys and PARAMS not in rows:
            with torch.no_grad():
                rows.set(PARAMS, self.agent.policy(rows["observation"]))

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


class Means:
    """Means of numbers by name, over what was added since they were last taken."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, numbers: Mapping[str, Any]) -> None:
        """Add numbers, or tensors, of which those with several elements count as their mean."""
        for name, value in numbers.items():
            number = value
            if isinstance(value, torch.Tensor):
                # TorchRL's penalty gives its divergences row by row.
                number = value.detach().float().mean() if value.ndim else value.detach()
                # Copied, as a loss module may give a buffer. Elsewhere a look would be waited for.
                number = number.item() if number.device.type == "cpu" else number.float().clone()
            if name in self._sums:
                self._sums[name] += number
                self._counts[name] += 1
            else:
                self._sums[name], self._counts[name] = number, 1

    def take(self) -> dict[str, float]:
        """The means, which begin anew."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means


def minibatches(rows: TensorDict, size: int, order: np.random.Generator) -> Iterator[TensorDict]:
    """All rows once, shuffled, in parts near ``size`` that differ by at most one row."""
    shuffled = rows[torch.from_numpy(order.permutation(rows.batch_size[0]))]
    yield from parts_near(shuffled, size)


def parts_near(rows: TensorDict, size: int) -> Sequence[TensorDict]:
    """Rows in their order, in parts near ``size`` that differ by at most one row."""
    count = rows.batch_size[0]
    parts = max(1, round(count / size))
    small, larger = divmod(count, parts)
    sizes = [small + 1] * larger + [small] * (parts - larger)
    return rows.split(sizes) if parts > 1 else (rows,)


def valid_rows(batch: TensorDict) -> TensorDict:
    """The rows of a batch ``[R, T]`` that may be learned from, as ``[rows]``.

    What says which these are is left out.
    """
    valid = batch["valid"]
    batch = batch.exclude("valid", "acting", "waiting")
    return batch.reshape(-1) if bool(valid.all()) else batch[valid]
