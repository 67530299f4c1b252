"""The losses dpo, ipo and kto: by hand, by TRL, by finite differences, and what they refuse."""

import json
import math
import sys
from pathlib import Path

import peers
import pytest
import torch

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.dead_coefficients import dead_coefficients
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.pairs import row_sums
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory
from plugrl.trainers.losses.kto import mismatched_batch
from plugrl.trainers.losses.preferences import fill_probe
from plugrl.trainers.self_hosted_dpo import SelfHostedDpoTrainer

sys.path.insert(0, str(Path(__file__).parent))
import preference_models

# (loss, gradient norm) of TRL 1.16.0 with transformers 5.24 and torch 2.13, by trl_preferences.py.
TRL = {
    "dpo": (0.7680366039276123, 0.4968932271003723),
    "ipo": (3.302934408187866, 4.240808010101318),
    "kto": (0.5992721915245056, 0.17969760298728943),
}
#: Of its RewardTrainer: with center_rewards_coefficient 0.1, and with margins.
TRL_REWARD = {
    "bradley_terry": (0.6872760057449341, 1.1387020349502563),
    "bradley_terry with margins": (1.3065917491912842, 1.5593374967575073),
}
OPTIONS = {
    "dpo": {"beta": 0.3},
    "ipo": {"beta": 0.3},
    "kto": {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.7},
}


def weighted(name, **options):
    function = default_registry().get("loss", name)
    return WeightedLoss(function, configure(function, options))


def two_pairs():
    """Row sums of logp - ref: chosen 0.6 and -0.2, rejected -0.4 and 0.5."""
    logp = torch.tensor(
        [[0.0, -1.0, -0.5], [0.0, -2.0, 9.0], [0.0, -1.5, -0.5], [0.0, -0.25, -0.25]]
    )
    ref = torch.tensor([[0.0, -1.2, -0.9], [0.0, -1.6, 7.0], [0.0, -1.8, 0.0], [0.0, -0.5, -0.5]])
    batch = Batch.from_trajectories([Trajectory([3, 4, 5], [0, 1, m]) for m in (1, 0, 1, 1)])
    batch.values["ref_log_probs"] = ref
    batch.metadata |= {
        "unit": torch.tensor([0, 0, 4, 4]),
        "preferred": torch.tensor([1.0, 0.0, 1.0, 0.0]),
        "kl_reference": 0.1,
    }
    weights = aggregation_weights(batch.values["loss_mask"], "seq-mean-token-sum")
    batch.values[LOSS_WEIGHTS] = weights
    return logp.requires_grad_(), batch


def softplus(x):
    return math.log1p(math.exp(x))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


# h of the pairs: 0.6 + 0.4 = 1.0 and -0.2 - 0.5 = -0.7. -log sigmoid(x) = softplus(-x).
BY_HAND = [
    ("dpo", {"beta": 0.5}, (softplus(-0.5) + softplus(0.35)) / 2),
    (
        "dpo",
        {"beta": 0.5, "label_smoothing": 0.2},
        (0.8 * softplus(-0.5) + 0.2 * softplus(0.5) + 0.8 * softplus(0.35) + 0.2 * softplus(-0.35))
        / 2,
    ),
    # Means a token: 0.3 - (-0.4) = 0.7 and -0.1 - 0.25 = -0.35; the margin aimed at is 1.
    ("ipo", {"beta": 0.5}, (0.3**2 + 1.35**2) / 2),
    (
        "kto",
        {"beta": 2.0, "desirable_weight": 3.0},
        (
            3 * (1 - sigmoid(2 * 0.5))
            + (1 - sigmoid(2 * 0.5))
            + 3 * (1 - sigmoid(2 * -0.3))
            + (1 - sigmoid(2 * -0.4))
        )
        / 4,
    ),
]


