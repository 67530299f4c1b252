"""The services for Weaver: the real kit, over a server that is written after the kit's code."""

import gc
import sys
from pathlib import Path

import pytest
from certificates import one_tls_context  # noqa: F401
from transformers.models.qwen3 import modeling_qwen3  # noqa: F401  (no test's time)

import plugrl
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import prepare, resume
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import ModelSpec
from plugrl.core.text.learn.optimizer import AdamParams
from plugrl.core.text.remote.service import Datum
from plugrl.plugins.transformers.in_process import InProcessTrainService
from plugrl.plugins.transformers.inference_service import TransformersInferenceService

pytest.importorskip("weaver")
sys.path.insert(0, str(Path(__file__).parent))

from weaver_server import WeaverServer  # noqa: E402

from plugrl.plugins.weaver.inference_service import WeaverInferenceService  # noqa: E402
from plugrl.plugins.weaver.train_service import WeaverTrainService  # noqa: E402

SOURCE = {
    "path": None,
    "config": {
        "model_type": "qwen3", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "max_position_embeddings": 16,
    },
    "tokenizer": {"characters": "0123456789+="},
    "dtype": "float32",
    "seed": 5,
}  # fmt: skip
TOKENS = [3, 4, 12, 5, 6, 13, 2, 7, 1]


def spec():
    return ModelSpec("policy", ConfigView(SOURCE), seed=5, device="cpu")


def local(cls, **options):
    service = cls(options)
    service.load(spec())
    return service


@pytest.fixture(scope="module")
def running():
    made = WeaverServer(
        lambda: local(InProcessTrainService, learning_rate=0.01),
        lambda: local(TransformersInferenceService),
    )
    yield made
    # Sessions that nobody has any more end while their server is there, and in no later test:
    # what a collection runs in the middle of `ast.parse` breaks it on Python 3.11.
    gc.collect()
    made.close()


@pytest.fixture
def server(running):
    """The server, which has been asked nothing and does not fail."""
    running.asked.clear()
    yield running
    running.refuses = running.fails_at = None


def connected(cls, url, **options):
    service = cls({"base_url": url, "base_model": "tiny:16", "patience": 5.0, **options})
    service.load(spec())
    return service


def datum(**inputs):
    given = {"target_tokens": TOKENS[1:], "mask": [0] * 5 + [1] * 3, **inputs}
    return Datum(TOKENS[:-1], given)


WEIGHTS = [0.0] * 5 + [0.25, 0.5, 0.25]
ADAM = AdamParams(0.01, (0.9, 0.99), 1e-8, 0.0, 1.0)


def test_sampling_and_scores_are_those_of_the_engine_behind(server):
    sampler = connected(WeaverInferenceService, server.url)
    assert sampler.max_sequence_length == 16
    params = SamplingParams(max_new_tokens=4, stop_token_ids=(1,))
    requests = [GenerationRequest(TOKENS[:6], params, (0, 1, 0, run, 0), True) for run in range(3)]
    answers = sampler.generate(requests)
    (asked,) = [body for _, path, body in server.asked if path.endswith("samples")]
    assert (asked["num_samples"], asked["prompt_logprobs"]) == (3, True)
    assert asked["sampling_params"]["stop_token_ids"] == [1]
    engine = local(TransformersInferenceService)
    for answer in answers:
        scores = engine.score([[*TOKENS[:6], *answer.tokens]])[0]
        assert answer.logprobs == pytest.approx(scores[6:], abs=1e-5)
        assert answer.prompt_logprobs == pytest.approx(scores[:6], abs=1e-5)
    assert sampler.score([TOKENS])[0] == pytest.approx(engine.score([TOKENS])[0], abs=1e-6)


def test_training_is_that_of_the_trainer_behind(server):
    trainer = connected(WeaverTrainService, server.url)
    own = local(InProcessTrainService, learning_rate=0.01)
    for _ in range(2):
        given = datum(weights=WEIGHTS)
        answer = trainer.forward_backward([given], "cross_entropy").result()
        expected = own.forward_backward([given], "cross_entropy").result()
        assert answer.loss == pytest.approx(expected.loss, abs=1e-5)
        report = trainer.optim_step(ADAM).result()
        assert report["grad_norm"] == pytest.approx(own.optim_step(ADAM).result()["grad_norm"])
    # The engine behind has 0.0 where nothing is trained.
    found = trainer.forward([datum()]).result()
    assert found[0] == pytest.approx(own.forward([datum()]).result()[0], abs=1e-6)
    sampler = connected(WeaverInferenceService, server.url)
    trainer.version = 1
    trainer.sync_to(sampler)
    assert sampler.version == 1
    assert sampler.score([TOKENS])[0][6:] == pytest.approx(found[0][5:], abs=1e-5)


