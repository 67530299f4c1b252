"""The in_process service: each named loss by its formula, and what it refuses."""

import math

import numpy as np
import pytest
import torch

from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.optimizer import AdamParams
from plugrl.core.text.remote.service import NAMED_LOSSES, Datum
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.in_process import InProcessTrainService

TOKENS = [[2, 3, 4, 5, 6, 1], [6, 7, 1], [2, 3, 8, 1]]
MASKS = [[0, 1, 0, 1, 1], [1, 1], [0, 1, 1]]


@pytest.fixture
def service(spec):
    def make(**options):
        made = InProcessTrainService({"learning_rate": 0.01, **options})
        made.load(spec())
        return made

    return make


def datums(name):
    """Ratios far from 1 and advantages of both signs, from a fixed generator."""
    random = np.random.default_rng(0)
    made = []
    for tokens, mask in zip(TOKENS, MASKS, strict=True):
        kept = np.asarray(mask)
        inputs = {"target_tokens": tokens[1:], "mask": mask}
        for key in NAMED_LOSSES[name].inputs:
            numbers = random.normal(size=len(mask))
            if key == "logprobs":
                numbers = -2.3 + numbers
            if key == "weights":
                numbers = abs(numbers)
            inputs[key] = (numbers * kept).tolist()
        made.append(Datum(tokens[:-1], inputs))
    return made


def reference(service, name, options):
    """Loss, log-probabilities and gradients by transformers, and the formulas of the losses."""
    model = service._local._model
    total, found = 0.0, []
    for datum in datums(name):
        inputs = {k: torch.tensor(v) for k, v in datum.loss_fn_inputs.items()}
        logits = model(input_ids=torch.tensor([datum.input_tokens])).logits[0]
        logp = logits.log_softmax(-1).gather(1, inputs["target_tokens"][:, None])[:, 0]
        found.append((logp * inputs["mask"]).tolist())
        if name == "cross_entropy":
            total = total - (inputs["weights"] * logp).sum()
            continue
        advantages, kept = inputs["advantages"], inputs["mask"]
        ratio = ((logp - inputs["logprobs"]) * kept).exp()
        if name == "importance_sampling":
            each = ratio * advantages
        elif name == "ppo":
            bounded = ratio.clamp(options["clip_low_threshold"], options["clip_high_threshold"])
            each = torch.minimum(ratio * advantages, bounded * advantages)
        else:
            each = ratio.clamp(0.0, options["clip_high_threshold"]).detach() * advantages * logp
        total = total - (each * kept).sum()
    model.zero_grad()
    total.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    return float(total.detach()), found, gradients


@pytest.mark.parametrize("size", [64, 1])
@pytest.mark.parametrize(
    ("name", "given", "options"),
    [
        ("cross_entropy", None, {}),
        ("importance_sampling", None, {}),
        ("ppo", None, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
        ("ppo", {"clip_high_threshold": 2.0}, {"clip_low_threshold": 0.8,
                                               "clip_high_threshold": 2.0}),
        ("cispo", None, {"clip_high_threshold": 4.0}),
        ("cispo", {"clip_high_threshold": 1.1}, {"clip_high_threshold": 1.1}),
    ],
)  # fmt: skip
def test_named_losses_are_sums_of_their_formulas(service, name, given, options, size):
    made = service(micro_batch_size=size)
    value, logprobs, gradients = reference(made, name, options)
    answer = made.forward_backward(datums(name), name, given).result()
    assert answer.loss == pytest.approx(value, rel=1e-4)
    for row, expected in zip(answer.logprobs, logprobs, strict=True):
        assert row == pytest.approx(expected, abs=1e-4)
    for key, parameter in made._local._model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[key], rtol=2e-4, atol=2e-5)
    ahead = made.forward(datums(name)).result()
    for row, expected in zip(ahead, logprobs, strict=True):
        assert row == pytest.approx(expected, abs=1e-4)


def test_without_a_mask_what_the_loss_is_multiplied_by_says_what_is_trained(service):
    made, bare = service(), []
    for datum in datums("importance_sampling"):
        inputs = {k: v for k, v in datum.loss_fn_inputs.items() if k != "mask"}
        bare.append(Datum(datum.input_tokens, inputs))
    with_mask = made.forward_backward(datums("importance_sampling"), "importance_sampling")
    without = made.forward_backward(bare, "importance_sampling")
    assert without.result().loss == pytest.approx(with_mask.result().loss, rel=1e-6)


