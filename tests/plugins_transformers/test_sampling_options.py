"""Penalties, min-p, grammars and the most probable tokens, against computations by hand."""

import json

import jsonschema
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import small_engine
from transformers import RepetitionPenaltyLogitsProcessor

from plugrl.core.errors import ConfigError
from plugrl.core.text.endpoint.forms import json_grammar
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.plugins.transformers.engine.sampler import Sampler

CHARACTERS = "".join(map(chr, range(32, 127))) + "\n\t"
ONE = 1  # the end token


@pytest.fixture(scope="module")
def model():
    return small_engine(CHARACTERS)


def answers(model, *several, prompt="{a", seed=0):
    tokens = model.tokenizer.encode(prompt)
    requests = [
        GenerationRequest(tokens, sampling, (seed, 0, place, 0, 0))
        for place, sampling in enumerate(several)
    ]
    return model.generate(requests)


def logits_of(model, tokens):
    """Logits of all places, in one pass of the whole model."""
    with torch.no_grad():
        return model._model(torch.tensor([tokens])).logits[0]


def test_penalties_change_the_distribution_that_is_recorded(model):
    sampling = SamplingParams(
        max_new_tokens=24, temperature=0.7, repetition_penalty=1.4, presence_penalty=0.6,
        frequency_penalty=-0.9,
    )  # fmt: skip
    plain = SamplingParams(max_new_tokens=24)
    prompt = model.tokenizer.encode("{a")
    answer, other = answers(model, sampling, plain)
    assert len(set(answer.tokens)) < len(answer.tokens)
    logits = logits_of(model, prompt + answer.tokens)
    repetition = RepetitionPenaltyLogitsProcessor(1.4)
    for place, token in enumerate(answer.tokens):
        before = answer.tokens[:place]
        row = logits[len(prompt) + place - 1][None].clone()
        row = repetition(torch.tensor([prompt + before]), row)[0]
        for said in set(before):
            row[said] -= 0.6 - 0.9 * before.count(said)
        expected = (row / 0.7).log_softmax(-1)[token]
        assert answer.logprobs[place] == pytest.approx(float(expected), abs=1e-4)
    # A row beside it that asks for nothing gets what it gets alone.
    assert other.tokens == model.generate(
        [GenerationRequest(prompt, plain, (0, 0, 1, 0, 0))]
    )[0].tokens  # fmt: skip


def test_greedy_with_penalties_equals_the_argmax_of_changed_logits(model):
    prompt = model.tokenizer.encode("{a")
    sampling = SamplingParams(max_new_tokens=16, temperature=0.0, repetition_penalty=2.0)
    (answer,) = answers(model, sampling)
    logits, repetition = (
        logits_of(model, prompt + answer.tokens),
        RepetitionPenaltyLogitsProcessor(2.0),
    )
    for place, token in enumerate(answer.tokens):
        history = torch.tensor([prompt + answer.tokens[:place]])
        row = repetition(history, logits[len(prompt) + place - 1][None].clone())[0]
        assert int(row.argmax()) == token


def test_min_p_draws_what_the_processor_of_transformers_keeps():
    from transformers import MinPLogitsWarper

    logits = torch.tensor([[2.0, 1.5, 0.0, -1.0, -4.0]])
    kept = MinPLogitsWarper(0.2)(torch.tensor([[0]]), logits.clone())[0] > -torch.inf
    count = 4000
    params = [SamplingParams(min_p=0.2)] * count
    streams = [(0, 0, i, 0, 0) for i in range(count)]
    tokens, logprobs = Sampler(params, streams, [0] * count, "cpu").draw(logits.repeat(count, 1))
    found = torch.bincount(tokens, minlength=5)
    assert (found > 0).tolist() == kept.tolist() == [True, True, False, False, False]
    # The log-probability is that before tokens are taken away.
    assert torch.allclose(logprobs, logits[0].log_softmax(-1)[tokens], atol=1e-6)
    share = float(found[0]) / count
    expected = float(logits[0, :2].softmax(-1)[0])
    assert abs(share - expected) < 5 * (expected * (1 - expected) / count) ** 0.5


def test_the_most_probable_tokens_of_each_place(model):
    prompt = model.tokenizer.encode("{a")
    few, more, none = answers(
        model,
        SamplingParams(max_new_tokens=9, temperature=0.8, top_logprobs=2),
        SamplingParams(max_new_tokens=5, top_logprobs=4),
        SamplingParams(max_new_tokens=9),
    )
    assert none.top_logprobs is None
    for answer, count, heat in ((few, 2, 0.8), (more, 4, 1.0)):
        assert len(answer.top_logprobs) == len(answer.tokens)
        rows = (logits_of(model, prompt + answer.tokens) / heat).log_softmax(-1)
        for place, pairs in enumerate(answer.top_logprobs):
            values, tokens = rows[len(prompt) + place - 1].topk(count)
            assert [token for token, _ in pairs] == tokens.tolist()
            assert [value for _, value in pairs] == pytest.approx(values.tolist(), abs=1e-4)


SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    },
    "required": ["kind", "age", "tags"],
    "additionalProperties": False,
}


def continuations(model, texts, said):
    """The tokens with which one of the texts may go on after ``said``, the end among them."""
    found = set()
    for text in texts:
        if text == said:
            found.add(ONE)
        elif text.startswith(said):
            found.add(model.tokenizer.encode(text[len(said)])[0])
    return found


