"""The contract of losses.

Run it with ``--plugrl-loss NAME``, or subclass :class:`LossContract` with an attribute
``plugrl_loss``. A loss gives as attribute ``conformance``: ``config``, its section, and
``prepare``, a function that adds to a batch what else it reads. A loss that ``reads`` the key
``preferred`` gets pairs of answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
import torch

from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, NEEDS, Loss, Metrics, WeightedLoss
from plugrl.testing.batches import PAIRS, ROWS, batch_of, trajectories, widened
from plugrl.testing.contract import ComponentContract

#: Loss, metrics and gradient of a batch.
Found = tuple[float, Metrics, torch.Tensor]
Run = Callable[[Batch], Found]


class LossContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_loss``."""

    kind = "loss"
    defaults: ClassVar[Mapping[str, Any]] = {"prepare": None}

    @pytest.fixture
    def loss(self, cls: Loss, section: Any) -> WeightedLoss:
        return WeightedLoss(cls, section)

    @pytest.fixture
    def run(self, loss: WeightedLoss) -> Run:
        """Loss, metrics and gradient as a train service computes them."""

        def found(batch: Batch) -> Found:
            batch = batch.copy()
            logp = (batch.values["old_log_probs"] * 1.1).detach().requires_grad_()
            for name in NEEDS:
                if name in loss.needs:
                    batch.values[name] = batch.values[name].detach().requires_grad_()
                else:
                    del batch.values[name]
            total, metrics = loss(logp, batch)
            inputs = [logp, *(batch.values[name] for name in loss.needs)]
            grads = torch.autograd.grad(total, inputs, allow_unused=True)
            filled = [torch.zeros_like(logp) if grad is None else grad for grad in grads]
            return float(total.detach()), metrics, torch.stack(filled)

        return found

    @pytest.fixture
    def batch(self, cls: Loss, example: Mapping[str, Any]) -> Batch:
        compares = "preferred" in (getattr(cls, "reads", None) or ())
        return batch_of(trajectories(PAIRS if compares else ROWS), example["prepare"])

    def test_loss_gradient_and_metrics_are_finite(self, run: Run, batch: Batch) -> None:
        total, metrics, gradient = run(batch)
        assert math.isfinite(total)
        assert torch.isfinite(gradient).all()
        assert gradient.abs().sum() > 0, "nothing is learned from this batch"
        assert all(map(math.isfinite, (x for pair in metrics.values() for x in pair)))

    def test_only_trained_tokens_have_a_gradient(self, run: Run, batch: Batch) -> None:
        _, _, gradient = run(batch)
        untrained = batch.values["loss_mask"] == 0
        assert (gradient[:, untrained] == 0).all()

    def test_what_is_not_trained_changes_nothing(self, run: Run, batch: Batch) -> None:
        other = batch.copy()
        untrained = batch.values["loss_mask"] == 0
        for name, value in batch.values.items():
            if value.is_floating_point() and name != LOSS_WEIGHTS:
                other.values[name] = torch.where(untrained, 0.75, value)
        self.compare(run(other), run(batch))

    def test_padding_changes_nothing(self, run: Run, batch: Batch) -> None:
        total, metrics, gradient = run(widened(batch, 3))
        self.compare((total, metrics, gradient[..., :-3]), run(batch))

    def test_micro_batches_add_up(self, run: Run, batch: Batch) -> None:
        groups = batch.metadata["group_id"]
        whole = run(batch)
        parts = [
            run(batch.select([i for i, group in enumerate(groups) if group == name]))
            for name in dict.fromkeys(groups)
        ]
        assert sum(total for total, _, _ in parts) == pytest.approx(whole[0], rel=1e-4, abs=1e-6)
        for name, (total, count) in whole[1].items():
            sums = [metrics[name] for _, metrics, _ in parts if name in metrics]
            assert sum(s for s, _ in sums) == pytest.approx(total, rel=1e-4, abs=1e-5), name
            assert sum(c for _, c in sums) == pytest.approx(count), name

    def test_equal_batches_give_equal_numbers(self, run: Run, batch: Batch) -> None:
        first = run(batch)
        run(batch.select([0, 1]))
        total, metrics, gradient = run(batch)
        assert (total, metrics) == first[:2]
        assert torch.equal(gradient, first[2])

    def compare(self, found: Found, wanted: Found) -> None:
        """Two results that must be equal but for rounding."""
        assert found[0] == pytest.approx(wanted[0], rel=1e-5, abs=1e-7)
        torch.testing.assert_close(found[2], wanted[2])
        assert found[1].keys() == wanted[1].keys()
        for name, pair in wanted[1].items():
            assert found[1][name] == pytest.approx(pair, rel=1e-5, abs=1e-6), f"metric {name}"


class TestLoss(LossContract):
    """The contract for every ``--plugrl-loss``."""

    __test__ = True
