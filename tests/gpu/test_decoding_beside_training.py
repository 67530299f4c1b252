"""Decoding on a stream of its own while another thread trains on the same CUDA device."""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import plugrl
from plugrl.core.config.view import ConfigView
from plugrl.core.run.records.records import read_jsonl
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import ModelSpec
from plugrl.core.text.learn.losses import WeightedLoss
from plugrl.core.text.schedule.weight_sync import PARITY_TOLERANCE
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.testing import tiny
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins_transformers"))
import test_engine as small
from batches import weighted

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
#: Clock cycles of the device, about 50 ms.
LONG = 10**8
LORA = {"type": "lora", "r": 4, "alpha": 8.0, "dropout": 0.3, "target_modules": "auto"}


def asked(count, first=0, **sampling):
    own = SamplingParams(**{"max_new_tokens": 60, **sampling})
    return [GenerationRequest([2 + i % 9, 3], own, (0, 0, first + i, 0, 0)) for i in range(count)]


def answers(engine, requests):
    async def all_of_them():
        return await asyncio.gather(*map(engine.complete, requests))

    return asyncio.run(all_of_them())


def agreeing(got, wanted):
    """The share of answers that are equal: sums in another order may decide between two tokens."""
    return sum(a.tokens == b.tokens for a, b in zip(got, wanted, strict=True)) / len(wanted)


def other_weights(engine):
    generator = torch.Generator().manual_seed(1)
    weights = {name: w.detach().clone() for name, w in engine._model.state_dict().items()}
    for weight in weights.values():
        weight += 0.1 * torch.randn(weight.shape, generator=generator).to(weight)
    return weights


@contextmanager
def training(adapter=None):
    """Another thread trains a model of its own; gives the passes that it has made."""
    source = {
        "path": None,
        "config": {"model_type": "qwen3", **small.FAMILIES["qwen3"]},
        "tokenizer": {"characters": "abcdefghijklmnop"},
        "dtype": "float32",
    }
    section = None if adapter is None else ConfigView(adapter, checked=True)
    service = LocalTrainService({"learning_rate": 1e-3})
    service.load(ModelSpec("trained", ConfigView(source, checked=True), 0, "cuda", section))
    ends, passes = threading.Event(), []

    def train():
        while not ends.is_set():
            totals = service.forward_backward(weighted(), WeightedLoss(cross_entropy, {}))
            service.optimizer_step()
            passes.append(totals["loss"][0])

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(train)
        try:
            yield passes
        finally:
            ends.set()
            done.result()


@pytest.mark.parametrize("overlap", ["streams", "turns"])
@pytest.mark.parametrize("adapter", [None, LORA], ids=["weights", "dropout"])
def test_answers_beside_training_are_those_of_the_engine_alone(overlap, adapter):
    if adapter is not None:
        pytest.importorskip("peft")
    engine = small.load("qwen3", "cuda", overlap=overlap)
    wanted = small.load("qwen3", "cuda").generate(asked(48))
    with training(adapter) as passes:
        before = len(passes)
        # Batches of many sizes, each of which is captured while the other thread trains.
        for count in (1, 2, 4, 8, 16, 24, 32, 48):
            assert agreeing(answers(engine, asked(count)), wanted[:count]) >= 0.9
        assert agreeing(answers(engine, asked(48)), wanted) >= 0.95
    assert all(step._graph is not None for step in _steps(engine))
    engine.close()
    assert len(passes) > before
    assert all(loss == loss for loss in passes)


def _steps(engine):
    return engine._continuous._serving.decoder._ahead._steps.values()


def test_steps_wait_for_weights_that_are_still_on_their_way():
    engine, alone = small.load("qwen3", "cuda"), small.load("qwen3", "cuda")
    answers(engine, asked(16))
    for version in (1, 2, 3):
        weights = other_weights(engine)
        alone.update_weights(weights, version)
        wanted = alone.generate(asked(16))
        # What copies the weights is launched, and begins much later.
        torch.cuda._sleep(LONG)
        engine.update_weights(weights, version)
        got = answers(engine, asked(16))
        assert {answer.version for answer in got} == {version}
        assert not any(answer.versions for answer in got)
        assert agreeing(got, wanted) >= 0.9
    engine.close()


def test_weights_wait_for_steps_that_are_still_on_their_way():
    engine, alone = small.load("qwen3", "cuda"), small.load("qwen3", "cuda")
    wanted = alone.generate(asked(16, max_new_tokens=120))
    answers(engine, asked(16, max_new_tokens=120))
    weights, whole = other_weights(engine), threading.Event()
    advance = engine._continuous._serving.advance

    def slow(version):
        # Steps that are launched from now on begin much later.
        torch.cuda._sleep(LONG // 10)
        ended = advance(version)
        whole.set()
        return ended

    engine._continuous._serving.advance = slow
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(answers, engine, asked(16, max_new_tokens=120))
        assert whole.wait(60)
        engine.update_weights(weights, 1)
        got = under_way.result()
    engine.close()
    same = 0
    for answer, before in zip(got, wanted, strict=True):
        old = sum(version == 0 for version in answer.versions)
        assert list(answer.versions) == sorted(answer.versions)
        assert 0 < old < len(answer.tokens)
        if answer.tokens[:old] == before.tokens[:old]:
            same += 1
            assert answer.logprobs[:old] == pytest.approx(before.logprobs[:old], abs=1e-3)
    # Sums in another order may decide between two tokens.
    assert same >= 14


@pytest.mark.parametrize("overlap", ["streams", "turns"])
def test_a_run_that_overlaps_keeps_parity_and_shows_it(tmp_path, overlap):
    source = {"dtype": "bfloat16", "config": {"max_position_embeddings": 64}}
    sections = {
        "models": {"policy": {"source": source, "inference": {"overlap": overlap}}},
        "rollout_worker": {"max_response_length": 40},
        "weight": {"sync_mode": "batch-async", "staleness_threshold": 2},
        "trainer": {"total_train_steps": 9},
        "validate": {"enabled": False},
        "settings": {"device": "cuda"},
    }
    run = plugrl.train(tiny.config("self_hosted_grpo", tmp_path, sections))
    parity = [line["sync/parity"] for line in run.metrics if "sync/parity" in line]
    assert parity
    assert max(parity) < PARITY_TOLERANCE["bfloat16"]
    spans = read_jsonl(run.folder / "timeline.jsonl")
    trained, sampled = (
        [(s["start"], s["end"]) for s in spans if s["lane"] == lane and s["name"] == name]
        for lane, name in (("trainer", "train"), ("rollout", "attempts"))
    )
    assert any(a[0] < b[1] and b[0] < a[1] for a in trained for b in sampled)
