"""The engine's slots against ``transformers``, on the CPU and, in the tier ``gpu``, on CUDA.

On the CPU, steps are also launched ahead of what the host looks at, as on a GPU.
"""

import asyncio

import pytest
import torch
from waiting import DEADLINE

from plugrl.core.config.view import ConfigView
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import ModelSpec
from plugrl.plugins.transformers.engine import runner as runners
from plugrl.plugins.transformers.engine.slot_body import SlotBody
from plugrl.plugins.transformers.engine.whole_body import WholeBody
from plugrl.plugins.transformers.inference_service import TransformersInferenceService

COMMON = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    # So large that answers vary.
    "initializer_range": 0.3,
}
WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
NARROW = {k: v for k, v in COMMON.items() if k != "head_dim"}
FAMILIES = {
    "llama": COMMON,
    "qwen2": COMMON,
    "qwen3": COMMON,
    # Every layer sees the last four tokens only.
    "mistral": {**COMMON, "sliding_window": 4},
    # A window in one layer of two, scores and logits with soft caps.
    "gemma2": {
        **COMMON, **WINDOW, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 4.0,
    },
    "gemma3_text": {**COMMON, **WINDOW, "query_pre_attn_scalar": 8},
    "phi": {**NARROW, "partial_rotary_factor": 0.5},
    "phi3": {**NARROW, "pad_token_id": 0},
    # Every other layer has no positions.
    "smollm3": {**COMMON, "no_rope_layer_interval": 2},
    "qwen3_moe": {
        **COMMON, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    },
    "olmo2": COMMON,
}  # fmt: skip
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    ],
)
PROMPTS = [[3], [2, 5, 7], [9, 8, 7, 6, 5, 4, 3, 2], [2, 5, 7], [3, 3]]


def load(family, device, *, dtype="float32", **options):
    config = {"model_type": family, **FAMILIES[family]}
    source = {
        "path": None,
        "config": config,
        "tokenizer": {"characters": "abcdefghijklmnop"},
        "dtype": dtype,
    }
    service = TransformersInferenceService(options)
    service.load(ModelSpec("policy", ConfigView(source, checked=True), 0, device))
    return service


_engines = {}


@pytest.fixture(params=["cpu", "ahead", CUDA])
def place(request, monkeypatch):
    """Where and how an engine works: "ahead" is the CPU, with steps launched as on a GPU."""
    monkeypatch.setattr(runners, "has_fast_body", lambda model: False)
    return request.param


@pytest.fixture
def engine_of(place):
    def make(family="qwen3"):
        if (family, place) not in _engines:
            engine = load(family, "cuda" if place == "cuda" else "cpu")
            engine._runner.ahead = place != "cpu"
            _engines[family, place] = engine
        return _engines[family, place]

    return make


def ask(prompts, **sampling):
    return [
        GenerationRequest(prompt, SamplingParams(**sampling), (0, 1, i, 0, 0))
        for i, prompt in enumerate(prompts)
    ]


def forward(engine, tokens):
    """Logits of all places, in one pass of the whole model as ``transformers`` has it."""
    with torch.no_grad():
        return engine._model(torch.tensor([tokens], device=engine._model.device)).logits[0].cpu()


