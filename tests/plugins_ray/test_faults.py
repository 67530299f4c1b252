"""Machines that go and come, machines that differ, and the end of the driver."""

import os
import signal
import subprocess
import sys

import pytest
from actors import OnActors
from collector import without_pid
from waiting import DEADLINE, wait_until

from plugrl.core.errors import ConfigError, PluginError
from plugrl.core.run.process import cluster as configured
from plugrl.plugins.ray import cluster


class Machine:
    """A second machine of the cluster, on this one."""

    def __init__(self, ray, folder, resource):
        self._ray, self._resource = ray, resource
        site = folder / "packages"
        info = site / "plugrl_elsewhere-9.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: plugrl-elsewhere\nVersion: 9.0\n"
        )
        self._site = site
        self.process = None

    def start(self):
        address = self._ray.get_runtime_context().gcs_address
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}"),
                *("--num-cpus=2", f'--resources={{"{self._resource}": 2}}', "--block"),
                "--object-store-memory=80000000",
            ],
            env={**os.environ, "PYTHONPATH": str(self._site)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        assert wait_until(lambda: self.node is not None, seconds=3 * DEADLINE)

    @property
    def node(self):
        found = [node for node in cluster.nodes() if node.resources.get(self._resource)]
        return found[0] if found else None

    def kill(self):
        """End it as a machine that loses its power."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
        assert wait_until(lambda: self.node is None, seconds=3 * DEADLINE)


@pytest.fixture
def machine(ray, tmp_path):
    made = Machine(ray, tmp_path, "far")
    made.start()
    yield made
    made.kill()


@pytest.mark.slow
def test_machines_that_come_differ_and_go(machine, notes, caplog):
    # It has another version of a package; that is found before anything runs there.
    with pytest.raises(PluginError) as raised:
        cluster.check_nodes(["plugrl", "plugrl-elsewhere"])
    said = f"{machine.node.address} has plugrl-elsewhere 9.0, here is none"
    assert said in str(raised.value)
    cluster.check_nodes(["plugrl"])

    # Four actors with two CPUs each need both machines.
    collect = OnActors(notes, workers=4, resources={"CPU": 2})
    expected = collect("Turns", 0)
    found = collect("Turns", 4)
    assert without_pid(found) == without_pid(expected)
    machine.kill()
    assert without_pid(collect("Turns", 4)) == without_pid(expected)
    assert collect.pool.take_restarts() >= 1
    assert "shares CPUs with others: 4 actors with 2 CPU each do not fit: 3 do" in caplog.text
    # When it is back, actors that share CPUs move there.
    machine.start()
    assert without_pid(collect("Turns", 4)) == without_pid(expected)
    assert not any(handle.crowded for handle in collect.pool._handles)
    collect.pool.close()


@pytest.mark.integration
def test_a_cluster_that_is_not_there_is_said_in_seconds(ray_session):
    try:
        configured.configure({"address": "127.0.0.1:9"})
        with pytest.raises(ConfigError, match=r"the Ray cluster 127.0.0.1:9 does not answer \("):
            cluster._reach("127.0.0.1:9")
    finally:
        configured.configure({})


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_no_cluster(own_processes):
    program = """
import time
from functools import partial
from plugrl.core.run.process import cluster
from plugrl.core.text.rollout.processes.handle import ProcessHandle
from plugrl.plugins.ray.rollouts import RayExecutor

cluster.configure({"cpus": 2, "object_store_memory": 80})
channel = RayExecutor({"workers": 1}).channel(partial(ProcessHandle, "one"))
while not channel.place:
    time.sleep(0.05)
print(channel.place["pid"], flush=True)
time.sleep(600)
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    pid = int(driver.stdout.readline())
    members = _session(driver.pid)
    assert len(members) > 3
    assert pid in _pids()
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert wait_until(lambda: not _session(driver.pid), seconds=3 * DEADLINE), _session(driver.pid)
    assert wait_until(lambda: pid not in _pids())


def _session(session):
    """The commands of the processes of a session that have not ended."""
    return [command for _, of, command in _processes() if of == session]


def _pids():
    return {pid for pid, _, _ in _processes()}


def _processes():
    """Number, session and command of every process that has not ended."""
    words = ["ps", "-wweo", "pid,sess,stat,args", "--no-headers"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    rows = [line.split(None, 3) for line in done.stdout.splitlines()]
    return [(int(pid), int(of), args) for pid, of, stat, args in rows if stat[0] != "Z"]
