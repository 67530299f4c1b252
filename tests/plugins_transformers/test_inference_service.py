"""The lockstep engine against transformers itself."""

import pytest
import torch

from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.plugins.transformers.engine.head import Head
from plugrl.plugins.transformers.inference_service import TransformersInferenceService

PROMPTS = [[3], [2, 5, 7], [9, 8, 7, 6, 5, 4], [2, 5, 7], [3, 3]]
RANDOM = SamplingParams(temperature=0.8, max_new_tokens=6, stop_token_ids=(1,))


def requests(prompts, sampling):
    return [GenerationRequest(p, sampling, (0, 1, i, 0, 0)) for i, p in enumerate(prompts)]


def by_transformers(engine, prompt, length):
    """Greedy tokens of ``generate``, and the gap between the two best logits at each."""
    out = engine._model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=length,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack(out.logits, 1)[0].topk(2).values
    return out.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()


def test_greedy_tokens_equal_those_of_generate(any_engine):
    # Rows of different lengths, limits and stop tokens share one batch, and shrink it.
    asked = [
        GenerationRequest(
            prompt,
            SamplingParams(temperature=0, max_new_tokens=13 - 2 * i, stop_token_ids=(1,) * (i % 2)),
            (0, 1, i, 0, 0),
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    for request, answer in zip(asked, any_engine.generate(asked), strict=True):
        limit = request.sampling.max_new_tokens
        expected, gaps = by_transformers(any_engine, request.prompt_tokens, limit)
        if request.sampling.stop_token_ids and 1 in expected:
            expected = expected[: expected.index(1) + 1]
        clear = next((i for i, gap in enumerate(gaps) if gap < 1e-4), len(gaps))
        assert clear > 0
        assert answer.tokens[:clear] == expected[:clear]
        assert len(answer.tokens) == len(expected) or clear < len(expected)


def plain_log_probs(engine, prompt, tokens, temperature):
    with torch.no_grad():
        logits = engine._model(torch.tensor([[*prompt, *tokens]])).logits[0]
    rows = (logits / temperature).log_softmax(-1)[len(prompt) - 1 : -1]
    return rows.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


def test_log_probabilities_equal_a_plain_forward_pass(any_engine):
    answers = any_engine.generate(requests(PROMPTS, RANDOM))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        expected = plain_log_probs(any_engine, prompt, answer.tokens, 0.8)
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_scores_equal_a_plain_forward_pass(any_engine):
    engine = any_engine
    for sequence, scores in zip(PROMPTS, engine.score(PROMPTS), strict=True):
        assert len(scores) == len(sequence)
        assert scores[0] == 0.0
        expected = plain_log_probs(engine, sequence[:1], sequence[1:], 1.0) if sequence[1:] else []
        assert scores[1:] == pytest.approx(expected, abs=1e-4)


def test_answers_do_not_depend_on_how_requests_are_batched(any_engine, engine_like):
    together = any_engine.generate(requests(PROMPTS, RANDOM))
    for size in (1, 2, 3):
        small = engine_like(any_engine, max_batch_size=size)
        apart = small.generate(requests(PROMPTS, RANDOM))
        assert [a.tokens for a in apart] == [a.tokens for a in together]
        for one, other in zip(apart, together, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_samples_of_one_prompt_differ_by_their_stream(engine):
    asked = [GenerationRequest([3], RANDOM, (0, 1, 0, run, 0)) for run in range(16)]
    answers = [tuple(a.tokens) for a in engine.generate(asked)]
    assert len(set(answers)) > 1
    assert [tuple(a.tokens) for a in engine.generate(asked)] == answers


def test_an_answer_ends_at_the_stop_token_or_at_its_limit(engine):
    long = SamplingParams(temperature=5.0, max_new_tokens=20, stop_token_ids=(1,))
    asked = [GenerationRequest([3], long, (0, 0, 0, run, 0)) for run in range(64)]
    reasons = set()
    for answer in engine.generate(asked):
        reasons.add(answer.finish_reason)
        assert 1 not in answer.tokens[:-1]
        assert (answer.tokens[-1] == 1) == (answer.finish_reason == "stop")
        assert len(answer.tokens) == len(answer.logprobs) <= 20
    assert reasons == {"stop", "length"}


def test_the_context_limits_each_answer_by_its_own_prompt(engine):
    endless = SamplingParams(temperature=0, max_new_tokens=10)
    asked = [[3] * 30, [4] * 4]
    long, short = engine.generate(requests(asked, endless))
    assert (len(long.tokens), len(short.tokens)) == (2, 10)
    (alone,) = engine.generate(requests(asked[1:], endless))
    assert alone.tokens == short.tokens
    with pytest.raises(ConfigError, match="32 tokens fills"):
        engine.generate(requests([[3] * 32], endless))


def test_weights_of_another_model_are_refused(engine):
    with pytest.raises(ValueError, match="weights of another model"):
        engine.update_weights({"nothing": torch.zeros(1)}, 1)
    assert engine.version == 0


def test_a_head_that_is_not_known_gives_the_logits_of_the_whole_model(spec, monkeypatch):
    # Granite divides its logits by 3; a head that does not is found out when it is loaded.
    config = {**spec().source.to_dict()["config"], "model_type": "granite", "logits_scaling": 3.0}
    init = Head.__init__

    def ignorant(self, model):
        init(self, model)
        self._divisor = None

    monkeypatch.setattr(Head, "__init__", ignorant)
    engine = TransformersInferenceService({})
    engine.load(spec(config=config))
    answers = engine.generate(requests(PROMPTS, RANDOM))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        expected = plain_log_probs(engine, prompt, answer.tokens, 0.8)
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)
    scores = engine.score(PROMPTS[2:3])[0][1:]
    assert scores == pytest.approx(
        plain_log_probs(engine, PROMPTS[2][:1], PROMPTS[2][1:], 1.0), abs=1e-4
    )
