"""``GraphedLearner``: an update that never looks at a number before it is over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDict

from plugrl.core.tensordict.cuda_graph import GraphedFunction
from plugrl.core.tensordict.learn.learner import Learner, NotFinite, parts_near
from plugrl.core.tensordict.learn.loss_contract import move_targets

if TYPE_CHECKING:
    import numpy as np

#: Under this name, norms of gradients that are not finite are added up.
_LOST = "lost gradients"


class GraphedLearner(Learner):
    """Learns from batches that are always in the same memory; on a GPU as one CUDA graph.

    All of an update is in it: advantages, shuffling, losses, gradients, and the steps of the
    optimizer. Arguments are those of :class:`Learner`; ``gae`` has a method ``on_device``, or is
    None.
    """

    steps_in_graph: ClassVar[bool] = False

    _graphed: GraphedFunction | None = None
    _batch: TensorDict

    @staticmethod
    def takes(gae: Any) -> bool:
        """Whether advantages can be estimated without a look at them."""
        return gae is None or hasattr(gae, "on_device")

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
        """See the base class; steps whose gradient is not finite change nothing.

        ``not_finite`` is called once for all of them.
        """
        if self._graphed is None or not _same_memory(self._batch, batch):
            self._batch, self._order = batch, torch.Generator(batch.device or "cpu")

            def whole_update() -> None:
                self._update(batch, epochs, minibatch_size, reads_next)

            self._graphed = GraphedFunction("the update", whole_update, [self._order])
        self._order.manual_seed(int(order.integers(2**62)))
        self._graphed()
        numbers = dict(zip(self._names, self._numbers.tolist(), strict=True))
        lost = numbers.pop(_LOST)
        if not math.isfinite(lost):
            not_finite("gradient norm", lost)
        return {name: number for name, number in numbers.items() if math.isfinite(number)}

    def _update(
        self, batch: TensorDict, epochs: int, minibatch_size: int | None, reads_next: bool
    ) -> None:
        estimates = {} if self._gae is None else self._gae.on_device(batch)
        given = batch.exclude("valid") if reads_next else batch.exclude("valid", "next")
        # In the order of time, as the steps lie in memory.
        rows = given.transpose(0, 1).reshape(-1)
        self._add_params(rows)
        count = rows.batch_size[0]
        sums: dict[str, torch.Tensor] = {}
        steps = 0
        for _ in range(epochs):
            order = torch.rand(count, generator=self._order, device=rows.device).argsort()
            for minibatch in parts_near(rows[order], minibatch_size or count):
                reported = self._step(minibatch)
                sums = {name: sums.get(name, 0) + value for name, value in reported.items()}
                steps += 1
        report = {name: total / steps for name, total in sums.items()} | estimates
        self._names = list(report)
        numbers = torch.stack([value.float() for value in report.values()])
        if not hasattr(self, "_numbers"):
            self._numbers = numbers
        else:
            self._numbers.copy_(numbers)

    def _step(self, minibatch: TensorDict) -> Mapping[str, torch.Tensor]:
        losses = self._backward(minibatch)
        norms = self.optimizer.step_on_device(self.max_grad_norm, clipped=self._clipped)
        norm = norms[self.agent.name]
        move_targets(self.loss_module)
        means = {name: value.detach().float().mean() for name, value in losses.items()}
        # One that is not finite makes this sum so too.
        return {**means, "grad_norm": norm, _LOST: torch.where(norm.isfinite(), 0.0, norm)}


def _same_memory(one: TensorDict, other: TensorDict) -> bool:
    return bool(one["observation"].data_ptr() == other["observation"].data_ptr())
