"""Ranks on two machines, which are nodes of one cluster: ``shard: hybrid`` against one process."""

import os
import subprocess
import sys

import pytest
import torch
from here import CLUSTER, batch, local, loss, moments, spec
from waiting import DEADLINE, wait_until

from plugrl.plugins.distributed.ranks import end_idle
from plugrl.plugins.ray import cluster as joined

pytestmark = pytest.mark.slow
OPTIONS = {"micro_batch_size": 2, "value_head": True}


@pytest.fixture
def two_machines(cluster):
    """The cluster of the tests with a second machine, and two CPUs free on each."""
    end_idle()
    # What ranks of other tests had is free some time after they have ended.
    whole = CLUSTER["cpus"]
    assert wait_until(lambda: cluster.available_resources().get("CPU") == whole)
    taken = cluster.util.placement_group([{"CPU": whole - 2}])
    assert taken.wait(DEADLINE)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=2", "--block"]
    command += [f"--address={cluster.get_runtime_context().gcs_address}"]
    machine = subprocess.Popen(
        [*command, "--object-store-memory=80000000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
        process_group=0,
    )
    try:
        assert wait_until(lambda: len(joined.nodes()) == 2, seconds=3 * DEADLINE)
        yield
    finally:
        end_idle()
        os.killpg(machine.pid, 15)
        machine.wait()
        cluster.util.remove_placement_group(taken)


def test_copies_on_machines_give_the_gradient_of_one_process(two_machines, ranks):
    ours = ranks(spec("tied"), {**OPTIONS, "shard": "hybrid"}, workers=4, timeout=600.0)
    assert ours.ranks.turns == [(0, 2), (1, 2), (0, 2), (1, 2)]
    expected = local(spec("tied"), OPTIONS)
    steps = []
    for service in (ours, expected):
        service.forward_backward(batch(), loss(OPTIONS))
        steps.append(service.optimizer_step())
    assert steps[0]["grad_norm"] == pytest.approx(steps[1]["grad_norm"], rel=1e-6)
    found = moments(ours)
    for number, value in moments(expected).items():
        torch.testing.assert_close(found[number], value, rtol=0, atol=1e-7)
    ours.close()
