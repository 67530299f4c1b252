"""Training with backward passes written by hand: which models, and that gradients are the same."""

import pytest
import torch
from torch.nn.functional import pad

from plugrl.core.text.batch import Batch
from plugrl.core.text.losses import LOSS_WEIGHTS, WeightedLoss, aggregation_weights
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.lean_attention import Piece
from plugrl.plugins.transformers.lean_layers import TokenLogProbs
from plugrl.plugins.transformers.lean_training import LeanTraining
from plugrl.plugins.transformers.packing import Packing

LEAN = ["llama", "qwen2", "qwen3", "qwen3 tied"]
OTHERS = ["mistral", "gemma2", "gpt2", "granite"]
# Answers to shared prompts, one with a gap, one without any, and a prompt that is alone.
ROWS = [
    ([2, 3, 4, 5, 6, 1], [0, 0, 0, 1, 1, 1]),
    ([2, 3, 4, 7, 1], [0, 0, 0, 1, 1]),
    ([2, 3, 4, 9, 9, 8, 2, 5], [0, 0, 0, 1, 0, 0, 1, 1]),
    ([8, 8], [0, 0]),
    ([9, 4, 1], [0, 1, 1]),
]
# So many tokens that the products are computed by another kernel.
MANY = [([2 + (i + 7 * j) % 11 % 8 for j in range(12)], [0] + [1] * 11) for i in range(60)]
# So many scores that attention is computed in pieces: answers of two lengths to two prompts.
PROMPTS = [2, 3, 4], [5, 6, 7]
LONG = [
    (
        PROMPTS[i % 2] + [2 + (i + j * j) % 7 for j in range(53 - i % 3)],
        [0] * 3 + [1] * (53 - i % 3),
    )
    for i in range(38)
]
EQUAL = [([2, 3, 4, 5], [0, 1, 1, 1]), ([7, 6, 5, 1], [0, 1, 1, 1])]


def loss(logp, batch, config):
    # Another slope for each place.
    return logp * torch.linspace(-1, 1, len(logp))[:, None] + logp.square() / 10, {}


def batch(rows, temperature=1.0):
    made = Batch.from_trajectories([Trajectory(*row) for row in rows], temperature=temperature)
    made.values[LOSS_WEIGHTS] = aggregation_weights(made.values["loss_mask"], "token-mean")
    return made


def gradients(service, data):
    service.forward_backward(data, WeightedLoss(loss, {}))
    found = {n: p.grad.clone() for n, p in service._model.named_parameters() if p.grad is not None}
    service._model.zero_grad()
    return found


def noted(service, monkeypatch):
    """A list that grows by one for each pass over the lean layers."""
    calls, lean = [], service._forward._lean
    whole = lean.log_probs
    monkeypatch.setattr(lean, "log_probs", lambda *args: (calls.append(1), whole(*args))[1])
    return calls


@pytest.mark.parametrize("name", [*LEAN, *OTHERS])
def test_models_of_one_shape_are_lean_and_others_are_not(train_service, architecture_spec, name):
    service = train_service(architecture_spec(name))
    assert (service._forward._lean is not None) == (name in LEAN)


@pytest.mark.parametrize(
    "options", [{"gradient_checkpointing": True}, {"packing": "never"}], ids=str
)
def test_what_needs_the_layers_of_the_model_gets_them(train_service, options):
    assert train_service(**options)._forward._lean is None


def test_low_precision_is_not_lean(train_service, spec):
    assert train_service(spec(dtype="bfloat16"))._forward._lean is None


def test_a_model_that_gives_other_results_is_not_taken(train_service, monkeypatch):
    whole = LeanTraining.log_probs
    monkeypatch.setattr(LeanTraining, "log_probs", lambda *args: whole(*args) * 1.01)
    assert train_service()._forward._lean is None


def fast(name, rows, temperature):
    """Each architecture, temperature and kind of rows, but not all with each other."""
    return name in ("qwen2", "qwen3 tied") if temperature == 1.0 else rows is ROWS


@pytest.mark.parametrize(
    ("name", "rows", "temperature"),
    [
        pytest.param(
            name,
            rows,
            temperature,
            id=f"{name}-{len(rows)}-{temperature}",
            marks=[] if fast(name, rows, temperature) else pytest.mark.integration,
        )
        for name in LEAN
        for rows in (ROWS, MANY, LONG, EQUAL, ROWS[:1], ROWS[4:])
        for temperature in (1.0, 0.7)
    ],
)
def test_gradients_are_those_of_the_model(
    train_service, architecture_spec, monkeypatch, name, rows, temperature
):
    service = train_service(architecture_spec(name))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        # Weights of norms and biases are ones and zeros at first.
        for weight in service._model.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    calls, data = noted(service, monkeypatch), batch(rows, temperature)
    got, log_probs = gradients(service, data), service.compute_log_prob(data)
    assert len(calls) == 2
    service._forward._lean = None
    want = gradients(service, data)
    assert got.keys() == want.keys()
    for key, gradient in want.items():
        # Single numbers may be differences of large ones.
        torch.testing.assert_close(
            got[key], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()), msg=key
        )
    torch.testing.assert_close(log_probs, service.compute_log_prob(data), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "length", "ends"),
    [(64, 37, [16, 32, 37]), (64, 16, [16]), (64, 100, [48, 96, 100]), (2, 37, [37])],
)
def test_scores_of_many_rows_are_computed_in_pieces(rows, length, ends):
    pieces = Piece.of(rows, length, 2, torch.zeros(1))
    assert [piece.last for piece in pieces] == ends
    mask = torch.cat(
        [pad(piece.mask, (0, length - piece.last), value=-torch.inf) for piece in pieces]
    )
    # Two queries share each key.
    seen = torch.ones(length, length, dtype=torch.bool).tril().repeat_interleave(2, 0)
    assert torch.equal(mask == 0, seen)
    assert torch.equal(mask == -torch.inf, ~seen)


