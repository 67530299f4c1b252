"""The engine on a CUDA device: captured and compiled steps, memory, and numbers over many tokens.

What it has in common with the CPU is in ``tests/plugins_transformers/test_engine.py``, which the
tier ``gpu`` runs on the device too.
"""

import sys
from pathlib import Path

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from plugrl.core.errors import RunError
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins_transformers"))
import test_engine as small

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def many(count, **sampling):
    return [
        GenerationRequest([2 + i % 9] * (1 + i % 6), SamplingParams(**sampling), (0, 0, i, 0, 0))
        for i in range(count)
    ]


def steps_of(engine):
    (decoder,) = engine._idle
    return list(decoder._ahead._steps.values())


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "mistral", "qwen3_moe"])
def test_compiled_steps_give_the_tokens_of_uncompiled_ones(family):
    asked = many(40, temperature=0.7, top_p=0.9, max_new_tokens=60, stop_token_ids=(3,))
    plain, compiled = (small.load(family, "cuda", compile=wish) for wish in (False, True))
    answers = compiled.generate(asked)
    for got, wanted in zip(answers, plain.generate(asked), strict=True):
        # Sums in another order may decide between two tokens, late and seldom.
        same = next(
            (i for i, (a, b) in enumerate(zip(got.tokens, wanted.tokens, strict=False)) if a != b),
            min(len(got.tokens), len(wanted.tokens)),
        )
        assert got.logprobs[:same] == pytest.approx(wanted.logprobs[:same], abs=1e-4)
    agreed = sum(a.tokens == b.tokens for a, b in zip(answers, plain.generate(asked), strict=True))
    assert agreed >= 38
    if family != "qwen3_moe":
        for engine in (plain, compiled):
            assert all(step._graph is not None for step in steps_of(engine))


def test_steps_are_captured_once_for_each_size():
    engine = small.load("qwen3", "cuda")
    for _ in range(3):
        engine.generate(many(20, max_new_tokens=30))
    assert len(steps_of(engine)) == 1
    engine.generate(many(5, max_new_tokens=30))
    assert len(steps_of(engine)) == 2


def test_one_graph_serves_the_layers_of_batches_of_all_sizes():
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    # Its heads are as wide as one of the batches is large.
    engine = small.load("qwen3", "cuda", compile=True)
    engine.generate(many(8, max_new_tokens=20))
    compiled = counters["stats"]["unique_graphs"]
    # The layers, and what follows them.
    assert 1 <= compiled <= 2
    for count in (3, 20, 60):
        engine.generate(many(count, max_new_tokens=20))
    assert counters["stats"]["unique_graphs"] == compiled


def test_norms_of_queries_and_keys_are_one_kernel_with_constant_epsilons():
    torch._dynamo.reset()
    engine = small.load("qwen3", "cuda", compile=True)
    with torch._inductor.config.patch(force_disable_caches=True):
        _, sources = run_and_get_code(engine.generate, many(8, max_new_tokens=20))
    (layer,) = (source for source in sources if "append_and_attend" in source)
    assert layer.count("combo_grid_meta") == 1
    # A number that were an input would be a tensor on the CPU, read back within each step.
    assert ".item()" not in layer
    assert "cpp_pybinding" not in layer


def test_equal_seeds_give_equal_tokens_from_run_to_run():
    asked = many(64, temperature=1.0, max_new_tokens=100)
    first = small.load("llama", "cuda", dtype="bfloat16").generate(asked)
    again = small.load("llama", "cuda", dtype="bfloat16").generate(asked)
    assert [a.tokens for a in first] == [a.tokens for a in again]
    assert [a.logprobs for a in first] == [a.logprobs for a in again]


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "olmo2", "phi"])
@pytest.mark.parametrize("heat", [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}])
def test_log_probabilities_of_many_tokens_are_those_of_the_model(family, heat):
    engine = small.load(family, "cuda", dtype="bfloat16")
    exact = small.load(family, "cuda")
    exact.update_weights({n: w.float() for n, w in engine._model.state_dict().items()}, 0)
    asked = many(256, max_new_tokens=100, **heat)
    total = apart = 0.0
    for request, answer in zip(asked, engine.generate(asked), strict=True):
        whole = [*request.prompt_tokens, *answer.tokens]
        logits = small.forward(exact, whole)[len(request.prompt_tokens) - 1 : -1]
        own = (logits / heat["temperature"]).log_softmax(-1)
        own = own.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
        apart += float((own - torch.tensor(answer.logprobs)).abs().sum())
        total += len(answer.tokens)
    assert total > 25_000
    assert apart / total < 0.02


def test_no_compiler_goes_on_uncompiled_and_says_so_once(monkeypatch, caplog):
    def fails(*args, **kwargs):
        raise RuntimeError("no working compiler\nand much more")

    monkeypatch.setattr(torch, "compile", fails)
    engine = small.load("qwen3", "cuda", compile=True)
    asked = many(12, max_new_tokens=20)
    answers = engine.generate(asked)
    engine.generate(many(3, max_new_tokens=20))
    said = [r.getMessage() for r in caplog.records if "uncompiled" in r.getMessage()]
    assert said == [
        "models.policy.inference.compile: goes on uncompiled: RuntimeError: no working compiler"
    ]
    wanted = small.load("qwen3", "cuda").generate(asked)
    assert [a.tokens for a in answers] == [a.tokens for a in wanted]


def test_a_corrupt_cache_of_compiled_code_does_no_harm(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    asked = many(12, max_new_tokens=20)
    first = small.load("qwen3", "cuda", compile=True).generate(asked)
    for file in tmp_path.rglob("*"):
        if file.is_file() and file.suffix != ".so":
            file.write_bytes(b"\0garbage")
    torch._dynamo.reset()
    again = small.load("qwen3", "cuda", compile=True).generate(asked)
    assert [a.tokens for a in first] == [a.tokens for a in again]


def test_as_many_rows_are_decoded_at_once_as_there_is_memory_for():
    engine = small.load("qwen3", "cuda")
    total = torch.cuda.get_device_properties("cuda").total_memory
    asked = many(64, max_new_tokens=100)
    wanted = [a.tokens for a in engine.generate(asked)]
    (decoder,) = engine._idle
    one = decoder._cache.shape.token_bytes * 128
    decoder._cache.release()
    held = torch.empty(torch.cuda.mem_get_info()[0] - 2**30, dtype=torch.uint8, device="cuda")
    try:
        assert decoder._cache.most_rows(128) * one < total
        assert [a.tokens for a in engine.generate(asked)] == wanted
    finally:
        del held
        torch.cuda.empty_cache()


def test_what_does_not_fit_at_all_names_the_settings():
    engine = small.load("qwen3", "cuda")
    torch.cuda.set_per_process_memory_fraction(1e-3)
    try:
        cache = engine._runner.body.new_cache()
        with pytest.raises(RunError, match=r"lower models\.NAME\.inference\.max_batch_size"):
            cache.reserve(256, 2**20, 0)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
