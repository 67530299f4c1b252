"""Which models decode with joined operations, and that their weights stay those of the model."""

import pytest
import torch

from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.plugins.transformers.engine.fast_body import FastBody
from plugrl.plugins.transformers.engine.slot_body import SlotBody
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.loading import load_model

FAST = {"llama", "qwen2", "qwen3"}


def ask(engine):
    asked = [GenerationRequest([2 + i], SamplingParams(), (0, 0, i, 0, 0)) for i in range(3)]
    return [(a.tokens, a.logprobs) for a in engine.generate(asked)]


def test_models_of_one_shape_get_a_fast_body_and_others_do_not(any_engine):
    fast = any_engine._model.config.model_type in FAST
    assert isinstance(any_engine._runner.body, FastBody) == fast


@pytest.mark.parametrize("name", sorted(FAST))
@pytest.mark.parametrize("small", [True, False])
def test_the_parameters_of_the_model_stay_what_they_are(
    architecture_spec, monkeypatch, name, small
):
    monkeypatch.setattr("plugrl.plugins.transformers.engine.fast_body.is_small", lambda _: small)
    model = load_model(architecture_spec(name))
    before = [(n, p, p.data_ptr(), p.stride(), p.clone()) for n, p in model.named_parameters()]
    body = FastBody(model)
    body.sequences(torch.tensor([[3, 1, 4]]), torch.arange(3)[None])
    after = list(model.named_parameters())
    assert len(after) == len(before)
    for (key, parameter, place, stride, value), (other, now) in zip(before, after, strict=True):
        assert (other, now.data_ptr(), now.stride()) == (key, place, stride)
        assert now is parameter
        assert torch.equal(now, value)


@pytest.mark.parametrize(
    ("few", "small"),
    [
        (2048, True),
        (0, True),
        pytest.param(0, False, marks=pytest.mark.integration),
    ],
)
def test_every_weight_of_an_update_is_used(spec, monkeypatch, few, small):
    # With a table of what the first layer makes of each token, and without; with matrices of its
    # own, and with those of the model.
    monkeypatch.setattr("plugrl.plugins.transformers.engine.fast_body._FEW_TOKENS", few)
    monkeypatch.setattr("plugrl.plugins.transformers.engine.fast_body.is_small", lambda _: small)
    engine = TransformersInferenceService({})
    engine.load(spec())
    assert (engine._runner.body._known is None) == (few == 0)
    # One after the other, so that a weight that is a stale copy shows.
    for name, value in list(engine._model.state_dict().items()):
        engine.update_weights({**engine._model.state_dict(), name: value * 1.5 + 0.05}, 1)
        ((tokens, logprobs), *_) = ask(engine)
        with torch.no_grad():
            logits = engine._model(torch.tensor([[2, *tokens]])).logits[0]
        expected = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert logprobs == pytest.approx(expected.tolist(), abs=1e-4), name


@pytest.mark.parametrize("side", ["left", "right", None])
def test_whole_sequences_are_those_of_the_model(any_engine, side):
    body, model = any_engine._runner.body, any_engine._model
    if not isinstance(body, FastBody):
        pytest.skip("it has no fast body")
    long, short = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [8, 4, 6]
    pad = [0] * (len(long) - len(short))
    rows = {"left": pad + short, "right": short + pad, None: long[::-1]}
    tokens = torch.tensor([long, rows[side]])
    real = torch.ones_like(tokens, dtype=torch.bool)
    if side is not None:
        real[1] = torch.tensor([0] * len(pad) + [1] * 3 if side == "left" else [1] * 3 + pad) > 0
    positions = (real.cumsum(1) - 1).clip(0)
    got = body.sequences(tokens, positions, real if side else None)
    for row, kept in zip(range(2), real, strict=True):
        with torch.no_grad():
            expected = model.base_model(tokens[row][kept][None]).last_hidden_state[0]
        torch.testing.assert_close(got[row][kept], expected, rtol=1e-4, atol=1e-4)


def test_a_model_that_gives_other_results_is_not_taken(spec, engine, monkeypatch):
    expected, whole = ask(engine), FastBody.step
    monkeypatch.setattr(FastBody, "step", lambda self, *rest: whole(self, *rest) * 1.01)
    other = TransformersInferenceService({})
    other.load(spec())
    assert isinstance(other._runner.body, SlotBody)
    for (tokens, logprobs), (wanted, close) in zip(ask(other), expected, strict=True):
        assert tokens == wanted
        assert logprobs == pytest.approx(close, abs=1e-4)


@pytest.mark.parametrize(("dtype", "length"), [("float32", 1040), ("bfloat16", 60)])
def test_long_answers_and_half_precision(spec, dtype, length):
    # Angles are tabled for 1,024 positions at first.
    config = {**spec().source.to_dict()["config"], "max_position_embeddings": 4096}
    service = TransformersInferenceService({})
    service.load(spec(config=config, dtype=dtype))
    assert isinstance(service._runner.body, FastBody)
    params = SamplingParams(temperature=0, max_new_tokens=length)
    (answer,) = service.generate([GenerationRequest([3], params, (0,) * 5)])
    scores = service.score([[3, *answer.tokens]])[0][1:]
    error = sum(abs(a - b) for a, b in zip(scores, answer.logprobs, strict=True)) / length
    assert error < (1e-4 if dtype == "float32" else 0.02)
