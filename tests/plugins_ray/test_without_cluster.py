"""What is known of clusters, files and faults before any cluster runs."""

import os
import subprocess
import sys

import pytest
from waiting import wait_until

from plugrl.core.config.check import configure
from plugrl.core.config.plan import batch_plan
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.plugins.user_code import relocation
from plugrl.core.plugins.user_code.user_files import load_file, user_module_name
from plugrl.core.run.process import cluster as configured
from plugrl.plugins.ray import cluster, errors, files
from plugrl.testing import tiny


def test_processes_and_an_executor_exclude_each_other(tmp_path):
    tree = tiny.config(
        "self_hosted_grpo", tmp_path, {"rollout_worker": {"processes": 2, "executor": "ray"}}
    )
    with pytest.raises(ConfigError, match="processes and executor exclude each other"):
        prepare(tree)


def test_more_actors_than_cpus_are_refused_before_a_run(tmp_path):
    executor = {"type": "ray", "workers": 5, "resources": {"CPU": 2}}
    tree = tiny.config("self_hosted_grpo", tmp_path, {"rollout_worker": {"executor": executor}})
    tree["settings"]["cluster"] = {"cpus": 8}
    said = r"executor\.workers \(.*: 5 actors with 2 CPU each do not fit: 4 do \(this machine has 8"
    with pytest.raises(ConfigError, match=said):
        prepare(tree)
    tree["rollout_worker"]["executor"]["workers"] = 4
    plan = dict(batch_plan(prepare(tree).validated))
    assert plan["attempts a process of ray"] == "8 / 4 = 2"
    assert plan["taken by each process of ray"] == "2 CPU"
    assert plan["taken of the cluster"] == "8 CPU"


@pytest.mark.parametrize("address", ["here", "127.0.0.1:x", ":6379"])
def test_an_address_is_host_and_port(address):
    with pytest.raises(ConfigError, match=r"write host:port, such as 10\.0\.0\.1:6379, or auto"):
        cluster._reach(address)


def test_nothing_at_an_address_is_said_before_ray_waits():
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9 does not answer \(ConnectionRefused"):
        cluster._reach("127.0.0.1:9")


NODES = [
    cluster.Node("a", "10.0.0.1", {"CPU": 4.0, "GPU": 1.0}),
    cluster.Node("b", "10.0.0.2", {"CPU": 3.0}),
]


@pytest.mark.parametrize(
    ("resources", "fits"),
    [({"CPU": 1}, 7), ({"CPU": 2}, 3), ({"CPU": 1, "GPU": 0.5}, 2), ({"GPU": 2}, 0)],
)
def test_actors_fit_where_one_machine_has_all_they_need(resources, fits):
    assert cluster.unfit(NODES, resources, fits) is None
    assert f"do not fit: {fits} do (10.0.0.1 has" in cluster.unfit(NODES, resources, fits + 1)


def test_every_difference_of_a_machine_is_told():
    here = {"Python": "3.11.7", "plugrl": "1.0", "plugrl-x": "2.0", "plugrl-y": "1.0"}
    there = {"Python": "3.12.1", "plugrl": "1.0", "plugrl-x": "", "plugrl-y": "1.1"}
    assert cluster._differences(NODES[1], here, there) == [
        "10.0.0.2 has Python 3.12.1, here is 3.11.7",
        "10.0.0.2 has no plugrl-x, here is 2.0",
        "10.0.0.2 has plugrl-y 1.1, here is 1.0",
    ]


def test_a_failure_is_one_line_that_names_who_where_what_and_when():
    from ray.exceptions import GetTimeoutError, OutOfMemoryError

    line = errors.failure(
        OutOfMemoryError("page\nafter page"),
        actor="worker-3",
        node="10.0.0.2",
        task="attempted problem 7",
        step=4,
    )
    assert line == (
        "worker-3 on node 10.0.0.2 was ended because its node ran low on memory while it attempted "
        "problem 7 in step 4"
    )
    assert errors.reason(GetTimeoutError("x\ny")) == "did not answer in time"


def test_a_process_that_hears_nothing_goes_with_its_actor():
    """Code may let no other code run, and what it has started belongs to it."""
    program = """
import subprocess, sys, time
from plugrl.plugins.ray.relay import Relay

def deaf(files):
    return subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], process_group=0)

relay = Relay(deaf, {}, [])
print(relay._process.pid, flush=True)
time.sleep(600)
"""
    actor = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    group = int(actor.stdout.readline())
    wait_until(lambda: len(_group(group)) == 3)
    actor.kill()
    actor.wait()
    actor.stdout.close()
    wait_until(lambda: not _group(group))


def _group(number):
    """The processes of a group that have not ended."""
    words = ["ps", "-wweo", "pgid,stat", "--no-headers"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return [stat for group, stat in rows if int(group) == number and stat[0] != "Z"]


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "tools").mkdir(parents=True)
    (folder / "tools" / "__init__.py").write_text("")
    (folder / "tools" / "maths.py").write_text("ANSWER = 42\n")
    (folder / "mine.py").write_text(
        "from .tools.maths import ANSWER\n\n\nclass Mine:\n    n = ANSWER\n"
    )
    (folder / "notes.txt").write_text("not code")
    (folder / "prompt.txt").write_text("Be brief.")
    return folder


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The temporary folder of another machine."""
    monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(relocation, "_places", {})


def test_code_travels_with_what_it_imports_and_what_settings_name(project):
    settings = {"prompt": str(project / "prompt.txt"), "text": "/no/such/file", "few": ["a", 1]}
    found = files.collect_files([str(project / "mine.py")], settings, [])
    names = {os.path.relpath(path, project) for path in found}
    assert names == {"mine.py", "tools/__init__.py", "tools/maths.py", "prompt.txt"}
    assert found[str(project / "prompt.txt")] == b"Be brief."


def test_files_that_are_there_stay_where_they_are(project, elsewhere):
    found = files.collect_files([str(project / "mine.py")], {}, [])
    assert files.provide(found) == {}


def test_files_that_are_missing_or_others_are_copied_and_found(project, elsewhere):
    found = files.collect_files([str(project / "mine.py")], {}, [str(project / "prompt.txt")])
    path = str(project / "mine.py")
    name = user_module_name(path)
    for each in project.rglob("*.*"):
        each.unlink()
    (project / "prompt.txt").write_text("Be lengthy.")
    places = files.provide(found)
    assert files.provide(found) == places
    relocation.relocate(places)
    # Classes keep their module, so that what is sent back is read by the driver.
    mine = load_file(path).Mine
    assert (mine.__module__, mine.n) == (name, 42)
    section = relocation.relocated_values({"file": str(project / "prompt.txt"), "n": 1})
    assert section["n"] == 1
    with open(section["file"], encoding="utf-8") as file:
        assert file.read() == "Be brief."


def test_files_that_are_too_large_are_refused(project, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 10)
    with pytest.raises(ConfigError, match="the files that actors need are larger than"):
        files.collect_files([str(project / "mine.py")], {}, [])


def test_actors_get_the_variables_of_the_run_and_their_own(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    try:
        configured.configure({"variables": {"B": "cluster"}}, {"A": "run", "B": "run"})
        found = cluster.actor_variables(configured.settings())
    finally:
        configured.configure({})
    assert (found["A"], found["B"], found["OMP_NUM_THREADS"]) == ("run", "cluster", "3")


def test_resources_are_numbers():
    from plugrl.plugins.ray.rollouts import RayExecutor

    with pytest.raises(ConfigError, match="resources"):
        configure(RayExecutor, {"resources": {"CPU": "two"}})
