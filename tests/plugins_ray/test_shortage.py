"""Machines that run out of memory, of shared memory, and of their disk."""

import re

import pytest
from actors import OnActors
from collector import without_pid
from machine_memory import kilobytes
from odd_engine import note
from test_engines import ENGINE, expected, loaded, requests_of

from plugrl.core.errors import RunError
from plugrl.core.run.process import cluster as configured
from plugrl.plugins.ray import cluster
from plugrl.plugins.ray.engines import RayInferenceService
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.testing.models import SOURCE, spec_of

pytestmark = pytest.mark.slow

#: 135 MB of weights, more than the shared memory of the cluster has.
LARGE = {
    **SOURCE,
    "config": {
        **SOURCE["config"],
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 2,
        "initializer_range": 0.02,
    },
}
#: Kilobytes: what may be taken before Ray ends actors, and what the code of the tests takes of it.
LEFT, NEEDED = 6 * 10**6, 14 * 10**6


@pytest.fixture(scope="module", autouse=True)
def _ray():
    """Imported before a test begins, at whose end imports are forgotten."""
    pytest.importorskip("ray")


@pytest.fixture
def own_cluster(settings, monkeypatch):
    """Starts a cluster with variables of Ray."""

    def begin(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(f"RAY_{name}", str(value))
        cluster.stop()
        configured.configure({**settings, "object_store_memory": 80})
        return cluster.connect()

    yield begin
    cluster.stop()
    configured.configure({})


@pytest.fixture
def little_memory(own_cluster):
    """A cluster that ends actors when 6 GB more than now are taken."""
    total, free = kilobytes("MemTotal"), kilobytes("MemAvailable")
    if free < NEEDED:
        pytest.skip("needs 14 GB of memory")
    share = 1 - (free - LEFT) / total
    return own_cluster(memory_usage_threshold=share, memory_monitor_refresh_ms=100)


def test_an_attempt_that_takes_all_memory_ends_its_actor_and_is_invalid_alone(
    little_memory, notes, caplog
):
    collect = OnActors(notes)
    expected = without_pid(collect("Turns", 0))
    try:
        assert without_pid(collect("EatsOnce", 2)) == expected
        assert collect.pool.take_restarts() >= 1
        assert re.search(
            r"worker-1 on node \S+ was ended because its node ran low on memory while it attempted "
            "problem 2 in step 7; another process takes over",
            caplog.text,
        )
        found = without_pid(collect("Eats", 2))
    finally:
        collect.pool.close()
    lost = found.pop(4)
    assert lost.failure == (
        "problem 2 ended a worker process twice; the second was ended because its node ran low on "
        "memory"
    )
    assert found == expected[:4] + expected[5:]


def test_a_replica_that_takes_all_memory_is_replaced(little_memory, notes, caplog):
    near = loaded(TransformersInferenceService())
    service = loaded(RayInferenceService({"engine": ENGINE, "replicas": 2}))
    requests = requests_of(near)
    note(notes, "hungry", service.replicas.places[1]["pid"]).touch()
    try:
        assert service.generate(requests) == expected(near, requests)
        assert 1 <= service.replicas.restarts < 8
    finally:
        service.close()
    assert re.search(
        r"replica 2 of model 'policy' on node \S+ was ended because its node ran low on memory "
        "while it answered 6 requests in step 4; another takes over",
        caplog.text,
    )


def large(service):
    service.load(spec_of(LARGE, trained=True))
    return service


def test_weights_and_trajectories_that_exceed_the_object_store_go_through_the_disk(
    own_cluster, notes
):
    own_cluster()
    near = large(TransformersInferenceService())
    far = large(RayInferenceService({"replicas": 2, "max_restarts": 0}))
    try:
        for version in (1, 2, 3):
            weights = {name: (1 + version / 10) * w for name, w in near._model.state_dict().items()}
            assert sum(weight.nbytes for weight in weights.values()) > 100e6
            for service in (near, far):
                service.update_weights(weights, version)
        requests = requests_of(near, 3)
        assert far.generate(requests) == expected(near, requests)
    finally:
        far.close()
    collect = OnActors(notes)
    try:
        found = collect("large", 2)
    finally:
        collect.pool.close()
    assert [len(each.extra_fields["blob"]) for each in found] == [40_000_000] * 8
    assert collect.pool.take_restarts() == 0


def test_weights_for_which_there_is_no_disk_either_end_the_run_and_change_nothing(own_cluster):
    own_cluster(local_fs_capacity_threshold=0.01)
    near = large(TransformersInferenceService())
    far = large(RayInferenceService({"replicas": 1, "max_restarts": 0}))
    requests = requests_of(near, 3)
    try:
        said = (
            r"^putting version 1 of the weights of model 'policy' into the object store of node "
            r"\S+ found the disk of its node full; "
        )
        with pytest.raises(RunError, match=said) as raised:
            far.update_weights(near._model.state_dict(), 1)
        assert "\n" not in str(raised.value)
        assert far.generate(requests) == near.generate(requests)
        assert far.version == 0
    finally:
        far.close()
