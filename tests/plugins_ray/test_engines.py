"""Engines in actors: the numbers of one process, and what happens when replicas die."""

import asyncio
import os
import re
import signal
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from odd_engine import note
from waiting import DEADLINE, wait_until

from plugrl.core.errors import ConfigError, ContractError, RunError
from plugrl.core.experiment import prepare, resume, start
from plugrl.core.run.process import determinism
from plugrl.core.run.records.places import read_places
from plugrl.core.text.inference.completions import complete_requests
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
#: It does what is asked of it, unless a note says otherwise.
ENGINE = {
    "custom_inference_service_module_path": str(Path(__file__).with_name("odd_engine.py")),
    "custom_inference_service_class_name": "OddEngine",
}


def loaded(service):
    service.load(spec_of(SOURCE, trained=True))
    return service


@pytest.fixture(scope="module")
def shared(ray_session):
    service = loaded(RayInferenceService({"engine": ENGINE, "replicas": 2, "max_restarts": 2}))
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


def test_an_engine_is_as_deterministic_as_its_run(ray):
    determinism.configure(True)
    try:
        service = loaded(RayInferenceService({"engine": ENGINE}))
    finally:
        determinism.configure(False)
    asked = lambda actor: torch.are_deterministic_algorithms_enabled()  # noqa: E731
    actors = [seat.actor for seat in service.replicas._seats]
    assert ray.get([actor.__ray_call__.remote(asked) for actor in actors]) == [True]
    service.close()


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


@pytest.fixture
def told(far, notes):
    """Writes a note for the second replica; it is taken away by the test, or at its end."""
    made = []

    def write(what, text=""):
        made.append(note(notes, what, far.replicas.places[1]["pid"]))
        made[-1].write_text(text)
        return made[-1]

    yield write
    for each in made:
        each.unlink(missing_ok=True)


def is_open(service, number):
    return service.replicas.uses[number]._open > 0


def test_a_replica_that_is_slow_is_waited_for_and_the_other_goes_on(far, near, told, caplog):
    requests = requests_of(near)
    wanted = expected(near, requests)
    before = far.replicas.lives
    slow = told("slow")
    # A list: the other has answered its part.
    asking = Asking(lambda: far.generate(requests))
    wait_until(lambda: is_open(far, 1) and not is_open(far, 0))
    slow.unlink()
    assert asking.wait() == wanted

    # One by one: the other answers its requests, and takes those that come.
    slow = told("slow")

    async def each(some):
        return await asyncio.gather(*map(far.complete, some))

    asking = Asking(lambda: asyncio.run(each(requests)))
    wait_until(lambda: far._placement._open == [0, 6])
    more = [request for request in requests if request.stream[2] in (0, 2)]
    assert [a.tokens for a in asyncio.run(each(more))] == [
        a.tokens for a, r in zip(wanted, requests, strict=True) if r in more
    ]
    assert far._placement._open == [0, 6]
    slow.unlink()
    assert [answer.tokens for answer in asking.wait()] == [answer.tokens for answer in wanted]
    assert far.replicas.lives == before
    assert "another takes over" not in caplog.text


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("nothing", "answered NoneType; a list of completions is expected"),
        ("few", "answered 5 of 6 requests"),
        ("numbers", "answered int to a request; a Completion is expected"),
        ("iterator", "answered list_iterator; a list of completions is expected"),
        ("tokens", r"answered \d+ tokens with \d+ log-probabilities"),
    ],
)
def test_what_is_no_answer_ends_the_run_and_names_the_replica(far, near, told, kind, said):
    requests = requests_of(near)
    restarts = far.replicas.restarts
    wrong = told("nonsense", kind)
    where = r" \(replica 2 of model 'policy' on node \S+, while it answered 6 requests in step 4\)$"
    with pytest.raises(ContractError, match="^model 'policy' " + said + where) as raised:
        complete_requests("policy", far, requests)
    assert "\n" not in str(raised.value)
    wrong.unlink()
    # Nothing has died of it.
    assert far.generate(requests) == expected(near, requests)
    assert far.replicas.restarts == restarts


def test_one_answer_among_others_is_looked_at_too(far, near, told):
    request = requests_of(near)[3]
    # New prompts go to the first, unless it has something to do.
    far._placement._open[0] += 1
    told("nonsense", "nothing")
    where = r"replica 2 of model 'policy' on node \S+, while it answered 1 request in step 4"
    with pytest.raises(ContractError, match="answered NoneType to a request; .*" + where):
        asyncio.run(far.complete(request))
    far._placement._open[0] -= 1


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


@pytest.mark.slow
def test_a_run_that_ends_for_nonsense_is_resumed_and_equal(tmp_path, ray, settings, notes):
    def configuration(name, engine):
        (tmp_path / name).mkdir()
        tree = tiny.config("self_hosted_grpo", tmp_path / name)
        tree["models"]["policy"]["inference"] = engine
        tree["trainer"]["total_train_steps"] = 4
        tree["settings"]["cluster"] = settings
        return tree

    whole = start(prepare(configuration("near", {"type": "transformers"})))
    wrong = note(notes, "nonsense-in-step", 3)
    wrong.write_text("few")
    said = (
        r"answered 7 of 8 requests \(replica 1 of model 'policy' on node \S+, while it answered 8 "
    )
    try:
        with pytest.raises(ContractError, match=said + r"requests in step 3\)"):
            start(prepare(configuration("far", {"type": "ray", "engine": ENGINE})))
    finally:
        wrong.unlink()
    (folder,) = (tmp_path / "far" / "runs").glob("*/[0-9]*")
    resumed = resume(folder)
    assert comparable_metrics(resumed) == comparable_metrics(whole)
    far, near = (run.checkpoint()["trainer"]["models"] for run in (resumed, whole))
    assert_equal_states(far, near)