def test_batches_that_differ_in_their_tokens_alone_share_a_plan(train_service, monkeypatch):
    service, made = train_service(), []
    lean = service._forward._lean
    planned = lean._planned
    monkeypatch.setattr(lean, "_planned", lambda *args: (made.append(1), planned(*args))[1])
    others = [([9 - token for token in tokens], mask) for tokens, mask in ROWS]
    fewer = [(tokens, [0] * len(mask) if len(mask) == 3 else mask) for tokens, mask in ROWS]
    data = [batch(rows) for rows in (ROWS, others, fewer, ROWS)]
    got = [service.compute_log_prob(each) for each in data]
    assert len(made) == 2
    service._forward._lean = None
    for each, log_probs in zip(data, got, strict=True):
        torch.testing.assert_close(log_probs, service.compute_log_prob(each), rtol=1e-5, atol=1e-5)


def test_a_single_layer_is_the_first_and_the_last(train_service, spec):
    config = {**spec().source.config.to_dict(), "num_hidden_layers": 1}
    service, data = train_service(spec(config=config)), batch(ROWS)
    got = gradients(service, data)
    service._forward._lean = None
    for key, gradient in gradients(service, data).items():
        torch.testing.assert_close(got[key], gradient, rtol=1e-4, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", ["qwen2", "qwen3 tied"])
def test_gradients_are_those_of_finite_differences(train_service, architecture_spec, name):
    model = train_service(architecture_spec(name))._model.double()
    lean = LeanTraining(model)
    values = batch(ROWS).values
    real = values["attention_mask"][:, :-1] != 0
    picked = (values["loss_mask"][:, 1:] != 0) & real
    ids, positions = values["input_ids"][:, :-1], values["position_ids"][:, :-1]
    packing = Packing.of(ids, positions, real, picked, torch.tensor([0, 0, 0, 3, 4]))
    targets = values["input_ids"][:, 1:][picked]
    generator = torch.Generator().manual_seed(1)

    def total():
        log_probs = lean.log_probs(packing, targets, 0.9)
        return (log_probs * torch.arange(1, len(targets) + 1)).sum()

    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    total().backward()
    for key, weight in model.named_parameters():
        direction = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        padding = model.config.pad_token_id
        if key.endswith("embed_tokens.weight") and padding is not None:
            direction[padding] = 0
        seen = []
        with torch.no_grad():
            for step in (1e-5, -2e-5):
                weight += step * direction
                seen.append(float(total()))
            weight += 1e-5 * direction
        slope = float((weight.grad * direction).sum())
        assert (seen[0] - seen[1]) / 2e-5 == pytest.approx(slope, rel=1e-5, abs=1e-6), key


@pytest.mark.parametrize("case", ["long rows", "a chunk", "temperatures"])
def test_what_the_lean_layers_do_not_do_is_done_by_the_model(
    train_service, architecture_spec, monkeypatch, case
):
    options = {"head_chunk_tokens": 3} if case == "a chunk" else {}
    service = train_service(architecture_spec("llama"), **options)
    if case == "long rows":
        monkeypatch.setattr("plugrl.plugins.transformers.lean_training._LONGEST", 6)
    heat = torch.tensor([1.0, 0.5, 1.0, 2.0, 1.0]) if case == "temperatures" else 1.0
    calls, data = noted(service, monkeypatch), batch(ROWS)
    data.metadata["temperature"] = heat
    assert any(gradient.count_nonzero() for gradient in gradients(service, data).values())
    assert not calls


def test_what_follows_the_last_trained_token_gives_no_gradient(train_service):
    service = train_service()
    rows = [(tokens, mask) for tokens, mask in ROWS if any(mask)]
    data = batch(rows)
    want = gradients(service, data)
    longer = batch([(tokens + [3, 7], mask + [0, 0]) for tokens, mask in rows])
    width = longer.values["input_ids"].shape[1] - data.values["input_ids"].shape[1]
    assert width == 2
    for key, gradient in gradients(service, longer).items():
        torch.testing.assert_close(gradient, want[key], rtol=1e-5, atol=1e-6, msg=key)


def test_improbable_tokens_have_their_log_probabilities_and_gradients():
    # exp(-200) is none of the numbers of float32, and the others are as probable as usual.
    states = torch.tensor([[1.0, 1.0], [1.0, -1.0]], requires_grad=True)
    head = torch.tensor([[100.0, 0.0], [-100.0, 0.0], [99.0, 0.0]], requires_grad=True)
    targets, weights = torch.tensor([1, 2]), torch.tensor([1.0, 2.0])
    got = TokenLogProbs.apply(0.0, torch.arange(2), targets, states, head)
    expected = (states @ head.t()).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    assert expected[0] < -150
    torch.testing.assert_close(got, expected)
    # The norm of the states, whose mean square is 1, turns no gradient of the head.
    (gradient,) = torch.autograd.grad(got, head, weights)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, head, weights)[0])