@pytest.mark.parametrize(("name", "options", "expected"), BY_HAND)
def test_values_by_hand(name, options, expected):
    total, _ = weighted(name, **options)(*two_pairs())
    assert float(total.detach()) == pytest.approx(expected, rel=1e-6)


def test_metrics_by_hand():
    _, metrics = weighted("dpo", beta=0.5)(*two_pairs())
    means = {name: total / count for name, (total, count) in metrics.items()}
    # Implicit rewards: chosen 0.3 and -0.1, rejected -0.2 and 0.25.
    expected = {"accuracy": 0.5, "margin": 0.075, "reward_chosen": 0.1, "reward_rejected": 0.025}
    assert means == pytest.approx(expected, abs=1e-6)
    _, metrics = weighted("ipo", beta=0.5)(*two_pairs())
    means = {name: total / count for name, (total, count) in metrics.items()}
    # Of means a token: chosen 0.15 and -0.05, rejected -0.2 and 0.125.
    expected = {
        "accuracy": 0.5,
        "margin": 0.0875,
        "reward_chosen": 0.05,
        "reward_rejected": -0.0375,
    }
    assert means == pytest.approx(expected, abs=1e-6)
    _, metrics = weighted("kto", beta=0.5)(*two_pairs())
    means = {name: total / count for name, (total, count) in metrics.items()}
    # Against the reference point 0.1: 0.6 and -0.4 are right, -0.2 and 0.5 wrong.
    assert means["accuracy"] == 0.5
    assert means["kl_reference"] == pytest.approx(0.1)
    # Implicit rewards as those of dpo, whatever the reference point is.
    assert means["reward_chosen"] == pytest.approx(0.1)
    assert means["reward_rejected"] == pytest.approx(0.025)


def test_a_probe_has_log_ratios_from_minus_2_to_2_nats_a_row_whatever_its_length():
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(9) < torch.arange(2000)[:, None] % 10).long()
    probe = Batch({"loss_mask": mask})
    logp = torch.randn(mask.shape, generator=generator, requires_grad=True)
    fill_probe(probe, logp)
    assert not probe.values["ref_log_probs"].requires_grad
    ratios = row_sums(logp.detach() - probe.values["ref_log_probs"], probe.values["loss_mask"])
    nothing = mask.sum(1) == 0
    assert not ratios[nothing].any()
    trained = ratios[~nothing]
    # Of 1800 even draws the smallest and the largest are not 0.02 nats off the ends.
    assert trained.min().item() == pytest.approx(-2, abs=0.02)
    assert trained.max().item() == pytest.approx(2, abs=0.02)
    assert trained.mean().item() == pytest.approx(0, abs=0.15)
    assert trained.abs().max().item() <= 2 + 1e-5


def test_an_answer_without_trained_tokens_is_in_no_metric_of_kto():
    logp, batch = two_pairs()
    # Of the rejected answers the one that was right is not trained.
    batch.values["loss_mask"][1] = 0
    _, metrics = weighted("kto", beta=0.5)(logp, batch)
    assert metrics["accuracy"] == (1.0, 3.0)
    assert metrics["reward_rejected"] == pytest.approx((0.25, 1.0))
    assert metrics["kl_reference"] == pytest.approx((0.3, 3.0))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_tie_is_no_win_and_the_loss_is_that_of_equal_models(name):
    logp, batch = two_pairs()
    batch.values["ref_log_probs"] = logp.detach().clone()
    batch.metadata["kl_reference"] = 0.0
    total, metrics = weighted(name, beta=0.25)(logp, batch)
    assert float(total.detach()) == pytest.approx(
        {"dpo": math.log(2), "ipo": 4.0, "kto": 0.5}[name]
    )
    assert metrics["accuracy"][0] == 0


