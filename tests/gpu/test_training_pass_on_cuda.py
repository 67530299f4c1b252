"""The training pass on a CUDA device: attention over lengths, compiled parts, and memory."""

import gc

import pytest
import torch
from torch._dynamo.utils import counters

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import RunError
from plugrl.core.text.batch import Batch
from plugrl.core.text.inference.services import ModelSpec
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.plugins.transformers.training import varlen
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
LOSS = WeightedLoss(cross_entropy, {})
MODEL = {
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}
WINDOWS = {**MODEL, "model_type": "mistral", "sliding_window": 32}


def service(config=MODEL, dtype="bfloat16", **options):
    source = {
        "path": None,
        "config": config,
        "tokenizer": {"characters": "abcdefghijklmnopqrstuvwxyz"},
        "dtype": dtype,
    }
    made = LocalTrainService({"learning_rate": 1e-3, **options})
    made.load(ModelSpec("policy", ConfigView(source, checked=True), 0, "cuda"))
    return made


def batch(rows=12, longest=200, prompt=40, seed=0, temperature=0.7):
    """Rows of many lengths, each prompt of three of them."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for row in range(rows):
        length = int(torch.randint(2, longest, (), generator=draw))
        answer = torch.randint(2, 28, (length,), generator=draw).tolist()
        begin = [(row // 3 * 7 + place * place) % 28 for place in range(prompt)]
        made.append(Trajectory([*begin, *answer], [0] * prompt + [1] * length))
    whole = Batch.from_trajectories(made, temperature=temperature)
    whole.values[LOSS_WEIGHTS] = aggregation_weights(whole.values["loss_mask"], "token-mean")
    return whole


def gradient(made, data):
    made.forward_backward(data, LOSS)
    return torch.cat([each.grad.float().flatten() for each in made.parameters()])


def difference(got, want):
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("prompt", [2, 120], ids=["lone", "shared"])
@pytest.mark.parametrize("config", [MODEL, WINDOWS], ids=["qwen3", "windows"])
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_numbers_are_those_of_padded_rows_in_float32(config, prompt, compiled):
    data = batch(prompt=prompt)
    exact = service(config, "float32", packing="never", compile=False)
    padded = service(config, packing="never", compile=False)
    ours = service(config, compile=compiled)
    assert ours._forward.by_lengths
    assert ours.is_compiled is compiled
    # The same weights, rounded, in float32.
    exact.load_weights({name: value.float() for name, value in padded.weights().items()})
    mask = data.values["loss_mask"] != 0
    want = exact.compute_log_prob(data)[mask]
    off, own = (
        (each.compute_log_prob(data)[mask] - want).abs().mean().item() for each in (padded, ours)
    )
    assert own < 0.02
    assert own < 2 * off + 1e-4
    want = gradient(exact, data)
    assert difference(gradient(ours, data), want) < 2 * difference(gradient(padded, data), want)


def test_a_head_in_compiled_chunks_gives_entropies(monkeypatch):
    made = service(head_chunk_tokens=64)
    hidden = torch.randn(150, 256, device="cuda", dtype=torch.bfloat16)
    targets = torch.randint(28, (150,), device="cuda")
    heat = torch.linspace(0.5, 1.5, 150, device="cuda")[:, None]
    plain = made._forward.head(hidden, targets, heat, entropy=True)
    made._forward.head.compile()
    torch.testing.assert_close(
        made._forward.head(hidden, targets, heat, entropy=True), plain, rtol=1e-3, atol=1e-3
    )


def test_nothing_is_compiled_after_the_second_step():
    torch._dynamo.reset()
    made = service(compile=True)
    for seed, prompt in enumerate((120, 2)):
        made.compute_log_prob(batch(prompt=prompt, seed=seed))
        made.forward_backward(batch(prompt=prompt, seed=seed), LOSS)
        made.optimizer_step()
    graphs = counters["stats"]["unique_graphs"]
    sizes = [(1, 5, 2), (3, 2000, 2), (40, 30, 2), (200, 90, 40), (70, 60, 3), (9, 9, 90)]
    for seed, (rows, longest, prompt) in enumerate(sizes):
        data = batch(rows, longest, prompt, seed)
        made.compute_log_prob(data)
        made.forward_backward(data, LOSS)
        made.optimizer_step()
    assert counters["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_kernel_is_taken_for_its_types_alone(dtype):
    assert service(dtype=dtype, compile=False)._forward.by_lengths is (dtype == "bfloat16")


def test_queries_that_share_keys_are_tried_forward_and_backward():
    # Both answers are right; an error would not be one.
    assert varlen._groups("cuda") in (True, False)


def test_a_pass_that_does_not_fit_is_made_smaller_until_the_run_ends(caplog):
    made = service({**MODEL, "num_hidden_layers": 16}, compile=False)
    assert made._memory.tokens({}) == 16_384
    data = batch(rows=32, longest=2000)
    want = gradient(made, data)
    made._optimizer.zero_grad()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    gradient(made, data)
    made._optimizer.zero_grad()
    peak = torch.cuda.max_memory_allocated()
    held = torch.cuda.memory_allocated()
    # What the device says is free is more than what this process may take.
    total = torch.cuda.get_device_properties("cuda").total_memory
    try:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((held + 0.75 * (peak - held)) / total)
        assert difference(gradient(made, data), want) < 0.02
        assert "goes on with 8,192 tokens a pass" in caplog.text
        made._optimizer.zero_grad()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((held + 0.05 * (peak - held)) / total)
        with pytest.raises(RunError, match=r"set models\.policy\.train\.micro_batch_tokens below"):
            made.forward_backward(data, LOSS)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


@pytest.mark.parametrize("name", ["adamw_8bit", "muon"])
def test_optimizers_resume_exactly(name):
    if name == "adamw_8bit":
        pytest.importorskip("torchao")
    options = {"optimizer": name, "compile": False, "packing": "never"}
    first, second = service(**options), service(**options)
    data = batch(rows=4, longest=50)
    first.forward_backward(data, LOSS)
    first.optimizer_step()
    second.load_state_dict(first.state_dict())
    kept = first.state_dict()["optimizer"]
    taken = second.state_dict()["optimizer"]

    def same(one, other):
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
        return torch.equal(one, other)

    assert same(kept, taken)
