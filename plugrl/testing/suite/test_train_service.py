"""The contract of train services.

Run it with ``--plugrl-train-service NAME``, or subclass :class:`TrainServiceContract` with an
attribute ``plugrl_train_service``. A service gives as ``conformance``: ``config``, its section, and
``source``, the model that it loads; by default a model of a few hundred weights with random
values. The steps of a service that is no :class:`TrainService`, which takes losses of its own, are
not tried.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch

from plugrl.core.text.batch import Batch
from plugrl.core.text.inference.services import BaseTrainService, TrainService
from plugrl.core.text.learn.losses import LossOutput, WeightedLoss, masked_sum
from plugrl.testing.batches import batch_of, trajectories
from plugrl.testing.contract import ComponentContract
from plugrl.testing.models import SOURCE, spec_of


def policy_gradient(logp: torch.Tensor, batch: Batch, config: Any) -> LossOutput:
    """The loss of the kit: REINFORCE, token by token."""
    per_token = -batch.values["advantages"] * logp
    return per_token, {"nll": masked_sum(-logp, batch.values["loss_mask"])}


def _no_number(logp: torch.Tensor, batch: Batch, config: Any) -> LossOutput:
    return logp * float("nan"), {}


def _copied(service: BaseTrainService) -> dict[str, torch.Tensor]:
    """The weights as they are now."""
    return {name: weight.detach().clone() for name, weight in service.weights().items()}


LOSS = WeightedLoss(policy_gradient, None)


class TrainServiceContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_train_service``."""

    kind = "train_service"
    defaults: ClassVar[Mapping[str, Any]] = {"source": SOURCE}

    @pytest.fixture
    def load(
        self, make: Callable[[], BaseTrainService], example: Mapping[str, Any]
    ) -> Iterator[Callable[..., Any]]:
        """Makes a service that has loaded its model, and is closed after the test."""
        made: list[BaseTrainService] = []

        def loaded(seed: int = 0) -> BaseTrainService:
            made.append(make())
            made[-1].load(spec_of(example["source"], seed=seed, trained=True))
            return made[-1]

        yield loaded
        for service in made:
            service.close()

    @pytest.fixture
    def steps(self, load: Callable[..., Any]) -> Callable[..., TrainService]:
        """The same, of services that take any loss."""

        def loaded(seed: int = 0) -> TrainService:
            service = load(seed)
            if not isinstance(service, TrainService):
                pytest.skip("it has losses of its own")
            return service

        return loaded

    @pytest.fixture
    def batch(self) -> Batch:
        return batch_of(trajectories())

    def step(self, service: TrainService, parts: Sequence[Batch]) -> dict[str, float]:
        for part in parts:
            service.forward_backward(part.copy(), LOSS)
        return service.optimizer_step()

    def test_log_probabilities_are_of_trained_tokens(
        self, load: Callable[..., Any], batch: Batch
    ) -> None:
        found = load().compute_log_prob(batch)
        mask = batch.values["loss_mask"] != 0
        assert found.shape == mask.shape
        assert (found[~mask] == 0).all()
        assert torch.isfinite(found).all()
        assert (found[mask] < 0).all()
        assert not found.requires_grad

    def test_rows_do_not_mix(self, load: Callable[..., Any], batch: Batch) -> None:
        service = load()
        whole = service.compute_log_prob(batch)
        for row in (0, 3):
            alone = service.compute_log_prob(batch.select([row]))
            torch.testing.assert_close(alone[0], whole[row], rtol=1e-4, atol=1e-4)

    def test_equal_seeds_begin_alike(self, load: Callable[..., Any], batch: Batch) -> None:
        one, other = (load(1).compute_log_prob(batch) for _ in range(2))
        assert torch.equal(one, other)

    def test_a_step_changes_the_weights_and_learns(
        self, steps: Callable[..., TrainService], batch: Batch
    ) -> None:
        service = steps()
        before = _copied(service)
        objective = float((batch.values["advantages"] * service.compute_log_prob(batch)).sum())
        numbers = self.step(service, [batch])
        assert {"grad_norm", "learning_rate"} <= set(numbers)
        assert math.isfinite(numbers["grad_norm"])
        assert numbers["grad_norm"] > 0
        after = service.weights()
        assert before.keys() == after.keys()
        assert any(not torch.equal(before[name], after[name]) for name in before)
        learned = float((batch.values["advantages"] * service.compute_log_prob(batch)).sum())
        assert learned > objective, "a step goes up the loss, not down"

    def test_metrics_are_sums_and_counts(
        self, steps: Callable[..., TrainService], batch: Batch
    ) -> None:
        service = steps()
        found = service.forward_backward(batch.copy(), LOSS)
        assert {"loss", "nll"} <= set(found), "the loss itself is one of the metrics"
        expected = (batch.values["advantages"] * service.compute_log_prob(batch)).sum()
        expected = -expected / (batch.values["loss_mask"] != 0).sum()
        assert found["loss"] == pytest.approx((float(expected), 1.0), rel=1e-3)
        total, count = found["nll"]
        assert count == int((batch.values["loss_mask"] != 0).sum())
        assert total == pytest.approx(-float(service.compute_log_prob(batch).sum()), rel=1e-3)

    def test_micro_batches_add_up(self, steps: Callable[..., TrainService], batch: Batch) -> None:
        whole, parts = steps(), steps()
        rows = range(len(batch))
        one = self.step(whole, [batch])
        two = self.step(parts, [batch.select(list(rows[:3])), batch.select(list(rows[3:]))])
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)

    def test_a_step_begins_without_the_gradient_of_the_last(
        self, steps: Callable[..., TrainService], batch: Batch
    ) -> None:
        service = steps()
        self.step(service, [batch])
        again = steps()
        again.load_state_dict(service.state_dict())
        assert self.step(service, [batch])["grad_norm"] == pytest.approx(
            self.step(again, [batch])["grad_norm"], rel=1e-4
        )

    def test_a_gradient_that_is_not_finite_is_dropped(
        self, steps: Callable[..., TrainService], batch: Batch
    ) -> None:
        service = steps()
        before = _copied(service)
        service.forward_backward(batch.copy(), WeightedLoss(_no_number, None))
        assert not math.isfinite(service.optimizer_step()["grad_norm"])
        after = service.weights()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert math.isfinite(self.step(service, [batch])["grad_norm"])

    def test_weights_go_from_one_service_to_another(
        self, load: Callable[..., Any], batch: Batch
    ) -> None:
        one, other = load(1), load(2)
        other.load_weights(_copied(one))
        assert torch.equal(other.compute_log_prob(batch), one.compute_log_prob(batch))

    def test_its_state_is_all_that_training_changes(
        self, steps: Callable[..., TrainService], batch: Batch
    ) -> None:
        # Weights alone are not enough: the next step also depends on the optimizer and schedule.
        service = steps()
        for _ in range(2):
            self.step(service, [batch])
        other = steps(1)
        other.load_state_dict(copy.deepcopy(service.state_dict()))
        assert torch.equal(other.compute_log_prob(batch), service.compute_log_prob(batch))
        # A step back: what the optimizer remembers decides how far it goes, and where to.
        batch.values["advantages"] = -batch.values["advantages"]
        moved = []
        for each in (service, other):
            before = _copied(each)
            report = self.step(each, [batch])
            moved.append({name: w - before[name] for name, w in each.weights().items()})
            moved[-1]["report"] = torch.tensor([report["grad_norm"], report["learning_rate"]])
        for name, wanted in moved[0].items():
            far = float(wanted.abs().max())
            torch.testing.assert_close(moved[1][name], wanted, rtol=1e-3, atol=0.05 * far)


class TestTrainService(TrainServiceContract):
    """The contract for every ``--plugrl-train-service``."""

    __test__ = True
