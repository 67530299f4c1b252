"""The guard that finds numbers of a loss's section which change no gradient."""

from dataclasses import dataclass, field
from typing import get_args, get_type_hints

import pytest
import torch

import plugrl
from plugrl.core.config.check import configure
from plugrl.core.errors import RunError
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.dead_coefficients import dead_coefficients
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory


@dataclass
class Inner:
    weight: float = 0.5


@dataclass
class Options:
    kl_coef: float = 0.1
    off: float = 0.0
    window: int = 7
    inner: Inner = field(default_factory=Inner)


def holder(function):
    function.Config = Options
    return function


@holder
def alive(logp, batch, config):
    gap = logp - batch.values["old_log_probs"]
    return -logp + config.kl_coef * gap.square() + config.inner.weight * gap.pow(4), {}


@holder
def forgetful(logp, batch, config):
    gap = logp - batch.values["old_log_probs"]
    return -logp + config.inner.weight * gap.square(), {"kl": (gap.sum() * config.kl_coef, 1)}


@holder
def detached(logp, batch, config):
    gap = (logp - batch.values["old_log_probs"]).detach()
    return -logp + config.kl_coef * gap.square() + config.inner.weight * logp.square(), {}


def weighed(**values):
    batch = Batch.from_trajectories(
        [
            Trajectory([1, 2, 3], [0, 1, 1], logprobs=[0.0, -1.0, -2.0]),
            Trajectory([1, 2], [0, 1], logprobs=[0.0, -0.5]),
        ]
    )
    batch.values["ref_log_probs"] = torch.tensor([[0.0, -1.5, -1.0], [0.0, -2.0, 0.0]])
    batch.values["teacher_log_probs"] = batch.values["ref_log_probs"]
    batch.metadata |= {
        "preferred": torch.tensor([1.0, 0.0]),
        "unit": torch.tensor([0, 0]),
        "kl_reference": 0.5,
    }
    batch.values |= values
    batch.values[LOSS_WEIGHTS] = aggregation_weights(batch.values["loss_mask"], "token-mean")
    return batch


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(alive, {}), (forgetful, {"kl_coef": 0.1}), (detached, {"kl_coef": 0.1})],
)
def test_what_changes_no_gradient_is_found(loss, expected):
    assert dead_coefficients(WeightedLoss(loss, configure(loss, {})), weighed()) == expected


def test_a_nested_number_is_found_by_its_path():
    @holder
    def loss(logp, batch, config):
        return logp * config.kl_coef, {}

    found = dead_coefficients(WeightedLoss(loss, configure(loss, {})), weighed())
    assert found == {"inner.weight": 0.5}


def test_probing_leaves_the_batch_and_the_generator_alone():
    batch = weighed(advantages=torch.zeros(2, 3))
    before = {name: value.clone() for name, value in batch.values.items()}
    state = torch.get_rng_state()
    dead_coefficients(WeightedLoss(alive, configure(alive, {})), batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert before.keys() == batch.values.keys()
    assert all(torch.equal(value, batch.values[name]) for name, value in before.items())


@pytest.mark.parametrize(
    "options",
    [{}, {"clip_ratio_low": 0.01, "clip_ratio_high": 1.5}, {"clip_ratio_dual": 3.0}],
    ids=str,
)
def test_every_number_of_the_clipped_loss_is_alive(options):
    loss = default_registry().get("loss", "clipped")
    batch = weighed(advantages=torch.ones(2, 3))
    assert dead_coefficients(WeightedLoss(loss, configure(loss, options)), batch) == {}


@pytest.mark.parametrize("name", [r.name for r in default_registry().records("loss")])
def test_every_number_of_every_registered_loss_is_alive(name):
    function = default_registry().get("loss", name)
    # A number that is off by default is switched on.
    hints = get_type_hints(getattr(function, "Config", object))
    options = {key: 3.0 for key, hint in hints.items() if float in get_args(hint)}
    batch = weighed(advantages=torch.ones(2, 3))
    for given in ({}, options):
        assert dead_coefficients(WeightedLoss(function, configure(function, given)), batch) == {}


@pytest.mark.parametrize("policy", ["stop", "warn", "ignore"])
def test_a_run_stops_or_warns(policy, config, registry, caplog):
    registry.register("loss", "forgetful", forgetful)
    tree = config()
    tree["trainer"]["algorithm"] = {"loss": {"type": "forgetful", "kl_coef": 0.25}}
    tree["runtime_monitor"] = {"dead_coefficients": policy}
    message = "trainer.algorithm.loss.kl_coef=0.25: the gradient does not depend on it"
    if policy == "stop":
        with pytest.raises(RunError, match=message):
            plugrl.train(tree)
        return
    plugrl.train(tree)
    assert [message in record.message for record in caplog.records].count(True) == (
        policy == "warn"
    )


def test_a_loss_without_any_gradient_is_named(config, registry):
    registry.register("loss", "still", lambda logp, batch, config: (logp.detach(), {}))
    tree = config()
    tree["trainer"]["algorithm"] = {"loss": "still"}
    with pytest.raises(RunError, match=r"loss <lambda> .*gives no gradient: .* detached from logp"):
        plugrl.train(tree)
