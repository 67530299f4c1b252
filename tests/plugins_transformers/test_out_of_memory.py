"""Memory that runs out, in sampling or in training, is one line that names the settings."""

import asyncio
import json
import sys
from pathlib import Path

import little_memory
import pytest
import torch
import yaml
from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer

import plugrl
from plugrl.core.errors import RunError
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.learn.losses import WeightedLoss
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.testing import tiny
from plugrl.testing.comparison import comparable_metrics
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
from batches import weighted

SAMPLED = (
    "model 'policy' ran out of the memory of cpu while it was sampled from: lower "
    "models.policy.inference.max_batch_size, or rollout_worker.max_prompt_length, or "
    "rollout_worker.max_response_length"
)
TRAINED = "model 'policy' ran out of the memory of cpu while it was trained: "
RESPONSES = "lower rollout_worker.max_response_length"
CHECKPOINTING = "set models.policy.train.gradient_checkpointing=true, or "


def of_a_library():
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def of_this_machine():
    return torch.empty(2**60)


SHORTAGES = [little_memory.run_out, of_a_library, of_this_machine]


def request(length=2):
    return GenerationRequest([1, 2], SamplingParams(max_new_tokens=length), (0, 0, 0, 0, 0))


class Engine:
    """An engine whose model has layers that run out of memory while ``shortage`` is set."""

    def __init__(self, spec, at):
        self.service = TransformersInferenceService({})
        self.service.load(spec)
        self.shortage, self._at, self._passes = None, at, 0
        self.service._model.model.layers[1].register_forward_pre_hook(self._count)

    def run_out(self, shortage):
        self.shortage, self._passes = shortage, 0

    def _count(self, *_):
        self._passes += 1
        if self.shortage is not None and self._passes == self._at:
            self.shortage()


@pytest.mark.parametrize("at", [1, 2], ids=["prompts", "steps"])
@pytest.mark.parametrize("shortage", SHORTAGES)
def test_sampling_names_the_settings_and_goes_on_afterwards(architecture_spec, shortage, at):
    engine = Engine(architecture_spec("gemma2"), at)
    service = engine.service
    expected = service.generate([request()])[0].tokens
    engine.run_out(shortage)
    with pytest.raises(RunError) as caught:
        service.generate([request()])
    assert str(caught.value) == SAMPLED
    engine.run_out(shortage)
    with pytest.raises(RunError) as caught:
        asyncio.run(service.complete(request()))
    assert str(caught.value) == SAMPLED
    engine.run_out(None)
    assert service.generate([request()])[0].tokens == expected
    assert asyncio.run(service.complete(request())).tokens == expected
    service.close()


def test_other_errors_of_sampling_stay_as_they_are(architecture_spec):
    def fails():
        raise RuntimeError("a kernel failed")

    engine = Engine(architecture_spec("gemma2"), 1)
    engine.run_out(fails)
    with pytest.raises(RuntimeError, match="^a kernel failed$"):
        engine.service.generate([request()])


OPTIONS = [
    (
        {"micro_batch_size": 4},
        f"lower models.policy.train.micro_batch_size=4, or {CHECKPOINTING}{RESPONSES}",
    ),
    ({"micro_batch_size": 1}, f"{CHECKPOINTING}{RESPONSES}"),
    (
        {"micro_batch_tokens": 64, "gradient_checkpointing": True},
        f"lower models.policy.train.micro_batch_tokens=64, or {RESPONSES}",
    ),
]


@pytest.mark.parametrize(("options", "advice"), OPTIONS, ids=["rows", "one row", "tokens"])
@pytest.mark.parametrize("work", ["forward", "backward", "log-probabilities", "values"])
def test_training_names_the_settings(train_service, options, advice, work):
    service = train_service(value_head=True, **options)
    layer = service.module.model.layers[1]

    def hook(*_):
        little_memory.run_out()

    if work == "backward":
        layer.register_full_backward_hook(hook)
    else:
        layer.register_forward_pre_hook(hook)
    batch = weighted()
    calls = {
        "log-probabilities": lambda: service.compute_log_prob(batch),
        "values": lambda: service.compute_values(batch),
    }
    gradient = lambda: service.forward_backward(batch, WeightedLoss(cross_entropy, {}))  # noqa: E731
    with pytest.raises(RunError) as caught:
        calls.get(work, gradient)()
    assert str(caught.value) == TRAINED + advice


def test_moments_that_do_not_fit_name_the_settings(train_service, monkeypatch):
    service = train_service(micro_batch_size=2)
    service.forward_backward(weighted(), WeightedLoss(cross_entropy, {}))
    # The moments of AdamW come into being with the first step.
    monkeypatch.setattr(torch, "zeros_like", lambda *_, **__: little_memory.run_out())
    with pytest.raises(RunError) as caught:
        service.optimizer_step()
    assert str(caught.value).startswith(TRAINED + "lower models.policy.train.micro_batch_size=2")


@pytest.mark.parametrize("service", [LocalTrainService, TransformersInferenceService])
@pytest.mark.parametrize(
    ("dtype", "more"),
    [("float32", ", or set models.policy.source.dtype=bfloat16"), ("bfloat16", "")],
)
def test_a_model_that_does_not_fit_is_named(spec, monkeypatch, service, dtype, more):
    made = service({})
    monkeypatch.setattr(torch.nn.Module, "to", lambda *_, **__: little_memory.run_out())
    with pytest.raises(RunError) as caught:
        made.load(spec(dtype=dtype))
    said = "model 'policy' does not fit into the memory of cpu: take a smaller model"
    assert str(caught.value) == said + more


SOURCE = {
    "config": {"model_type": "gemma2", "query_pre_attn_scalar": 8, "sliding_window": 8},
    "tokenizer": {"characters": "ab"},
}
#: Which passes of a layer are of the half, after as many that trained, and what is said.
HALVES = {
    "sampled": (lambda trained, given: trained == 2 and "slot_positions" in given, SAMPLED),
    "trained": (lambda trained, given: trained == 3, TRAINED),
}


@pytest.mark.integration
@pytest.mark.parametrize("half", HALVES)
def test_a_run_ends_with_its_last_checkpoint_whole(tmp_path, monkeypatch, call, half):
    tree = tiny.config("self_hosted_grpo", tmp_path, {"models": {"policy": {"source": SOURCE}}})
    tree["trainer"]["total_train_steps"] = 8
    tree["validate"] = {"enabled": False}
    whole = plugrl.train(tree)

    tree["settings"]["runs_folder"] += "-short"
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    is_of_half, message = HALVES[half]
    forward, trained = Gemma2DecoderLayer.forward, []

    def runs_out(self, *args, **given):
        if torch.is_grad_enabled():
            trained.append(1)
        if is_of_half(len(trained), given):
            little_memory.run_out()
        return forward(self, *args, **given)

    with monkeypatch.context() as patch:
        patch.setattr(Gemma2DecoderLayer, "forward", runs_out)
        code, _, err = call("train", tmp_path / "short.yaml")
    (folder,) = Path(tree["settings"]["runs_folder"]).glob("*/[0-9]*")
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 1
    assert line.startswith(f"error: {message}")
    assert "Traceback" not in err
    status = json.loads((folder / "status.json").read_text("utf-8"))
    assert status["state"] == "failed"
    # Steps in which all rewards are equal train nothing.
    assert 2 <= status["step"] < 8
    newest = plugrl.load_run(folder).checkpoint()
    assert newest["trainer"]["step"] == status["step"]
    resumed = plugrl.resume(folder)
    assert comparable_metrics(resumed) == comparable_metrics(whole)
