"""The service ``openai`` over real servers: ``transformers serve`` and ``plugrl serve``."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from documented_server import SOURCE, request
from waiting import DEADLINE

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare, start
from plugrl.core.text.inference.services import ModelSpec
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.testing import tiny

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
TOKEN = "a-token-for-this-test"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model in the Hugging Face format, and the engine that has it."""
    engine = TransformersInferenceService({})
    engine.load(ModelSpec("policy", ConfigView(SOURCE, checked=True), 0, "cpu"))
    path = tmp_path_factory.mktemp("models") / "tiny"
    engine._model.save_pretrained(path)
    engine.tokenizer.wrapped.save_pretrained(path)
    return SimpleNamespace(path=path, engine=engine)


@contextmanager
def running(command, port, log, **variables):
    """A server as a process of its own, until it answers."""
    # The command of transformers asks its registry whether there is a newer release.
    alone = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    env = os.environ | {"OMP_NUM_THREADS": "1", **alone, **variables}
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                break
            except OSError:
                ended = process.poll() is not None or time.monotonic() > deadline
                assert not ended, log.read_text()[-2000:]
                time.sleep(0.2)
        yield SimpleNamespace(base_url=f"http://127.0.0.1:{port}/v1")
    finally:
        process.terminate()
        process.wait(DEADLINE)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def transformers_serve(folder, tmp_path_factory):
    port, log = free_port(), tmp_path_factory.mktemp("log") / "serve.txt"
    program = Path(sys.executable).with_name("transformers")
    command = [program, "serve", folder.path, "--host", "127.0.0.1", "--port", str(port)]
    with running([*map(str, command), "--device", "cpu"], port, log) as there:
        yield there


@pytest.fixture(scope="module")
def plugrl_serve(folder, tmp_path_factory):
    port, log = free_port(), tmp_path_factory.mktemp("log") / "serve.txt"
    command = [sys.executable, "-m", "plugrl", "serve", str(folder.path), "--port", str(port)]
    with running(command, port, log, PLUGRL_SERVE_TOKEN=TOKEN) as there:
        yield there


def test_transformers_serve_gives_text_to_a_model_that_is_not_trained(
    transformers_serve, folder, connect
):
    service = connect(transformers_serve, trained=False)
    asked = [
        request((2, i, 1, 4), (0, 0, i, 0, 0), temperature=0.0, stop_token_ids=(1,))
        for i in range(2, 10)
    ]
    decode = folder.engine.tokenizer.decode
    texts = [decode(answer.tokens) for answer in service.generate(asked)]
    assert texts == [decode(answer.tokens) for answer in folder.engine.generate(asked)]
    assert any(texts)


def test_transformers_serve_is_refused_where_tokens_are_needed(transformers_serve, connect):
    said = "neither token ids nor log-probabilities .engine generic., which training needs"
    with pytest.raises(ConfigError, match=said):
        connect(transformers_serve)
    service = connect(transformers_serve, trained=False)
    assert not service.scores_prompts
    with pytest.raises(ConfigError, match="no log-probabilities of prompts"):
        service.score([[2, 3]])
    with pytest.raises(ConfigError, match="top_k cannot be asked of a server of engine generic"):
        service.generate([request(top_k=2)])
    with pytest.raises(ConfigError, match="pinned to .*is '/tmp/none' a model of it"):
        connect(transformers_serve, trained=False, model="/tmp/none")


def test_a_model_behind_transformers_serve_is_evaluated(
    transformers_serve, folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    # A tokenizer alone: the weights are at the server, which does not say how long its context is.
    model = {
        "source": {"tokenizer": SOURCE["tokenizer"], "config": None},
        "inference": {
            "type": "openai",
            "base_url": transformers_serve.base_url,
            "max_context": 32,
        },
        "train": None,
    }
    tree = tiny.config("evaluation", tmp_path, {"models": {"policy": model}, "trainer": {
        "total_train_steps": None}})  # fmt: skip
    run = start(prepare(tree))
    assert run.status["state"] == "done"
    samples = [
        json.loads(line)
        for file in (run.folder / "samples").glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert len(samples) == len(tiny.PROBLEMS)
    engine = folder.engine
    for sample in samples:
        prompt = engine.tokenizer.encode(sample["prompt"])
        asked = request(prompt, temperature=0.0, max_new_tokens=3, stop_token_ids=(1,))
        expected = engine.tokenizer.decode(engine.generate([asked])[0].tokens)
        assert sample["answer"] == expected


def test_plugrl_serve_gives_exact_tokens_and_scores(plugrl_serve, folder, connect, monkeypatch):
    monkeypatch.setenv("SERVE_TOKEN", TOKEN)
    service = connect(plugrl_serve, trained=False, api_key="SERVE_TOKEN")
    assert service.max_sequence_length == 32
    asked = [
        request((2, i, 4), (0, 0, i, 0, 0), temperature=t, stop_token_ids=(1,))
        for i, t in enumerate((0.0, 0.0, 0.7, 1.0), 2)
    ]
    answers = service.generate(asked)
    for entry, answer in zip(asked, answers, strict=True):
        whole = [*entry.prompt_tokens, *answer.tokens]
        scores = folder.engine.score([whole], entry.sampling.temperature or 1.0)[0]
        assert answer.logprobs == pytest.approx(scores[3:], abs=1e-4)
    greedy = folder.engine.generate(asked[:2])
    assert [a.tokens for a in answers[:2]] == [a.tokens for a in greedy]
    sequences = [[2, 3, 4, 5], [9] * 32]
    for temperature in (1.0, 0.5):
        expected = folder.engine.score(sequences, temperature)
        for own, right in zip(service.score(sequences, temperature), expected, strict=True):
            assert own == pytest.approx(right, abs=1e-4)


def test_plugrl_serve_refuses_a_wrong_token_and_weights(plugrl_serve, connect, monkeypatch):
    monkeypatch.setenv("SERVE_TOKEN", "wrong")
    with pytest.raises(ConfigError, match=r"refuses the key of SERVE_TOKEN \(401\)"):
        connect(plugrl_serve, trained=False, api_key="SERVE_TOKEN")
    monkeypatch.setenv("SERVE_TOKEN", TOKEN)
    with pytest.raises(ConfigError, match=r"takes no weights \(engine plugrl\)"):
        connect(plugrl_serve, api_key="SERVE_TOKEN")


def test_a_teacher_behind_plugrl_serve_distils(plugrl_serve, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERVE_TOKEN", TOKEN)
    inference = {"type": "openai", "base_url": plugrl_serve.base_url, "api_key": "SERVE_TOKEN"}
    source = {**SOURCE, "seed": 5}
    del source["path"]
    tree = tiny.config(
        "self_hosted_opd",
        tmp_path,
        {
            "models": {
                "policy": {"source": source},
                "teacher": {"source": {"path": str(folder.path)}, "inference": inference},
            },
            "trainer": {"total_train_steps": 12, "algorithm": {"teacher": "teacher"}},
            "settings": {"checkpoint_every": 0},
            "validate": {"every": 0},
        },
    )
    run = start(prepare(tree))
    distances = [line["train/teacher_kl"] for line in run.metrics if "train/teacher_kl" in line]
    assert sum(distances[-3:]) < sum(distances[:3])
