"""When an answer ends, and what comes with it."""

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.plugins.transformers.engine.request_rows import Row


def ask(engine, runs, **sampling):
    asked = [
        GenerationRequest([3, 4], SamplingParams(**sampling), (0, 0, 0, run, 0))
        for run in range(runs)
    ]
    return engine.generate(asked)


def text(engine, tokens):
    return engine.tokenizer.decode(tokens)


@pytest.mark.parametrize("stop", [("ab",), ("c", "dab"), ("abcdefgh",)])
def test_a_stop_string_ends_an_answer_with_the_token_that_completes_it(engine, stop):
    free = ask(engine, 64, max_new_tokens=20, temperature=2.0)
    reasons = set()
    for answer, whole in zip(
        ask(engine, 64, max_new_tokens=20, temperature=2.0, stop=stop), free, strict=True
    ):
        # The draws are those of the answer without stop strings, so it is a part of that one.
        lengths = [
            n for n in range(1, 21) if any(s in text(engine, whole.tokens[:n]) for s in stop)
        ]
        assert answer.tokens == whole.tokens[: lengths[0] if lengths else 20]
        assert len(answer.logprobs) == len(answer.tokens)
        assert answer.finish_reason == ("stop" if lengths else "length")
        reasons.add(answer.finish_reason)
    assert "length" in reasons
    assert len(stop[0]) > 2 or "stop" in reasons


# Tokens of an invented tokenizer: letters that several tokens share, and one without text.
PIECES = {1: "<", 2: "end", 3: ">x", 4: "", 5: "e", 6: "nd>", 7: "<end>"}


def row(**sampling):
    params = SamplingParams(max_new_tokens=100, **sampling)
    request = GenerationRequest([0], params, (0, 0, 0, 0, 0))
    return Row(request, 100, lambda tokens: "".join(PIECES[token] for token in tokens))


@pytest.mark.parametrize(
    ("tokens", "length"),
    [
        ([1, 2, 3, 5], 3),
        ([7, 5], 1),
        ([2, 2, 1, 5, 6], 5),
        ([1, *[4] * 30, 2, *[4] * 30, 3, 5], 63),
        ([1, 5, 2], None),
    ],
)
def test_a_stop_string_is_found_across_tokens(tokens, length):
    answer = row(stop=("nowhere in this answer", "<end>"))
    ends = [i + 1 for i, token in enumerate(tokens) if answer.take(token, -1.0, 0)]
    assert ends[:1] == ([] if length is None else [length])


def test_before_the_shortest_length_strings_do_not_end_an_answer():
    answer = row(stop=("<end>",), min_new_tokens=4)
    assert [answer.take(t, -1.0, 0) for t in (7, 5, 5, 5, 5, 1, 2, 3)] == [False] * 7 + [True]


def test_stop_tokens_wait_for_the_shortest_length(engine):
    for answer in ask(
        engine, 64, max_new_tokens=20, min_new_tokens=7, stop_token_ids=(1, 2, 5), temperature=3.0
    ):
        assert not {1, 2, 5} & set(answer.tokens[:7])
        assert (answer.tokens[-1] in {1, 2, 5}) == (answer.finish_reason == "stop")
        assert len(answer.tokens) > 7 or answer.finish_reason == "length"


def test_prompt_log_probabilities_are_those_of_scoring(engine):
    prompts, sampling = [[3, 4, 5], [6], [3, 4, 5]], SamplingParams(0.7, max_new_tokens=3)
    asked = [
        GenerationRequest(p, sampling, (0, 0, i, 0, 0), prompt_logprobs=i < 2)
        for i, p in enumerate(prompts)
    ]
    answers = engine.generate(asked)
    scores = engine.score(prompts, 0.7)
    assert answers[0].prompt_logprobs == pytest.approx(scores[0], abs=1e-5)
    assert answers[1].prompt_logprobs == [0.0]
    assert answers[2].prompt_logprobs is None
    whole = [[*p, *a.tokens] for p, a in zip(prompts, answers, strict=True)]
    for scored, answer in zip(engine.score(whole, 0.7), answers, strict=True):
        assert scored[-3:] == pytest.approx(answer.logprobs, abs=1e-4)


def test_no_new_token_may_be_asked_for(engine):
    params = SamplingParams(max_new_tokens=0)
    (answer,) = engine.generate([GenerationRequest([3] * 32, params, (0,) * 5, True)])
    assert (answer.tokens, answer.logprobs, answer.finish_reason) == ([], [], "length")
    assert len(answer.prompt_logprobs) == 32
    assert engine.generate([]) == []


# Sizes that would tear groups of four apart, and one smaller than a group.
@pytest.mark.parametrize(("size", "times"), [(256, 1), (6, 1), (5, 1), (2, 2)])
def test_prompts_of_a_group_are_computed_once(engine, engine_like, monkeypatch, size, times):
    computed = []
    prefill = engine._runner.prefill

    def counting(prompts, *rest):
        computed.extend(map(tuple, prompts))
        return prefill(prompts, *rest)

    asked = [
        GenerationRequest([3 + item], SamplingParams(max_new_tokens=2), (0, 0, item, run, 0))
        for item in range(3)
        for run in range(4)
    ]
    expected = engine.generate(asked)
    monkeypatch.setattr(engine._runner, "prefill", counting)
    got = engine_like(engine, max_batch_size=size).generate(asked)
    assert computed == [(3,)] * times + [(4,)] * times + [(5,)] * times
    assert [a.tokens for a in got] == [a.tokens for a in expected]


@pytest.mark.parametrize(
    ("prompt", "complaint"), [([99], "token 99, outside the vocabulary"), ([-1], "token -1")]
)
def test_prompts_outside_the_vocabulary_are_refused(engine, prompt, complaint):
    with pytest.raises(ConfigError, match=complaint):
        engine.generate([GenerationRequest(prompt, SamplingParams(), (0,) * 5)])


def test_a_wide_batch_shrinks_and_refills(engine, engine_like):
    limits = [1 + (7 * i) % 20 for i in range(40)]
    params = [SamplingParams(max_new_tokens=limit) for limit in limits]
    asked = [
        GenerationRequest([3 + i % 5] * (1 + i % 7), sampling, (0, 0, i, 0, 0))
        for i, sampling in enumerate(params)
    ]
    alone = [engine.generate([request])[0] for request in asked]
    for size in (256, 7):
        together = engine_like(engine, max_batch_size=size).generate(asked)
        assert [a.tokens for a in together] == [a.tokens for a in alone]
        assert [len(a.tokens) for a in together] == limits
