"""The embedded engine and the local train service against ``transformers`` and plain torch."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from plugrl.core.config.view import ConfigView, configure
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.registry import default_registry
from plugrl.core.text.batch import Batch
from plugrl.core.text.losses import LOSS_WEIGHTS, WeightedLoss, aggregation_weights
from plugrl.core.text.models import Model
from plugrl.core.text.sampling import SamplingParams
from plugrl.core.text.services import GenerationRequest, ModelSpec
from plugrl.core.text.trajectory import Trajectory
from plugrl.core.text.weight_sync import WeightSync
from plugrl.plugins.transformers.inference_service import TransformersInferenceService, sample
from plugrl.plugins.transformers.train_service import LocalTrainService, ScheduleConfig

CONTEXT = 24
PROMPTS = [[2, 3, 4, 5, 6], [7], [8, 9, 10], [3, 3, 3, 3, 3, 3, 3, 3]]


def spec(seed=0, **source):
    config = {
        "model_type": "qwen3",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.3,
    }
    tokenizer = {"characters": "0123456789+="}
    fields = {"path": None, "config": config, "tokenizer": tokenizer, "dtype": "float32"}
    return ModelSpec("policy", ConfigView({**fields, **source}, checked=True), seed, "cpu")


def engine(seed=0, **config):
    service = TransformersInferenceService(config)
    service.load(spec(seed))
    return service


def trainer(seed=0, **config):
    service = LocalTrainService({"learning_rate": 0.01, **config})
    service.load(spec(seed))
    return service


def requests(prompts=PROMPTS, **sampling):
    params = SamplingParams(**{"max_new_tokens": 10, "stop_token_ids": (1,), **sampling})
    return [GenerationRequest(p, params, (0, 0, i, 0, 0)) for i, p in enumerate(prompts)]


def plain_log_probs(model, tokens, temperature=1.0):
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].double() / temperature
    scores = logits.log_softmax(-1)
    return [0.0] + [float(scores[i, t]) for i, t in enumerate(tokens[1:])]


def test_greedy_answers_are_those_of_transformers():
    service = engine()
    compared = 0
    for request, answer in zip(
        requests(temperature=0.0), service.generate(requests(temperature=0.0)), strict=True
    ):
        prompt = torch.tensor([request.prompt_tokens])
        expected = service._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=10,
            do_sample=False,
            eos_token_id=1,
            pad_token_id=0,
        )[0, prompt.shape[1] :].tolist()
        with torch.no_grad():
            logits = service._model(torch.tensor([[*request.prompt_tokens, *expected]])).logits[0]
        best = logits[prompt.shape[1] - 1 : -1].topk(2).values
        close = (best[:, 0] - best[:, 1] < 1e-4).tolist()
        clear = close.index(True) if True in close else len(close)
        assert answer.tokens[:clear] == expected[:clear]
        compared += clear
    assert compared >= 20


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_a_plain_forward_pass(temperature):
    service = engine()
    asked = requests(temperature=temperature)
    for request, answer in zip(asked, service.generate(asked), strict=True):
        tokens = [*request.prompt_tokens, *answer.tokens]
        expected = plain_log_probs(service._model, tokens, temperature)
        assert answer.logprobs == pytest.approx(expected[len(request.prompt_tokens) :], abs=1e-4)
    scores = service.score(PROMPTS, temperature)
    for tokens, row in zip(PROMPTS, scores, strict=True):
        assert row == pytest.approx(plain_log_probs(service._model, tokens, temperature), abs=1e-4)


def test_answers_do_not_depend_on_the_batch():
    prompts = [*PROMPTS, PROMPTS[0], PROMPTS[2]]
    whole = engine().generate(requests(prompts))
    for size in (1, 2, 4):
        for one, other in zip(
            engine(max_batch_size=size).generate(requests(prompts)), whole, strict=True
        ):
            assert (one.tokens, one.finish_reason) == (other.tokens, other.finish_reason)
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_the_context_limits_each_prompt_by_its_own_length():
    prompts = [[2] * (CONTEXT - 2), [3] * 4]
    long, short = engine().generate(requests(prompts, max_new_tokens=10, stop_token_ids=()))
    assert (len(long.tokens), long.finish_reason) == (2, "length")
    assert (len(short.tokens), short.finish_reason) == (10, "length")
    (alone,) = engine().generate(
        [GenerationRequest(prompts[1], requests(stop_token_ids=())[0].sampling, (0, 0, 1, 0, 0))]
    )
    assert alone.tokens == short.tokens
    with pytest.raises(ConfigError, match=f"prompt of {CONTEXT} tokens fills"):
        engine().generate(requests([[2] * CONTEXT]))


def test_answers_end_with_the_stop_token_or_at_the_limit():
    answers = engine().generate(requests([[i] for i in range(2, 14)] * 4, temperature=2.0))
    assert {a.finish_reason for a in answers} == {"stop", "length"}
    for answer in answers:
        assert 1 not in answer.tokens[:-1]
        assert (answer.tokens[-1] == 1) == (answer.finish_reason == "stop")
        assert len(answer.tokens) == len(answer.logprobs)


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


def test_sampling_follows_the_softmax():
    draws = np.random.default_rng(3).random(20_000)
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    weights = np.exp(np.array([2.0, 1.0, 0.0, -1.0]) / 0.5)
    params = SamplingParams(temperature=0.5)
    chosen, logprobs = sample(logits.expand(len(draws), 4), params, draws)
    counts = np.bincount(chosen.numpy(), minlength=4)
    expected = weights / weights.sum()
    assert chi_square(counts, expected * len(draws)) < 11.345  # 3 degrees, 1 %
    np.testing.assert_allclose(logprobs.numpy(), np.log(expected)[chosen.numpy()], rtol=1e-5)


def test_top_p_keeps_the_smallest_set_that_holds_the_mass():
    # Probabilities 0.5, 0.3, 0.15, 0.05: 0.7 needs the first two, which then have 5/8 and 3/8.
    logits = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log()
    draws = np.random.default_rng(4).random(10_000)
    chosen, logprobs = sample(logits.expand(len(draws), 4), SamplingParams(top_p=0.7), draws)
    counts = np.bincount(chosen.numpy(), minlength=4)
    assert counts[0] == counts[2] == 0
    assert chi_square(counts[[1, 3]], np.array([6250, 3750])) < 6.635  # 1 degree, 1 %
    # What is reported is the model's distribution, before the tail is cut.
    assert float(logprobs[chosen == 1][0]) == pytest.approx(math.log(0.5))


def batch():
    rows = [([2, 3, 4, 5], 0.5), ([6, 7], -1.0), ([8, 9, 10], 2.0), ([3, 4, 5, 6, 7], -0.5)]
    made = Batch.from_trajectories(
        [
            Trajectory(
                tokens, [0] + [1] * (len(tokens) - 1), logprobs=[0.0] + [-2.5] * (len(tokens) - 1)
            )
            for tokens, _ in rows
        ]
    )
    mask = made.values["loss_mask"]
    made.values["advantages"] = torch.tensor([a for _, a in rows])[:, None] * mask
    made.values[LOSS_WEIGHTS] = aggregation_weights(mask, "token-mean")
    return made


def loss(name="clipped"):
    function = default_registry().get("loss", name)
    return WeightedLoss(function, configure(function, {}))


def gradients(service):
    return torch.cat([p.grad.flatten() for p in service._model.parameters()])


def test_micro_batches_accumulate_the_gradient_of_the_whole():
    reports, grads = [], []
    for size in (64, 1, 3):
        service = trainer(micro_batch_size=size)
        reports.append(service.forward_backward(batch(), loss()))
        grads.append(gradients(service))
    for other, report in zip(grads[1:], reports[1:], strict=True):
        torch.testing.assert_close(other, grads[0], rtol=1e-4, atol=1e-6)
        assert report["loss"][0] == pytest.approx(reports[0]["loss"][0], abs=1e-6)
    assert float(grads[0].norm()) > 0


def test_the_gradient_is_that_of_a_plain_loop():
    service = trainer()
    total, _ = service.forward_backward(batch(), loss("cross_entropy"))["loss"]
    model = service._model
    ours = gradients(service)
    model.zero_grad()
    losses = []
    for tokens in ([2, 3, 4, 5], [6, 7], [8, 9, 10], [3, 4, 5, 6, 7]):
        logits = model(torch.tensor([tokens])).logits[0, :-1]
        target = torch.tensor(tokens[1:])
        losses.append(torch.nn.functional.cross_entropy(logits, target, reduction="sum"))
    expected = sum(losses) / (3 + 1 + 2 + 4)
    expected.backward()
    assert total == pytest.approx(float(expected.detach()), abs=1e-5)
    torch.testing.assert_close(ours, gradients(service), rtol=1e-4, atol=1e-6)


def test_log_probabilities_of_the_trainer_are_those_of_a_plain_pass_and_0_elsewhere():
    service = trainer(micro_batch_size=3)
    made = batch()
    made.values["loss_mask"][0, 1] = 0
    scores = service.compute_log_prob(made)
    expected = plain_log_probs(service._model, [2, 3, 4, 5])
    assert scores[0].tolist() == pytest.approx([0.0, 0.0, *expected[2:], 0.0], abs=1e-4)


def train(service, steps):
    for _ in range(steps):
        service.forward_backward(batch(), loss())
        service.optimizer_step()
    return service


def test_a_saved_optimizer_goes_on_as_if_nothing_had_happened():
    schedule = {"warmup_steps": 2, "decay": "linear", "total_steps": 9}
    straight = train(trainer(schedule=schedule), 5)
    first = train(trainer(schedule=schedule), 2)
    second = trainer(seed=9, schedule=schedule)
    second.load_state_dict(first.state_dict())
    train(second, 3)
    for name, value in straight.weights().items():
        assert torch.equal(value, second.weights()[name]), name


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        # The ramp counts the first full step as its end: 1/3, 2/3, then 1.
        ({"warmup_steps": 2}, [1 / 3, 2 / 3, 1, 1, 1]),
        ({"decay": "linear", "total_steps": 4}, [1, 0.75, 0.5, 0.25, 0, 0]),
        (
            {"decay": "linear", "total_steps": 4, "final_factor": 0.2},
            [1, 0.8, 0.6, 0.4, 0.2, 0.2],
        ),
        ({"decay": "cosine", "total_steps": 4}, [1, 0.853553, 0.5, 0.146447, 0, 0]),
        (
            {"warmup_steps": 1, "decay": "linear", "total_steps": 3},
            [0.5, 1, 0.5, 0],
        ),
    ],
)
def test_learning_rates_by_hand(options, factors):
    config = ScheduleConfig(**options)
    made = [ScheduleConfig.factor(config, step) for step in range(len(factors))]
    assert made == pytest.approx(factors, abs=1e-6)


def test_the_rate_of_a_step_is_the_scheduled_one():
    service = trainer(schedule={"warmup_steps": 1})
    rates = []
    for _ in range(3):
        service.forward_backward(batch(), loss())
        rates.append(service.optimizer_step()["learning_rate"])
    assert rates == pytest.approx([0.005, 0.01, 0.01])


def test_a_gradient_that_is_not_finite_is_dropped_and_poisons_nothing():
    poisoned, clean = train(trainer(), 1), train(trainer(), 1)
    bad = batch()
    bad.values["advantages"][0, 1] = float("nan")
    poisoned.forward_backward(bad, loss())
    report = poisoned.optimizer_step()
    assert not math.isfinite(report["grad_norm"])
    train(poisoned, 2)
    train(clean, 2)
    for name, value in clean.weights().items():
        assert torch.equal(value, poisoned.weights()[name]), name


def test_a_sampler_with_other_weights_is_found_out():
    model = Model("policy", engine(seed=1), trainer(seed=2))
    sync = WeightSync(model, 1e-4)
    assert sync() is None
    sync.observe([Trajectory(list(p), [0] + [1] * (len(p) - 1)) for p in PROMPTS])
    assert sync() == pytest.approx(0, abs=1e-5)
    model.inference.update_weights = lambda weights, version: None
    train(model.train, 3)
    with pytest.raises(RunError, match="model 'policy'.*differ from the trainer's by"):
        sync()


def test_weights_of_another_model_are_refused():
    weights = dict(trainer().weights())
    weights.popitem()
    with pytest.raises(ValueError, match="weights of another model"):
        engine().update_weights(weights, 1)


def test_a_model_folder_is_read_back(tmp_path):
    service = engine()
    service._model.save_pretrained(tmp_path)
    service.tokenizer.wrapped.save_pretrained(tmp_path)
    again = TransformersInferenceService({})
    again.load(spec(seed=5, path=str(tmp_path), config={}))
    assert again.tokenizer.encode("1+2=") == service.tokenizer.encode("1+2=")
    assert again.tokenizer.decode([3, 4, 1]) == service.tokenizer.decode([3, 4, 1])
    assert [a.tokens for a in again.generate(requests())] == [
        a.tokens for a in service.generate(requests())
    ]
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.score([PROMPTS[0]])[0] == pytest.approx(
        plain_log_probs(plain, PROMPTS[0]), abs=1e-4
    )


@pytest.mark.parametrize("content", [None, "{", '{"model_type": "no-such-model"}'])
def test_an_unreadable_folder_is_one_line_with_its_place(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    service = TransformersInferenceService({})
    with pytest.raises(ConfigError) as caught:
        service.load(spec(path=str(tmp_path), config={}))
    assert f"models.policy.source.path {tmp_path}: not a usable model folder" in str(caught.value)
    assert "\n" not in str(caught.value)