@pytest.mark.parametrize(("name", "accuracy", "margin"), [("dpo", 0.0, -0.5), ("ipo", 1.0, 0.4)])
def test_metrics_compare_what_the_loss_compares(name, accuracy, margin):
    """Log-ratios of -0.1 at ten tokens against -0.5 at one: the sum is lower, the mean higher."""
    rows = [Trajectory([1] + [2] * n, [0] + [1] * n) for n in (10, 1)]
    batch = Batch.from_trajectories(rows)
    batch.values["ref_log_probs"] = torch.zeros(2, 11)
    batch.metadata |= {"preferred": torch.tensor([1.0, 0.0]), "unit": torch.tensor([0, 0])}
    weights = aggregation_weights(batch.values["loss_mask"], "seq-mean-token-sum")
    batch.values[LOSS_WEIGHTS] = weights
    logp = torch.tensor([[-0.1], [-0.5]]).expand(2, 11).clone().requires_grad_()
    _, metrics = weighted(name, beta=1.0)(logp, batch)
    assert metrics["accuracy"][0] == accuracy
    assert float(metrics["margin"][0]) == pytest.approx(margin)


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_by_finite_differences(name):
    logp, batch = two_pairs()
    batch.values["ref_log_probs"] = batch.values["ref_log_probs"].double()
    options = OPTIONS[name] | ({"label_smoothing": 0.1} if name == "dpo" else {})
    loss = weighted(name, **options)
    start = logp.detach().double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, batch)[0], (start,), atol=1e-7)
    (gradient,) = torch.autograd.grad(loss(start, batch)[0], start)
    # What is preferred becomes likelier; the place without a trained token stays.
    assert (gradient[[0, 2], 1] < 0).all()
    assert (gradient[[1, 3], 1] > 0).all()
    assert gradient[1, 2] == 0


@pytest.mark.parametrize("name", OPTIONS)
def test_numbers_are_alive_on_long_answers_of_one_kind(name):
    batch = Batch.from_trajectories([Trajectory([1] + [2] * 3000, [0] + [1] * 3000)] * 2)
    batch.values["ref_log_probs"] = torch.full((2, 3001), -1.0)
    kinds = [1.0, 1.0] if name == "kto" else [1.0, 0.0]
    batch.metadata |= {"preferred": torch.tensor(kinds), "kl_reference": 0.0}
    if name != "kto":
        batch.metadata["unit"] = torch.tensor([0, 0])
    weights = aggregation_weights(batch.values["loss_mask"], "seq-mean-token-sum")
    batch.values[LOSS_WEIGHTS] = weights
    assert dead_coefficients(weighted(name, **OPTIONS[name]), batch) == {}


def ours(name, **service):
    """(loss, gradient norm) of the trainer on the rows of ``preference_models``."""
    models = preference_models.make_models(**service)
    tokenizer = models["policy"].inference.tokenizer
    make = preference_models.labels if name == "kto" else preference_models.pairs
    loss = {"type": name, **OPTIONS[name]}
    trainer = SelfHostedDpoTrainer({"algorithm": {"loss": loss}}, models=models)
    batch, _ = trainer._prepare_batch(Batch.from_trajectories(make(tokenizer)))
    batch.values[LOSS_WEIGHTS] = trainer._weights(batch.values["loss_mask"])
    batch = trainer._before_optimizer_step(batch)
    service = models["policy"].trained()
    loss = service.forward_backward(batch, trainer._loss)["loss"][0]
    return loss, service.optimizer_step()["grad_norm"]


@pytest.mark.parametrize("service", [{}, {"micro_batch_size": 1, "packing": "never"}])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_trainer_gives_the_numbers_of_trl(name, service):
    assert ours(name, **service) == pytest.approx(TRL[name], rel=2e-5)


@pytest.mark.slow
def test_trl_still_gives_them(tmp_path):
    peers.python()
    preference_models.write(preference_models.make_models(value_head=True), tmp_path)
    program = Path(__file__).with_name("trl_preferences.py")
    found = json.loads(peers.answer(program, tmp_path, str(tmp_path)))
    for name, numbers in {**TRL, **TRL_REWARD}.items():
        assert found[name] == pytest.approx(numbers, rel=2e-5), name


