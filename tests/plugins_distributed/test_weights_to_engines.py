"""Weights of two ranks in engines of the cluster: whole, equal, and whatever dies."""

import json
import os
import signal

import pytest
from here import batch, configuration, loss, spec, spread

from plugrl.core.errors import RunError
from plugrl.core.experiment import prepare, start
from plugrl.core.run.records.places import read_places
from plugrl.core.text.schedule.weight_sync import PARITY_TOLERANCE, WeightSync
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.ray.engines import RayInferenceService
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.testing import tiny

pytestmark = pytest.mark.integration
PROBE = [[2, 3, 4, 5, 6, 1], [9, 8, 7, 1]]


MODEL = spec("tied")


def two_engines():
    service = RayInferenceService({"replicas": 2, "timeout": 120.0})
    service.load(MODEL)
    return service


@pytest.fixture(scope="module")
def loaded():
    """The engines of those tests that leave them whole: their actors take seconds to start."""
    services = []
    yield services
    for service in services:
        service.close()


@pytest.fixture
def shared(cluster, loaded):
    if not loaded:
        loaded.append(two_engines())
    return loaded[0]


@pytest.fixture
def far(cluster):
    """Engines that a test may end."""
    service = two_engines()
    yield service
    service.close()


def step(service):
    service.forward_backward(batch(), loss({}))
    service.optimizer_step()
    service.version += 1


def scores(service):
    """What an engine with the weights of a train service says of the probe."""
    near = TransformersInferenceService()
    near.load(MODEL)
    near.update_weights(service.weights(), service.version)
    return near.score(PROBE)


# Three ranks have parts of unequal sizes.
@pytest.mark.parametrize(
    ("transfer", "workers"), [("auto", 2), ("broadcast", 2), ("store", 2), ("auto", 3)]
)
def test_engines_have_the_weights_of_the_ranks(ranks, shared, transfer, workers):
    ours = ranks(MODEL, {"transfer": transfer}, workers=workers)
    for _ in range(2):
        step(ours)
        ours.sync_to(shared)
        assert shared.version == ours.version
        expected = scores(ours)
        # Each replica is asked about one of the sequences.
        assert shared.score(PROBE) == expected
        assert shared.score(PROBE[::-1]) == expected[::-1]
    whole = sum({w.data_ptr(): w.nbytes for w in ours.weights().values()}.values())
    assert whole <= ours.moved_bytes < 1.02 * whole


def test_the_parity_probe_sees_what_arrived(ranks, shared):
    ours = ranks(MODEL)

    class Both:
        name, inference = "policy", shared

        @staticmethod
        def service():
            return ours

    sync = WeightSync(Both, PARITY_TOLERANCE["float32"])
    sync.observe([Trajectory(tokens, [0] + [1] * (len(tokens) - 1)) for tokens in PROBE])
    step(ours)
    assert sync() < PARITY_TOLERANCE["float32"]
    step(ours)
    # As if nothing had arrived.
    ours.sync_to = lambda inference: None
    with pytest.raises(RunError, match="does not run the trained weights"):
        sync()


def test_engines_that_die_are_replaced_with_the_weights_that_were_sent(ranks, shared):
    ours = ranks(MODEL)
    step(ours)
    ours.sync_to(shared)
    expected = scores(ours)
    # The ranks train on, as in the async modes.
    step(ours)
    before = shared.replicas.restarts
    os.kill(int(shared.replicas.places[0]["pid"]), signal.SIGKILL)
    assert shared.score(PROBE) == expected
    assert shared.replicas.restarts == before + 1


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["auto", "broadcast"])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_fails_while_it_takes_weights_is_replaced(ranks, far, transfer, sent):
    ours = ranks(MODEL, {"transfer": transfer}, timeout=60.0)
    far.replicas._timeout = 10.0
    step(ours)
    ours.sync_to(far)
    # Nobody looks at it before: it is found out within the transfer.
    known = far.replicas.memories()
    far.replicas.memories = lambda: known
    os.kill(int(far.replicas.places[0]["pid"]), sent)
    step(ours)
    ours.sync_to(far)
    assert far.replicas.restarts == 1
    assert far.score(PROBE) == scores(ours)


@pytest.mark.slow
def test_engines_of_another_model_refuse_the_weights(ranks, far):
    with pytest.raises(ValueError, match="weights of another model"):
        ranks(spec("gpt2")).sync_to(far)


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["auto", "broadcast"])
def test_a_rank_that_dies_ends_the_transfer_too(ranks, far, transfer):
    ours = ranks(MODEL, {"transfer": transfer})
    ours.sync_to(far)
    known = ours._buckets()
    ours._buckets = lambda: known
    os.kill(ours.ranks.processes[0], signal.SIGKILL)
    with pytest.raises(RunError, match=r"rank 0 on node \S+ was killed .* while it"):
        ours.sync_to(far)


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("sync", marks=pytest.mark.slow),
        "batch-async",
        pytest.param("fully-async", marks=pytest.mark.slow),
    ],
)
def test_runs_with_ranks_and_engines(cluster, mode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = spread(configuration("self_hosted_grpo", tmp_path / "run"))
    engine = {"type": "ray", "replicas": 2}
    tree = tiny.merged(tree, {"models": {"policy": {"inference": engine}}})
    tree = tiny.merged(tree, {"weight": {"sync_mode": mode}})
    if mode == "fully-async":
        ready = {"check_batch_ready_function": "batch_size_reached", "batch_size": 8}
        tree = tiny.merged(tree, {"trajectory_pool": ready})
    run = start(prepare(tree))
    lines = [line for line in run.metrics if "sync/bytes" in line]
    assert lines
    assert all(line["sync/parity"] < 1e-4 for line in run.metrics if "sync/parity" in line)
    assert any("sync/parity" in line for line in run.metrics)
    listed = list(read_places(run.folder))
    assert [name.partition(" on node ")[0] for name in listed] == [
        *("replica 1 of model 'policy'", "replica 2 of model 'policy'"),
        *("rank 0 of model 'policy'", "rank 1 of model 'policy'"),
    ]
    text = (run.folder / "timeline.jsonl").read_text("utf-8")
    spans = [json.loads(line) for line in text.splitlines()]
    assert {s["bytes"] for s in spans if s["lane"] == "weights"} == {
        line["sync/bytes"] for line in lines
    }