def test_memory_is_lent_between_answers_and_not_during_them(engine_of):
    engine = engine_of()
    asked = ask(PROMPTS, max_new_tokens=12)
    wanted = [answer.tokens for answer in engine.generate(asked)]
    (decoder,) = engine._idle
    decoder.lend_memory()
    assert [answer.tokens for answer in engine.generate(asked)] == wanted
    rows = [engine._row(request) for request in asked]
    decoder.admit(rows)
    ended = decoder.step()
    decoder.lend_memory()
    while decoder.live:
        ended += decoder.step()
    assert {row: row.tokens for row in ended} == dict(zip(rows, wanted, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_equal_those_of_generate(engine_of, family):
    engine = engine_of(family)
    assert isinstance(engine._runner.body, SlotBody)
    limits = [24, 9, 17, 30, 5]
    asked = [
        GenerationRequest(prompt, SamplingParams(temperature=0, max_new_tokens=limit), (0,) * 5)
        for prompt, limit in zip(PROMPTS, limits, strict=True)
    ]
    for request, answer in zip(asked, engine.generate(asked), strict=True):
        prompt = torch.tensor([request.prompt_tokens], device=engine._model.device)
        out = engine._model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, eos_token_id=None,
            max_new_tokens=request.sampling.max_new_tokens, pad_token_id=0, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        best = torch.stack(out.logits, 1)[0].topk(2).values
        # Two tokens that are as good as one another may come in either order.
        assert float((best[:, 0] - best[:, 1]).min()) > 1e-5
        assert answer.tokens == out.sequences[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_those_of_a_forward_pass(engine_of, family):
    engine = engine_of(family)
    asked = ask(PROMPTS * 3, temperature=0.7, top_p=0.9, max_new_tokens=20)
    for request, answer in zip(asked, engine.generate(asked), strict=True):
        prompt, tokens = request.prompt_tokens, answer.tokens
        rows = (forward(engine, [*prompt, *tokens]) / 0.7).log_softmax(-1)[len(prompt) - 1 : -1]
        expected = rows.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert answer.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        # And only tokens of the nucleus are drawn: those before it hold less than 0.9.
        for row, token in zip(rows.exp(), tokens, strict=True):
            assert float(row[row > row[token]].sum()) < 0.9 + 1e-5


def test_rows_join_and_leave_and_get_what_they_get_alone(engine_of, engine_like):
    engine = engine_of()
    kinds = [{}, {"temperature": 0}, {"top_k": 3}, {"temperature": 2.0, "stop_token_ids": (1, 2)},
             {"min_p": 0.1}, {"min_new_tokens": 4, "stop_token_ids": (3, 4, 5, 6)}]  # fmt: skip
    asked = [
        GenerationRequest(
            [2 + i % 7] * (1 + i % 5),
            SamplingParams(**{"max_new_tokens": 4 + 5 * i % 19, **kinds[i % 6]}),
            (0, 0, i, 0, 0),
        )
        for i in range(15)
    ]
    small = engine_like(engine, max_batch_size=7).generate(asked)
    for request, got, wide in zip(asked, small, engine.generate(asked), strict=True):
        (alone,) = engine.generate([request])
        assert got.tokens == wide.tokens == alone.tokens
        assert got.finish_reason == wide.finish_reason == alone.finish_reason
        assert got.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_the_prompt_of_a_group_is_computed_once(engine_of, monkeypatch):
    engine, computed = engine_of(), []
    prefill = engine._runner.prefill

    def counting(prompts, *rest):
        computed.extend(map(tuple, prompts))
        return prefill(prompts, *rest)

    monkeypatch.setattr(engine._runner, "prefill", counting)
    sampling = SamplingParams(max_new_tokens=6)
    asked = [
        GenerationRequest(PROMPTS[item], sampling, (0, 0, item, run, 0))
        for item in range(3)
        for run in range(4)
    ]
    answers = engine.generate(asked)
    assert computed == [tuple(prompt) for prompt in PROMPTS[:3]]
    assert len({tuple(answer.tokens) for answer in answers}) > 3
    assert [engine.generate([one])[0].tokens for one in asked] == [a.tokens for a in answers]


def test_stop_tokens_and_strings_end_rows(engine_of):
    engine = engine_of()
    free = engine.generate(ask([[3]] * 24, temperature=2.0, max_new_tokens=40))
    tokens = ask([[3]] * 24, temperature=2.0, max_new_tokens=40, stop_token_ids=(5, 6))
    texts = ask([[3]] * 24, temperature=2.0, max_new_tokens=40, stop=("c", "ab"))
    for whole, answer in zip(free, engine.generate(tokens), strict=True):
        ends = [i + 1 for i, token in enumerate(whole.tokens) if token in (5, 6)]
        assert answer.tokens == whole.tokens[: ends[0] if ends else 40]
        assert answer.finish_reason == ("stop" if ends else "length")
    for whole, answer in zip(free, engine.generate(texts), strict=True):
        said = [engine.tokenizer.decode(whole.tokens[:n]) for n in range(1, 41)]
        ends = [n for n, text in enumerate(said, 1) if "c" in text or "ab" in text]
        assert answer.tokens == whole.tokens[: ends[0] if ends else 40]


def test_penalties_and_top_log_probabilities_come_with_rows_that_ask(engine_of):
    engine = engine_of()
    asked = [
        *ask([[3, 4]], temperature=0.7, max_new_tokens=20, frequency_penalty=1.5),
        *ask([[3, 4]], top_logprobs=3, max_new_tokens=20),
        *ask([[3, 4]], max_new_tokens=20),
    ]
    first, second, third = engine.generate(asked)
    assert [engine.generate([one])[0].tokens for one in asked] == [
        first.tokens, second.tokens, third.tokens
    ]  # fmt: skip
    rows = forward(engine, [3, 4, *second.tokens]).log_softmax(-1)[1:-1]
    for pairs, row in zip(second.top_logprobs, rows, strict=True):
        values, tokens = row.topk(3)
        assert [token for token, _ in pairs] == tokens.tolist()
        assert [value for _, value in pairs] == pytest.approx(values.tolist(), abs=1e-4)
    logits = forward(engine, [3, 4, *first.tokens])[1:-1]
    for count, (row, token) in enumerate(zip(logits, first.tokens, strict=True)):
        said = torch.bincount(torch.tensor(first.tokens[:count], dtype=torch.long), minlength=18)
        expected = ((row - 1.5 * said) / 0.7).log_softmax(-1)[token]
        assert first.logprobs[count] == pytest.approx(float(expected), abs=1e-4)


def test_a_cancelled_request_leaves_and_the_others_go_on(engine_of):
    engine = engine_of()
    asked = ask([[3], [4], [5]], max_new_tokens=60)

    async def go():
        tasks = [asyncio.create_task(engine.complete(one)) for one in asked]
        await asyncio.sleep(0.02)
        tasks[1].cancel()
        return await asyncio.gather(tasks[0], tasks[2])

    got = asyncio.run(asyncio.wait_for(go(), DEADLINE))
    assert [a.tokens for a in got] == [
        engine.generate([one])[0].tokens for one in (asked[0], asked[2])
    ]
    engine.close()


def test_more_rows_and_longer_ones_than_before_find_room(engine_of):
    engine = engine_of()
    # Of every shape alone, and then while others are being decoded.
    for count, length in ((2, 4), (9, 40), (3, 5)):
        asked = ask([[3 + i % 5] for i in range(count)], max_new_tokens=length)
        assert [len(a.tokens) for a in engine.generate(asked)] == [length] * count
    asked = [
        *ask([[3]], max_new_tokens=30),
        *ask([[4 + i % 4] * (1 + i % 3) for i in range(5)], max_new_tokens=80),
    ]

    async def go():
        first = asyncio.create_task(engine.complete(asked[0]))
        await asyncio.sleep(0.01)
        return await asyncio.gather(first, *map(engine.complete, asked[1:]))

    got = asyncio.run(asyncio.wait_for(go(), DEADLINE))
    expected = [engine.generate([one])[0] for one in asked]
    assert [a.tokens for a in got] == [a.tokens for a in expected]
    engine.close()


def test_new_weights_are_sampled_from(engine_of):
    engine = engine_of()
    before = {name: value.clone() for name, value in engine._model.state_dict().items()}
    asked = ask(PROMPTS, max_new_tokens=10)
    engine.generate(asked)
    engine.update_weights({name: value + 0.05 for name, value in before.items()}, 1)
    try:
        for request, answer in zip(asked, engine.generate(asked), strict=True):
            prompt = request.prompt_tokens
            rows = forward(engine, [*prompt, *answer.tokens]).log_softmax(-1)[len(prompt) - 1 : -1]
            expected = rows.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
            assert answer.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
            assert answer.version == 1
    finally:
        engine.update_weights(before, 0)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_half_precision_gives_log_probabilities_of_the_model(device):
    engine = load("gemma2", device, dtype="bfloat16")
    assert isinstance(engine._runner.body, SlotBody)
    asked = ask(PROMPTS, max_new_tokens=40)
    for request, answer in zip(asked, engine.generate(asked), strict=True):
        scores = engine.score([[*request.prompt_tokens, *answer.tokens]])[0]
        own = scores[len(request.prompt_tokens) :]
        apart = [abs(a - b) for a, b in zip(own, answer.logprobs, strict=True)]
        assert sum(apart) / len(apart) < 0.02


def test_a_layer_that_attends_otherwise_is_found_out(monkeypatch, caplog):
    # As a family whose attention has something that is not computed here.
    from plugrl.plugins.transformers.engine import attention

    plain = attention.plain_append_and_attend
    monkeypatch.setattr(runners, "has_fast_body", lambda model: False)
    monkeypatch.setattr(attention, "plain_append_and_attend", lambda *given: plain(*given) * 1.01)
    engine = load("qwen3", "cpu")
    assert isinstance(engine._runner.body, WholeBody)
    (said,) = [r.getMessage() for r in caplog.records if "whole batches" in r.getMessage()]
    assert said.startswith("models of type qwen3 are sampled from through the cache")
