"""Engines in actors: the numbers of one process, and what happens when replicas die."""

import asyncio
import os
import re
import signal
import threading
from functools import partial

import pytest
import torch
from waiting import DEADLINE, wait_until

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import prepare, start
from plugrl.core.run.records.places import read_places
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import AdapterWeights
from plugrl.plugins.ray.engines import RayInferenceService
from plugrl.plugins.ray.placement import divide
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.merging import Product, merge
from plugrl.testing import tiny
from plugrl.testing.models import SOURCE, spec_of
from plugrl.testing.suite.test_inference_service import InferenceServiceContract
from plugrl.testing.suite.test_trainer import assert_equal_states, comparable_metrics

pytestmark = pytest.mark.integration


def loaded(service):
    service.load(spec_of(SOURCE, trained=True))
    return service


@pytest.fixture(scope="module")
def shared(ray_session):
    service = loaded(RayInferenceService({"replicas": 2, "max_restarts": 2}))
    yield service
    service.close()


@pytest.fixture
def far(shared, ray):
    return shared


@pytest.fixture(scope="module")
def near():
    return loaded(TransformersInferenceService())


def requests_of(service, length=12):
    sampling = SamplingParams(max_new_tokens=length)
    texts = ["ab", "what is 3?", "c", "dd "]
    return [
        GenerationRequest(service.tokenizer.encode(text), sampling, (3, 4, item, run, 0))
        for item, text in enumerate(texts)
        for run in range(3)
    ]


def expected(near, requests):
    """What one process answers to the batches that two replicas have."""
    parts = divide(requests, 2).values()
    answers = {
        i: answer
        for part in parts
        for i, answer in zip(part, near.generate([requests[i] for i in part]), strict=True)
    }
    return [answers[i] for i in range(len(requests))]


def kill(service, number):
    """End a replica that is working; it was stopped before it was asked."""
    os.kill(int(service.replicas.places[number]["pid"]), signal.SIGKILL)


def stop(service, number):
    """Have a replica answer nothing."""
    os.kill(int(service.replicas.places[number]["pid"]), signal.SIGSTOP)


class Asking:
    """Asks in a thread, since what is asked has stopped."""

    def __init__(self, ask):
        self.answers = self.error = None
        self._thread = threading.Thread(target=self._run, args=(ask,), daemon=True)
        self._thread.start()

    def _run(self, ask):
        try:
            self.answers = ask()
        except Exception as error:
            self.error = error

    def wait(self):
        self._thread.join(4 * DEADLINE)
        assert not self._thread.is_alive()
        return self.answers


@pytest.mark.usefixtures("ray")
class TestContract(InferenceServiceContract):
    __test__ = True
    plugrl_inference_service = "ray"

    @pytest.fixture
    def load(self, far):
        """The one service of this file: its replicas take seconds to start."""
        return lambda: far


def test_two_replicas_give_the_numbers_of_one_process(far, near):
    requests = requests_of(near)
    answers = far.generate(requests)
    assert answers == expected(near, requests)
    # Of batches of another size the last bits differ.
    for answer, alone in zip(answers, near.generate(requests), strict=True):
        assert answer.tokens == alone.tokens
        assert answer.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    first, second = far.replicas.places
    assert first["pid"] != second["pid"]
    for name in ("together", "scores_prompts", "stops_at_tokens", "sampling_options"):
        assert getattr(far, name) == getattr(near, name)
    long = GenerationRequest([1] * 64, SamplingParams(max_new_tokens=1), (0, 0, 0, 0, 0))
    with pytest.raises(ConfigError, match="fills the model's context of 64"):
        far.generate([long])