@pytest.mark.parametrize("heat", [1.0, 0.6, 0.0])
def test_log_probabilities_are_those_over_the_tokens_that_the_grammar_allows(model, heat):
    # A language of six texts, so that what may follow is known without any library.
    texts = [f'"{a}{b}"' for a in ("x", "yz") for b in ("", "1", "23")]
    grammar = json_grammar({"enum": [json.loads(text) for text in texts]})
    prompt = model.tokenizer.encode("{a")
    several = [
        SamplingParams(temperature=heat, max_new_tokens=20, grammar=grammar, stop_token_ids=(ONE,))
    ] * 12
    seen = set()
    for answer in answers(model, *several, SamplingParams(max_new_tokens=30))[:12]:
        said = model.tokenizer.decode(answer.tokens)
        assert said in texts
        assert answer.finish_reason == "stop"
        assert answer.tokens[-1] == ONE
        seen.add(said)
        logits = logits_of(model, prompt + answer.tokens)
        for place, token in enumerate(answer.tokens):
            before = model.tokenizer.decode(answer.tokens[:place])
            allowed = sorted(continuations(model, texts, before))
            own = logits[len(prompt) + place - 1, allowed] / (heat or 1.0)
            expected = own.log_softmax(-1)[allowed.index(token)]
            assert answer.logprobs[place] == pytest.approx(float(expected), abs=1e-4)
    assert len(seen) == 1 if heat == 0 else len(seen) > 1


def test_an_answer_matches_its_schema_beside_one_that_has_none(model):
    sampling = SamplingParams(max_new_tokens=200, grammar=json_grammar(SCHEMA))
    plain = SamplingParams(max_new_tokens=40)
    *typed, free = answers(model, *[sampling] * 4, plain)
    for answer in typed:
        value = json.loads(model.tokenizer.decode(answer.tokens))
        jsonschema.validate(value, SCHEMA)
        assert answer.finish_reason == "stop"
        assert answer.logprobs[-1] == pytest.approx(0.0, abs=1e-6)
    (alone,) = model.generate(
        [GenerationRequest(model.tokenizer.encode("{a"), plain, (0, 0, 4, 0, 0))]
    )
    assert free.tokens == alone.tokens
    assert free.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_a_form_that_the_vocabulary_cannot_write_ends_with_an_error():
    small = small_engine('a"1')
    forms = {value: json_grammar({"enum": [value]}) for value in ("a", "az", "z", 2)}
    several = [SamplingParams(max_new_tokens=9, grammar=form) for form in forms.values()]
    reasons = [answer.finish_reason for answer in answers(small, *several, prompt="a")]
    assert reasons == ["stop", "error", "error", "error"]


def test_a_grammar_and_a_shortest_length_exclude_each_other():
    with pytest.raises(ConfigError, match="a grammar says when an answer ends"):
        SamplingParams(grammar="start: /a/", min_new_tokens=2)


@pytest.mark.parametrize(
    "values",
    [{"min_p": 1.5}, {"presence_penalty": 3.0}, {"frequency_penalty": float("nan")},
     {"repetition_penalty": 0.0}, {"top_logprobs": 21}],
)  # fmt: skip
def test_values_out_of_range_are_refused(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        SamplingParams(**values)


def schemas(depth=2):
    """JSON schemas whose texts are short."""
    plain = st.one_of(
        st.builds(lambda low, wide: {"type": "integer", "minimum": low, "maximum": low + wide},
                  st.integers(-50, 50), st.integers(0, 200)),
        st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 4)),
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(lambda values: {"enum": values},
                  st.lists(st.one_of(st.integers(-9, 9), st.sampled_from(["a", "b c", "\"q\""])),
                           min_size=1, max_size=3, unique_by=repr)),
    )  # fmt: skip
    if not depth:
        return plain
    inner = schemas(depth - 1)
    objects = st.dictionaries(st.sampled_from(["a", "b1", "c d", "e"]), inner, max_size=3)
    return st.one_of(
        plain,
        st.builds(lambda items, n: {"type": "array", "items": items, "maxItems": n},
                  inner, st.integers(0, 2)),
        st.builds(lambda own: {"type": "object", "properties": own, "required": sorted(own),
                               "additionalProperties": False}, objects),
        st.builds(lambda a, b: {"anyOf": [a, b]}, plain, inner),
    )  # fmt: skip


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schema=schemas(), seed=st.integers(0, 9))
def test_answers_match_random_schemas(model, schema, seed):
    check_schema(model, schema, seed)


@pytest.mark.slow
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schema=schemas(3), seed=st.integers(0, 9))
def test_answers_match_many_random_schemas(model, schema, seed):
    check_schema(model, schema, seed)


def check_schema(model, schema, seed):
    grammar = json_grammar(schema)
    hot = SamplingParams(max_new_tokens=400, grammar=grammar)
    greedy = SamplingParams(max_new_tokens=400, grammar=grammar, temperature=0.0)
    for answer in answers(model, greedy, hot, seed=seed):
        if answer.finish_reason == "length":
            continue
        assert answer.finish_reason == "stop"
        jsonschema.validate(json.loads(model.tokenizer.decode(answer.tokens)), schema)