def test_mismatched_answers_by_hand():
    made = Batch.from_trajectories(
        [
            Trajectory([2, 3, 4, 1], [0, 0, 1, 1]),
            Trajectory([5, 6, 1], [0, 1, 1]),
            Trajectory([7, 8, 9, 9, 9, 1], [0, 0, 1, 0, 1, 1]),
        ]
    )
    other = mismatched_batch(made, 6)
    rows = [t.tokens for t in other.to_trajectories()]
    assert rows == [[2, 3, 9, 9, 9, 1], [5, 4, 1], [7, 8, 6, 1]]
    masks = [t.loss_mask for t in other.to_trajectories()]
    assert masks == [[0, 0, 1, 0, 1, 1], [0, 1, 1], [0, 0, 1, 1]]
    # A context that a joined row does not fit into: it is cut, and left out if nothing is left.
    assert [t.tokens for t in mismatched_batch(made, 2).to_trajectories()] == [[5, 4]]
    assert mismatched_batch(made.select([0]), 6) is None


def test_no_answer_is_joined_with_a_prompt_that_it_was_given_to():
    """Two answers to one prompt, then another prompt with one of these answers and its own."""
    mask = [0, 0, 1]
    rows = [[2, 3, 7], [2, 3, 8], [4, 5, 8], [4, 5, 9]]
    batch = Batch.from_trajectories([Trajectory(tokens, mask) for tokens in rows])
    # Of prompt 2 3 neither 7 nor 8, of prompt 4 5 neither 8 nor 9.
    expected = [[2, 3, 9], [2, 3, 9], [4, 5, 7], [4, 5, 7]]
    assert [t.tokens for t in mismatched_batch(batch, 6).to_trajectories()] == expected
    # All that there is was given to the only prompt.
    assert mismatched_batch(batch.select([0, 1]), 6) is None
    # The first prompt has all the answers, the second does not.
    some = mismatched_batch(batch.select([0, 1, 2]), 6)
    assert [t.tokens for t in some.to_trajectories()] == [[4, 5, 7]]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda b: b.metadata.pop("preferred"), r"needs batch.metadata\['preferred'\]"),
        (lambda b: b.values.pop("ref_log_probs"), r"needs batch.values\['ref_log_probs'\]"),
        (
            lambda b: b.metadata.update(preferred=torch.ones(4)),
            "unit 0 has 2 preferred and 0 other rows",
        ),
        (
            lambda b: b.values["loss_mask"][1].zero_(),
            "unit 0 has 1 preferred and 0 other rows",
        ),
        (lambda b: b.metadata.pop("unit"), "unit 0 has 1 preferred and 0 other rows"),
    ],
)
def test_what_is_no_pair_is_named(change, complaint):
    logp, batch = two_pairs()
    change(batch)
    with pytest.raises(ContractError, match=f"loss dpo .*{complaint}|{complaint}"):
        weighted("dpo")(logp, batch)


def test_kto_without_a_reference_point_is_named():
    logp, batch = two_pairs()
    del batch.metadata["kl_reference"]
    with pytest.raises(ContractError, match=r"loss kto needs batch.metadata\['kl_reference'\]"):
        weighted("kto")(logp, batch)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("dpo", {"beta": 0.0}, "beta: must be above 0"),
        ("dpo", {"label_smoothing": 0.5}, "label_smoothing: must be below 0.5"),
        ("ipo", {"beta": -1.0}, "beta: must be above 0"),
        ("kto", {"undesirable_weight": -1.0}, "undesirable_weight: must be at least 0"),
        ("kto", {"desirable_weight": 0.0, "undesirable_weight": 0.0}, "must not both be 0"),
    ],
)
def test_wrong_options_are_named(name, options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        weighted(name, **options)