def test_a_replica_that_dies_is_replaced_and_no_number_changes(far, near, caplog):
    weights = {name: 1.1 * value for name, value in near._model.state_dict().items()}
    for service in (far, near):
        service.update_weights(weights, 3)
    requests = requests_of(near)
    wanted = expected(near, requests)
    assert far.generate(requests) == wanted
    assert {answer.version for answer in wanted} == {3}

    # In the middle of a list.
    stop(far, 1)
    asking = Asking(lambda: far.generate(requests))
    kill(far, 1)
    assert asking.wait() == wanted
    assert far.replicas.restarts == 1
    assert "replica 2 of model 'policy' on node " in caplog.text
    said = "was killed (out of memory?) while it answered 6 requests in step 4; another takes over"
    assert said in caplog.text

    # Among requests that come one by one, with the weights of an adapter.
    gathered = []

    def frozen():
        gathered.append(weights)
        return weights

    edition, generator = object(), torch.Generator().manual_seed(0)
    for version in (4, 5):
        name, weight = next((n, w) for n, w in weights.items() if n.endswith("q_proj.weight"))
        draw = partial(torch.randn, generator=generator)
        products = {name: Product(draw(2, weight.shape[1]), draw(weight.shape[0], 2), 0.5, False)}
        for service in (far, near):
            own = frozen if service is far else lambda: weights
            service.update_adapter(AdapterWeights(own, edition, products, merge), version)
        wanted = expected(near, requests)
        assert far.generate(requests) == wanted
    assert len(gathered) == 1
    assert {answer.version for answer in wanted} == {5}

    async def each():
        return await asyncio.gather(*map(far.complete, requests))

    stop(far, 0)
    asking = Asking(lambda: asyncio.run(each()))
    wait_until(lambda: sum(far._placement._open) == len(requests))
    kill(far, 0)
    assert [answer.tokens for answer in asking.wait()] == [answer.tokens for answer in wanted]
    assert far.replicas.restarts == 2
    assert {answer.version for answer in asking.answers} == {5}
    assert far._placement._open == [0, 0]

    # Another death is one too many.
    kill(far, 0)
    said = (
        r"replica 1 .* in step 4; 2 replicas were replaced before, and "
        r"models\.policy\.inference\.max_restarts=2 allows no more"
    )
    with pytest.raises(RunError, match=said):
        far.generate(requests)


@pytest.mark.slow
def test_weights_that_one_replica_did_not_get_count_for_none(far, near):
    requests = requests_of(near)
    far.replicas._max_restarts = far.replicas.restarts + 2
    wanted = far.generate(requests)
    far.replicas._max_restarts, version = far.replicas.restarts, far.version
    kill(far, 0)
    weights = {name: -value for name, value in near._model.state_dict().items()}
    with pytest.raises(RunError, match="while it took the weights of version 6; . replicas"):
        far.update_weights(weights, 6)
    # All begin anew with the weights of before, as one had the new ones.
    assert far.version == version
    assert far.generate(requests) == wanted


@pytest.mark.slow
def test_a_replica_that_does_not_answer_is_replaced(far, near, caplog):
    requests = requests_of(near)
    wanted = far.generate(requests)
    before = far.replicas.restarts
    far.replicas._max_restarts = before + 1
    stop(far, 1)
    far.replicas._timeout = 0.5
    asking = Asking(lambda: far.generate(requests))
    wait_until(lambda: far.replicas.restarts == before + 1)
    far.replicas._timeout = 1800.0
    assert asking.wait() == wanted
    assert "did not answer in time while it answered 6 requests in step 4" in caplog.text


@pytest.mark.parametrize("adapter", [False, True], ids=["whole", "adapter"])
def test_a_run_on_one_replica_equals_one_in_this_process(tmp_path, ray, settings, adapter):
    runs = {}
    for name, how in (("near", "transformers"), ("far", "ray")):
        (tmp_path / name).mkdir()
        tree = tiny.config("self_hosted_grpo", tmp_path / name)
        tree["models"]["policy"]["inference"] = {"type": how}
        if adapter:
            tree["models"]["policy"]["adapter"] = {"r": 2}
        tree["settings"]["cluster"] = settings
        runs[name] = start(prepare(tree))
    assert comparable_metrics(runs["near"]) == comparable_metrics(runs["far"])
    ((name, said),) = read_places(runs["far"].folder).items()
    assert name.startswith("replica 1 of model 'policy' on node ")
    assert re.search(r"plugrl .*; weights of version \d+; of the run \d+% busy, .* a second", said)
    near, far = (runs[name].checkpoint()["trainer"]["models"] for name in ("near", "far"))
    assert_equal_states(near, far)
    # What is listed of a replica is what it did last: it has the weights of the last step.
    assert f"; weights of version {far['policy']['version']}; " in said
