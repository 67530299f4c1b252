"""Sampled log-probabilities against a float32 forward pass, over 100,000 tokens of many families.

``TRIED_ON_CPU=1`` runs it there with few tokens, to see that the test itself works.
"""

import os
from itertools import groupby

import pytest
import torch

from plugrl.core.config.view import ConfigView
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import ModelSpec
from plugrl.core.text.schedule.weight_sync import PARITY_TOLERANCE
from plugrl.plugins.transformers.engine.slot_body import SlotBody
from plugrl.plugins.transformers.inference_service import TransformersInferenceService

ON_CPU = bool(os.environ.get("TRIED_ON_CPU"))
DEVICE = "cpu" if ON_CPU else "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not ON_CPU and not torch.cuda.is_available(), reason="there is no CUDA device"
    ),
]
COMMON = {
    "vocab_size": 600,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    # So large that some tokens are far likelier than others.
    "initializer_range": 0.12,
}
WINDOW = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}
NARROW = {k: v for k, v in COMMON.items() if k != "head_dim"}
FAMILIES = {
    "llama": COMMON,
    "qwen2": COMMON,
    "qwen3": COMMON,
    "mistral": {**COMMON, "sliding_window": 12},
    "gemma2": {
        **COMMON, **WINDOW, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 8.0,
    },
    "gemma3_text": {**COMMON, **WINDOW, "query_pre_attn_scalar": 16},
    "phi": {**NARROW, "partial_rotary_factor": 0.5},
    "smollm3": {**COMMON, "no_rope_layer_interval": 2, "pad_token_id": 0},
    "qwen3_moe": {
        **COMMON, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    },
    "olmo2": COMMON,
}  # fmt: skip
#: Rows of each way of sampling, and tokens of each: 10 families in 2 types give 102,400.
ROWS, LENGTH = (8, 10) if ON_CPU else (64, 40)
HEATS = ({"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9})
_counted: dict[tuple[str, str], int] = {}


def load(family: str, dtype: str) -> TransformersInferenceService:
    source = {
        "path": None,
        "config": {"model_type": family, **FAMILIES[family]},
        "tokenizer": {"characters": "abcdefghijklmnop"},
        "dtype": dtype,
    }
    service = TransformersInferenceService({})
    service.load(ModelSpec("policy", ConfigView(source, checked=True), 0, DEVICE))
    return service


def asked() -> list[GenerationRequest]:
    """Prompts of several lengths, those of one length side by side."""
    draw = torch.Generator().manual_seed(0)
    made = []
    for number in range(2 * ROWS):
        prompt = torch.randint(1, 600, (1 + number * 30 // (2 * ROWS),), generator=draw)
        sampling = SamplingParams(max_new_tokens=LENGTH, **HEATS[number % 2])
        made.append(GenerationRequest(prompt.tolist(), sampling, (0, 0, number, 0, 0)))
    return made


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_they_agree_with_a_float32_forward(family, dtype):
    engine = load(family, dtype)
    assert isinstance(engine._runner.body, SlotBody) or ON_CPU
    requests = asked()
    answers = engine.generate(requests)
    model = engine._model.float().eval()
    apart: dict[float, list[torch.Tensor]] = {heat["temperature"]: [] for heat in HEATS}
    pairs = zip(requests, answers, strict=True)
    for length, group in groupby(pairs, lambda pair: len(pair[0].prompt_tokens)):
        rows = list(group)
        tokens = torch.tensor([[*one.prompt_tokens, *got.tokens] for one, got in rows])
        heat = torch.tensor([[[one.sampling.temperature]] for one, _ in rows])
        with torch.no_grad():
            logits = model(tokens.to(DEVICE), use_cache=False).logits[:, length - 1 : -1]
            expected = (logits / heat.to(DEVICE)).log_softmax(-1)
        chosen = expected.gather(-1, tokens[:, length:, None].to(DEVICE))
        own = torch.tensor([got.logprobs for _, got in rows])
        off = (chosen[..., 0].cpu() - own).abs()
        # What is likelier than a token of a nucleus of 0.9 has less than that.
        before = (expected.exp() * (expected > chosen)).sum(-1).cpu()
        for row, (one, _) in enumerate(rows):
            apart[one.sampling.temperature].append(off[row])
            if one.sampling.top_p < 1:
                slack = 1e-4 if dtype == "float32" else 0.05
                assert float(before[row].max()) < one.sampling.top_p + slack
    for found in apart.values():
        assert float(torch.stack(found).mean()) <= PARITY_TOLERANCE[dtype]
    assert len({tuple(got.tokens) for got in answers}) == len(answers)
    _counted[family, dtype] = sum(len(got.tokens) for got in answers)


def test_these_were_many_tokens():
    if len(_counted) < 2 * len(FAMILIES) or ON_CPU:
        pytest.skip("not all families were asked")
    assert sum(_counted.values()) >= 100_000
