"""The train service on a CUDA device: precision, adapters, memory and packing."""

from types import SimpleNamespace

import pytest
import torch

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import RunError
from plugrl.core.text.batch import Batch
from plugrl.core.text.dry_run import try_step
from plugrl.core.text.inference.services import ModelSpec
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.models import Model, Models
from plugrl.core.text.schedule.weight_sync import WeightSync
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.trainers.self_hosted_cross_entropy import SelfHostedCrossEntropyTrainer, cross_entropy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
LOSS = WeightedLoss(cross_entropy, {})
MODEL = {
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
}
LORA = {"type": "lora", "r": 8, "alpha": 16.0, "dropout": 0.0, "target_modules": "auto"}


def spec(dtype="float32", adapter=None):
    source = {
        "path": None,
        "config": MODEL,
        "tokenizer": {"characters": "abcdefghijklmnopqrstuvwxyz"},
        "dtype": dtype,
    }
    section = None if adapter is None else ConfigView(adapter, checked=True)
    return ModelSpec("policy", ConfigView(source, checked=True), 0, "cuda", section)


def train_service(chosen, **options):
    service = LocalTrainService({"learning_rate": 1e-3, **options})
    service.load(chosen)
    return service


def batch(rows=8, longest=200):
    generator = torch.Generator().manual_seed(0)
    made = []
    for row in range(rows):
        size = longest - row * (longest // (2 * rows))
        tokens = torch.randint(2, 28, (size,), generator=generator).tolist()
        made.append(Trajectory(tokens, [0] * (size // 4) + [1] * (size - size // 4)))
    whole = Batch.from_trajectories(made)
    whole.values[LOSS_WEIGHTS] = aggregation_weights(whole.values["loss_mask"], "token-mean")
    return whole


def step(service, data):
    totals = service.forward_backward(data, LOSS)
    return totals["loss"][0], service.optimizer_step()


def gradients(service):
    return {n: p.grad.clone() for n, p in service._model.named_parameters() if p.grad is not None}


def peak_of_a_pass(service, data):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    service.forward_backward(data, LOSS)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def test_bfloat16_keeps_small_updates_in_float32():
    # Numbers around 1 stand 0.004 apart: no step of Adam reaches half of that, some together do.
    kept, lost = (
        train_service(spec("bfloat16"), learning_rate=5e-4, weight_decay=0.0, master_weights=wish)
        for wish in ("auto", False)
    )
    name, data = "model.layers.0.input_layernorm.weight", batch()
    for service, moves in ((kept, True), (lost, False)):
        before = service.weights()[name].clone()
        for _ in range(100):
            step(service, data)
        assert service.weights()[name].dtype == torch.bfloat16
        assert torch.equal(service.weights()[name], before) is not moves


def test_bfloat16_learns_and_resumes():
    straight, resumed = (train_service(spec("bfloat16")) for _ in range(2))
    data = batch()
    first = step(straight, data)[0]
    for _ in range(9):
        step(straight, data)
    resumed.load_state_dict(straight.state_dict())
    for name, copy in straight._masters.copies.items():
        assert torch.equal(resumed._masters.copies[name], copy)
    ahead, again = step(straight, data), step(resumed, data)
    assert again[0] == pytest.approx(ahead[0], rel=1e-3)
    assert ahead[0] < first


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.02)])
def test_the_sampler_runs_the_merged_adapter(dtype, tolerance):
    pytest.importorskip("peft")
    engine = TransformersInferenceService({})
    engine.load(spec(dtype))
    service = train_service(spec(dtype, LORA))
    data = batch()
    frozen = {n: p.clone() for n, p in service._model.named_parameters() if not p.requires_grad}
    losses = [step(service, data)[0] for _ in range(20)]
    assert losses[-1] < losses[0]
    for name, weight in service._model.named_parameters():
        assert weight.requires_grad or torch.equal(weight, frozen[name])
    sync = WeightSync(Model("policy", engine, service), tolerance)
    sync.observe([Trajectory(list(range(2, 28)), [0] + [1] * 25)])
    assert sync() < tolerance


def test_an_adapter_needs_less_memory_than_all_weights():
    pytest.importorskip("peft")
    data, held = batch(), []
    for adapter in (None, LORA):
        before = torch.cuda.memory_allocated()
        service = train_service(spec(adapter=adapter))
        step(service, data)
        held.append(torch.cuda.memory_allocated() - before)
        del service
    assert held[1] < held[0] / 2


def test_gradient_checkpointing_lowers_the_peak_alone():
    data = batch(rows=16, longest=1000)
    kept, again = train_service(spec()), train_service(spec(), gradient_checkpointing=True)
    high, low = peak_of_a_pass(kept, data), peak_of_a_pass(again, data)
    assert low < high * 0.7
    other = gradients(again)
    for name, gradient in gradients(kept).items():
        torch.testing.assert_close(other[name], gradient, rtol=1e-3, atol=1e-5)


def test_packed_rows_equal_padded_ones():
    data = batch()
    packed, padded = (train_service(spec(), packing=wish) for wish in ("always", "never"))
    torch.testing.assert_close(
        packed.compute_log_prob(data), padded.compute_log_prob(data), rtol=1e-4, atol=1e-4
    )
    packed.forward_backward(data, LOSS)
    padded.forward_backward(data, LOSS)
    other = gradients(padded)
    for name, gradient in gradients(packed).items():
        torch.testing.assert_close(gradient, other[name], rtol=1e-3, atol=1e-5)


def trainer(rows, response):
    """A trainer as a dry run has it, bound to what its configuration would give."""
    engine = TransformersInferenceService({})
    engine.load(spec())
    options = {"learning_rate": 1e-3, "micro_batch_size": rows}
    service = train_service(spec(), **options)
    made = SelfHostedCrossEntropyTrainer(
        {"type": "self_hosted_cross_entropy"},
        models=Models({"policy": Model("policy", engine, service)}),
    )
    train = {
        "type": "local",
        "micro_batch_tokens": None,
        "gradient_checkpointing": False,
        **options,
    }
    params = {
        "seed": 0,
        "models": {"policy": {"train": train}},
        "data": {"batch_size": rows, "rollout_repeat_n": 1},
        "trajectory_pool": {"batch_size": None},
        "rollout_worker": {
            "type": "single_turn",
            "model": "policy",
            "max_prompt_length": 24,
            "max_response_length": response,
            "temperature": 1.0,
        },
    }
    from plugrl.core.factory import Factory
    from plugrl.core.plugins.registry import default_registry

    made._context = SimpleNamespace(
        hyper_params=ConfigView(params, checked=True),
        settings=SimpleNamespace(device="cuda"),
        factory=Factory(default_registry()),
    )
    return made


def test_a_dry_run_reports_the_memory_of_the_device():
    small, large = try_step(trainer(2, 100)), try_step(trainer(32, 1000))
    assert (large["rows"], large["tokens"]) == (32, 1024)
    assert large["total_bytes"] == torch.cuda.get_device_properties("cuda").total_memory
    assert 0 < small["peak_bytes"] < large["peak_bytes"] < large["total_bytes"]


def test_a_dry_run_that_does_not_fit_names_the_settings():
    held = trainer(256, 1000)
    total = torch.cuda.get_device_properties("cuda").total_memory
    # What is left on the device is too little for the step, whatever its size.
    room = (torch.cuda.memory_reserved() + 2**28) / total
    torch.cuda.set_per_process_memory_fraction(room)
    try:
        with pytest.raises(
            RunError, match=r"models\.policy\.train\.micro_batch_size=256"
        ) as caught:
            try_step(held)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    assert "256 sequences of 1024 tokens do not fit into the memory of cuda" in str(caught.value)
    assert "gradient_checkpointing=true" in str(caught.value)