ADAM = AdamParams(0.01, (0.9, 0.95), 1e-8, 0.0, 1.0)


def test_an_optimizer_step_has_the_numbers_that_it_is_given(service):
    made = service()
    name, before = next(
        (n, p.detach().clone()) for n, p in made._local._model.named_parameters() if p.dim() > 1
    )
    made.forward_backward(datums("cross_entropy"), "cross_entropy").result()
    gradient = dict(made._local._model.named_parameters())[name].grad.clone()
    norm = made.optim_step(ADAM).result()["grad_norm"]
    # The first step of Adam is the learning rate times g / (|g| + eps), g being clipped.
    clipped = gradient * min(1.0, 1.0 / (norm + 1e-6))
    expected = before - 0.01 * clipped / (clipped.abs() + 1e-8)
    torch.testing.assert_close(made.weights()[name], expected, rtol=1e-4, atol=1e-6)


def test_a_gradient_that_is_not_finite_is_dropped_and_not_counted(service):
    made, untouched = service(), service()
    broken = [
        Datum(d.input_tokens, {**d.loss_fn_inputs, "weights": [math.inf] * len(d.input_tokens)})
        for d in datums("cross_entropy")
    ]
    made.forward_backward(broken, "cross_entropy").result()
    assert not math.isfinite(made.apply()["grad_norm"])
    assert made.optimizer_steps == 0
    for key, weight in made.weights().items():
        assert torch.equal(weight, untouched.weights()[key])


def test_the_learning_rate_follows_the_schedule(service):
    made = service(schedule={"warmup_steps": 1})
    rates = []
    for _ in range(3):
        made.forward_backward(datums("cross_entropy"), "cross_entropy").result()
        rates.append(made.apply()["learning_rate"])
    assert rates == [0.005, 0.01, 0.01]


@pytest.mark.parametrize("named", [True, False])
def test_a_saved_state_goes_on_exactly(service, named):
    straight, other = service(), service()

    def step(one):
        one.forward_backward(datums("ppo"), "ppo").result()
        return one.apply()

    step(straight)
    if named:
        other.load_state(straight.save_state("here").result()).result()
        other.optimizer_steps = straight.optimizer_steps
    else:
        other.load_state_dict(straight.state_dict())
    assert step(straight) == step(other)
    for key, weight in straight.weights().items():
        assert torch.equal(weight, other.weights()[key])


def test_the_state_is_that_of_the_service_local(service, train_service):
    made, local = service(), train_service()
    made.forward_backward(datums("cross_entropy"), "cross_entropy").result()
    made.apply()
    local.load_state_dict(made.state_dict())
    for key, weight in made.weights().items():
        assert torch.equal(weight, local.weights()[key])


def test_log_probabilities_of_a_batch_are_those_of_the_service_local(service, train_service):
    rows = [Trajectory(t, [0, *m]) for t, m in zip(TOKENS, MASKS, strict=True)]
    batch = Batch.from_trajectories([*rows, Trajectory([3], [1])])
    expected = train_service().compute_log_prob(batch)
    torch.testing.assert_close(service().compute_log_prob(batch), expected)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dro", None, "no loss_fn 'dro'; there are: cross_entropy, importance_sampling, ppo"),
        ("ppo", {"clip": 0.2}, "loss_fn 'ppo' has no option 'clip'"),
    ],
)
def test_losses_and_options_that_it_lacks_are_named(service, name, options, message):
    with pytest.raises(ConfigError, match=message):
        service().forward_backward(datums("ppo"), name, options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_tokens": [9, 9, 9, 9, 9]}, "are not the tokens that follow"),
        ({"weights": [-1.0] * 5}, "weights below 0"),
        ({"weights": None}, "no weights, which the loss reads"),
    ],
)
def test_datums_that_it_cannot_take_are_refused(service, changes, message):
    one = datums("cross_entropy")[0]
    inputs = {k: v for k, v in {**one.loss_fn_inputs, **changes}.items() if v is not None}
    with pytest.raises(ContractError, match=message):
        service().forward_backward([Datum(one.input_tokens, inputs)], "cross_entropy")
    with pytest.raises(ContractError, match="no datum"):
        service().forward_backward([], "cross_entropy")


def test_a_value_head_is_refused():
    with pytest.raises(ConfigError, match="no named loss trains values"):
        InProcessTrainService({"value_head": True})
