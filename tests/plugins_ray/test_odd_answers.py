"""Actors that are slow, or that answer what is no answer."""

import asyncio
import re
from pathlib import Path

import pytest
from actors import OnActors
from odd_engine import note
from test_engines import Asking, expected, loaded, requests_of
from waiting import wait_until

from plugrl.core.errors import ContractError, RunError
from plugrl.core.experiment import prepare, resume, start
from plugrl.core.text.inference.completions import complete_requests
from plugrl.plugins.ray.engines import RayInferenceService
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.testing import tiny
from plugrl.testing.suite.test_trainer import assert_equal_states, comparable_metrics

pytestmark = pytest.mark.integration

ENGINE = {
    "custom_inference_service_module_path": str(Path(__file__).with_name("odd_engine.py")),
    "custom_inference_service_class_name": "OddEngine",
}


@pytest.fixture(scope="module")
def near():
    return loaded(TransformersInferenceService())


@pytest.fixture(scope="module")
def odd(ray_session):
    service = loaded(RayInferenceService({"engine": ENGINE, "replicas": 2, "max_restarts": 1}))
    yield service
    service.close()


@pytest.fixture
def told(odd, notes, ray):
    """Writes a note for the second replica; it is taken away by the test, or at its end."""
    made = []

    def write(what, text=""):
        made.append(note(notes, what, odd.replicas.places[1]["pid"]))
        made[-1].write_text(text)
        return made[-1]

    yield write
    for each in made:
        each.unlink(missing_ok=True)


def is_open(service, number):
    return service.replicas.uses[number]._open > 0


def test_a_replica_that_is_slow_is_waited_for_and_the_other_goes_on(odd, near, told, caplog):
    requests = requests_of(near)
    wanted = expected(near, requests)
    before = odd.replicas.lives
    slow = told("slow")
    # A list: the other has answered its part.
    asking = Asking(lambda: odd.generate(requests))
    wait_until(lambda: is_open(odd, 1) and not is_open(odd, 0))
    slow.unlink()
    assert asking.wait() == wanted

    # One by one: the other answers its requests, and takes those that come.
    slow = told("slow")

    async def each(some):
        return await asyncio.gather(*map(odd.complete, some))

    asking = Asking(lambda: asyncio.run(each(requests)))
    wait_until(lambda: odd._placement._open == [0, 6])
    more = [request for request in requests if request.stream[2] in (0, 2)]
    assert [a.tokens for a in asyncio.run(each(more))] == [
        a.tokens for a, r in zip(wanted, requests, strict=True) if r in more
    ]
    assert odd._placement._open == [0, 6]
    slow.unlink()
    assert [answer.tokens for answer in asking.wait()] == [answer.tokens for answer in wanted]
    assert odd.replicas.lives == before
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
def test_what_is_no_answer_ends_the_run_and_names_the_replica(odd, near, told, kind, said):
    requests = requests_of(near)
    restarts = odd.replicas.restarts
    wrong = told("nonsense", kind)
    where = r" \(replica 2 of model 'policy' on node \S+, while it answered 6 requests in step 4\)$"
    with pytest.raises(ContractError, match="^model 'policy' " + said + where) as raised:
        complete_requests("policy", odd, requests)
    assert "\n" not in str(raised.value)
    wrong.unlink()
    # Nothing has died of it.
    assert odd.generate(requests) == expected(near, requests)
    assert odd.replicas.restarts == restarts


def test_one_answer_among_others_is_looked_at_too(odd, near, told):
    request = requests_of(near)[3]
    # New prompts go to the first, unless it has something to do.
    odd._placement._open[0] += 1
    told("nonsense", "nothing")
    where = r"replica 2 of model 'policy' on node \S+, while it answered 1 request in step 4"
    with pytest.raises(ContractError, match="answered NoneType to a request; .*" + where):
        asyncio.run(odd.complete(request))
    odd._placement._open[0] -= 1


@pytest.fixture(scope="module")
def collect(ray_session, notes):
    collector = OnActors(notes)
    yield collector
    collector.pool.close()


@pytest.mark.parametrize("name", ["nothing", "elsewhere", "outside", "unsampled", "long"])
def test_what_is_no_trajectory_ends_the_run_and_names_the_actor(ray, collect, name):
    with pytest.raises(RunError) as here:
        collect(name, 0)
    with pytest.raises(RunError) as there:
        collect(name, 2)
    where = r" \(worker-[12] on node \S+ in step 7\)"
    assert re.fullmatch(re.escape(str(here.value)) + where, str(there.value))


@pytest.mark.parametrize("name", ["wrong_mask", "raises", "exits"])
def test_attempts_that_fail_in_actors_are_those_that_fail_here(ray, collect, name):
    expected = collect(name, 0)
    assert not all(trajectory.valid for trajectory in expected)
    assert collect(name, 2) == expected
    assert collect.pool.take_restarts() == 0


def test_a_result_that_cannot_be_sent_is_invalid_alone(ray, collect):
    found = collect("unpicklable", 2)
    assert [t.valid for t in found] == [True, True, False, False, True, True, True, True]
    assert found[2].failure.startswith("what unpicklable returned cannot be sent to the driver: ")
    assert collect.pool.take_restarts() == 0


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
