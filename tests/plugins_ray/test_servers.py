"""Servers that actors start: a dead one is replaced, and none outlives the run."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from waiting import DEADLINE, wait_until

from plugrl.core.errors import EngineLost
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import AdapterWeights
from plugrl.core.text.rollout.processes.messages import pack_error
from plugrl.plugins.ray.engines import RayInferenceService
from plugrl.plugins.ray.replicas import _outcome
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.merging import Product, merge
from plugrl.testing import tiny
from plugrl.testing.models import SOURCE, spec_of

STAND_IN = Path(__file__).parent.parent / "plugins_openai" / "stand_in.py"


def test_an_engine_that_is_lost_counts_as_a_death():
    lost = EngineLost("the server ended", "lost its server")
    with pytest.raises(EngineLost, match="the server ended"):
        _outcome((None, pack_error(lost)))
    for outcome in ((3, None), (None, pack_error(ValueError("no such name")))):
        assert _outcome(outcome) is outcome


def source_file(folder):
    """The model of the tests, for the stand-in."""
    file = folder / "source.json"
    file.write_text(json.dumps({"path": None, "dtype": "float32", **SOURCE}))
    return file


def command(file):
    """Starts the stand-in."""
    return shlex.join([sys.executable, str(STAND_IN), "vllm", "{port}", str(file)])


def servers(file):
    """The stand-ins that run, by the file of their model."""
    done = subprocess.run(
        ["ps", "-wweo", "pid,stat,args", "--no-headers"], capture_output=True, text=True, check=True
    )
    rows = [line.split(None, 2) for line in done.stdout.splitlines()]
    return [int(row[0]) for row in rows if row[2].endswith(str(file)) and "Z" not in row[1]]


def requests_of(service):
    sampling = SamplingParams(max_new_tokens=8)
    texts = ["ab", "what is 3?", "c", "dd "]
    return [
        GenerationRequest(service.tokenizer.encode(text), sampling, (3, 4, item, run, 0))
        for item, text in enumerate(texts)
        for run in range(2)
    ]


def check(answers, requests, engine, version):
    """Answers are of a version, with log-probabilities of the weights of an engine."""
    assert {answer.version for answer in answers} == {version}
    whole = [[*r.prompt_tokens, *a.tokens] for r, a in zip(requests, answers, strict=True)]
    for request, answer, scores in zip(requests, answers, engine.score(whole), strict=True):
        assert answer.logprobs == pytest.approx(scores[len(request.prompt_tokens) :], abs=1e-4)


@pytest.mark.slow
def test_a_server_that_dies_in_an_actor_is_replaced(ray, tmp_path, caplog):
    file = source_file(tmp_path)
    service = RayInferenceService(
        {"replicas": 2, "engine": {"type": "server", "command": command(file), "patience": 5.0}}
    )
    service.load(spec_of(SOURCE, trained=True))
    near = TransformersInferenceService()
    near.load(spec_of(SOURCE, trained=True))
    first = servers(file)
    assert len(first) == 2

    weights = {name: 1.1 * value for name, value in near._model.state_dict().items()}
    for each in (service, near):
        each.update_weights(weights, 3)
    requests = requests_of(near)
    answers = service.generate(requests)
    check(answers, requests, near, 3)
    os.kill(first[0], signal.SIGKILL)
    again = service.generate(requests)
    assert [a.tokens for a in again] == [a.tokens for a in answers]
    assert service.replicas.restarts == 1
    assert "lost its server, which was ended by SIGKILL" in caplog.text
    assert "while it answered 4 requests in step 4; another takes over" in caplog.text

    # The weights of an adapter cross alone, and the server gets those that are merged.
    generator = torch.Generator().manual_seed(0)
    name, weight = next((n, w) for n, w in weights.items() if n.endswith("q_proj.weight"))
    draw = partial(torch.randn, generator=generator)
    products = {name: Product(draw(2, weight.shape[1]), draw(weight.shape[0], 2), 0.5, False)}
    for each in (service, near):
        each.update_adapter(AdapterWeights(lambda: weights, weights, products, merge), 4)
    check(service.generate(requests), requests, near, 4)

    # One that answers nothing is found by what it does at /health.
    second = servers(file)
    assert len(second) == 2
    os.kill(second[0], signal.SIGSTOP)

    async def each():
        return await asyncio.gather(*map(service.complete, requests))

    check(asyncio.run(each()), requests, near, 4)
    assert "lost its server, which gave no sign of life" in caplog.text
    assert service.replicas.restarts == 2
    service.close()
    assert wait_until(lambda: not servers(file))


@pytest.mark.slow
def test_a_run_with_servers_learns_and_leaves_none_when_it_is_killed(tmp_path):
    file = source_file(tmp_path)
    tree = tiny.config("self_hosted_grpo", tmp_path)
    tree["models"]["policy"]["source"] = dict(SOURCE)
    engine = {"type": "server", "command": command(file)}
    tree["models"]["policy"]["inference"] = {"type": "ray", "engine": engine}
    tree["settings"] |= {"runs_folder": str(tmp_path / "runs"), "checkpoint_every": 1}
    tree["settings"]["cluster"] = {"cpus": 2, "object_store_memory": 80}
    tree["trainer"]["total_train_steps"] = 500
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(tree))
    log = tmp_path / "log"
    with open(log, "w", encoding="utf-8") as out:
        driver = subprocess.Popen(
            [sys.executable, "-m", "plugrl", "train", str(config)], stdout=out, stderr=out
        )

    def stepped():
        return any(file.stat().st_size for file in tmp_path.glob("runs/*/*/metrics.jsonl"))

    assert wait_until(lambda: driver.poll() is not None or stepped(), seconds=5 * DEADLINE)
    assert driver.poll() is None, log.read_text(encoding="utf-8")
    assert servers(file)
    driver.kill()
    driver.wait()
    assert wait_until(lambda: not servers(file), seconds=3 * DEADLINE)