def test_a_saved_state_holds_the_optimizer_and_a_phase_begins_without(server):
    trainer = connected(WeaverTrainService, server.url)

    def step(service):
        service.forward_backward([datum(weights=WEIGHTS)], "cross_entropy").result()
        service.optim_step(ADAM).result()
        return service.forward([datum()]).result()[0]

    step(trainer)
    state, handed = trainer.state_dict(), trainer.export_weights()
    again, later = (connected(WeaverTrainService, server.url) for _ in range(2))
    again.load_state_dict(state)
    later.import_weights(handed)
    expected = step(trainer)
    assert step(again) == pytest.approx(expected, abs=1e-7)
    assert step(later) != pytest.approx(expected, abs=1e-4)
    with pytest.raises(RunError, match="has lost what is needed to load weaver://gone"):
        trainer.load_state({**state["saved"], "path": "weaver://gone/x"}).result()


def test_refusals_name_the_key_and_the_model(server, monkeypatch):
    with pytest.raises(ConfigError, match=r"no model 'tinny:16'; it has: tiny:16"):
        connected(WeaverInferenceService, server.url, base_model="tinny:16")
    monkeypatch.setenv("MY_KEY", "sk-secret-word")
    server.refuses = 401
    with pytest.raises(ConfigError, match=r"refuses the key of MY_KEY \(401\)") as caught:
        connected(WeaverTrainService, server.url, api_key="MY_KEY")
    assert "secret" not in str(caught.value)


def tree(url, folder, **changes):
    service = {"type": "weaver", "base_url": url, "base_model": "tiny:16"}
    return {
        "experiment_name": "weaver",
        "scenario": {
            "type": "arithmetic", "digits": 1, "validation": 4, "development": 4,
            "demonstrations": 8,
        },
        "models": {
            "policy": {
                "source": SOURCE, "inference": service,
                "train": {**service, "learning_rate": 0.01},
            }
        },
        "data": {"batch_size": 2, "rollout_repeat_n": 4},
        "rollout_worker": {
            "max_prompt_length": 4, "max_response_length": 3, "evaluator": "exact_match",
        },
        "validate": {"enabled": False},
        "trainer": {"type": "remote_api_grpo", "total_train_steps": 3},
        "settings": {"runs_folder": str(folder), "checkpoint_every": 1},
        "runtime_monitor": {"dead_reward_steps": 1000},
        **changes,
    }  # fmt: skip


def supervised(url, folder, steps):
    changes = {
        "data": {"split": "demonstrations", "batch_size": 4, "rollout_repeat_n": 1},
        "trainer": {"type": "remote_api_cross_entropy", "total_train_steps": steps},
    }
    made = tree(url, folder, **changes)
    made["rollout_worker"]["type"] = "demonstration"
    return made


@pytest.mark.integration
def test_a_run_trains_syncs_and_goes_on(server, tmp_path):
    whole = plugrl.train(supervised(server.url, tmp_path / "whole", 3))
    parities = [m["sync/parity"] for m in whole.metrics if "sync/parity" in m]
    assert len(parities) == 3
    assert max(parities) < 1e-5
    server.passes, server.fails_at = 0, 3
    with pytest.raises(RunError, match="has lost what is needed to take the gradient"):
        plugrl.train(supervised(server.url, tmp_path / "part", 3))
    server.fails_at = None
    on = resume(next((tmp_path / "part").glob("*/*")))
    losses = [[m["train/loss"] for m in r.metrics if "train/loss" in m] for r in (whole, on)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    assert len(losses[0]) == 3
    assert losses[0][-1] < losses[0][0]


def test_validate_finds_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("WEAVER_API_KEY", raising=False)
    prepare(tree("http://127.0.0.1:1", tmp_path))
    with pytest.raises(ConfigError, match="WEAVER_API_KEY, which holds the key of https://weaver"):
        prepare(tree(None, tmp_path))
    monkeypatch.setitem(sys.modules, "weaver", None)
    with pytest.raises(ConfigError, match=r"pip install 'plugrl\[weaver\]'"):
        prepare(tree("http://127.0.0.1:1", tmp_path))
