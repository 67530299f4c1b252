"""Ray Jobs on a real cluster of this machine: followed, stopped with a checkpoint, resumed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import forking
import pytest
from launched import write_project
from waiting import wait_until

pytest.importorskip("aiohttp")
pytest.importorskip("ray")
BIN = Path(sys.executable).parent


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The address of a cluster with two CPUs, and the environment of its commands."""
    # Paths of sockets are short.
    folder = Path("/tmp") / f"ray-{os.getpid()}"
    hold = tmp_path_factory.mktemp("cluster") / "hold"
    log = hold.with_name("head.log")
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Of a busy machine; Ray's own patience is 30 seconds.
        "RAY_raylet_start_wait_time_s": "240",
        "HOLD": str(hold),
    }
    port, dashboard = 20000 + free_port() % 10000, free_port()
    head = subprocess.Popen(
        [
            *(BIN / "ray", "start", "--head", "--block", f"--port={port}", "--num-cpus=2"),
            *(f"--dashboard-port={dashboard}", "--dashboard-agent-listen-port=0"),
            *("--disable-usage-stats", f"--temp-dir={folder}"),
        ],
        env=environment,
        stdout=log.open("w", encoding="utf-8"),
        stderr=subprocess.STDOUT,
    )
    address = f"http://127.0.0.1:{dashboard}"

    try:
        wait_until(lambda: "Ray runtime started" in log.read_text(encoding="utf-8"), head)
        yield address, environment, hold
    finally:
        head.terminate()
        head.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def plugrl(*words, env, cwd=None):
    return forking.run(["-m", "plugrl", *words], env=env, cwd=cwd)


@pytest.mark.integration
def test_a_job_is_followed_stopped_and_resumed_by_its_name(cluster, tmp_path):
    address, environment, hold = cluster
    where = ("--on", "ray", "--address", address)
    write_project(tmp_path)
    hold.write_text("")
    word = 'project_name=it\'s "a" $(touch broken)\nname'

    def run(*words):
        return plugrl(*words, *where, env=environment, cwd=tmp_path)

    # While it is held, the run takes minutes: a command of a busy machine may take half of one.
    words = (word, "trainer.total_train_steps=40")
    sent = run("launch", "mini.yaml", *words, "-t", "one", "-d")
    assert sent.stdout == "job mini-one on ray\n", sent.stderr
    metrics = lambda: list((tmp_path / "runs" / "mini").glob("*/metrics.jsonl"))  # noqa: E731
    wait_until(lambda: any(file.stat().st_size for file in metrics()))
    assert run("jobs", "status", "mini-one").stdout.startswith("running")
    again = run("launch", "mini.yaml", "-t", "one", "-d")
    assert again.returncode == 2
    assert "has a job 'mini-one' already" in again.stderr
    assert run("jobs", "stop", "mini-one").returncode == 0
    # A step takes four seconds, and Ray's own patience would be three.
    wait_until(lambda: run("jobs", "status", "mini-one").stdout.startswith("stopped"))
    printed = run("jobs", "logs", "mini-one").stdout
    assert "SIGTERM: stopping at the end of this step" in printed
    (folder,) = (tmp_path / "runs" / "mini").iterdir()
    config = (folder / "config.yaml").read_text(encoding="utf-8")
    assert "$(touch broken)" in config
    before = len((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert before < 40
    hold.unlink()
    resumed = run("launch", "mini.yaml", "--resume", folder.name, "-t", "two")
    assert resumed.returncode == 0, resumed.stderr
    assert "40 steps" in resumed.stdout
    steps = [
        json.loads(line)["step"]
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    # Of step 0 are the numbers before training.
    assert sorted(set(steps) - {0}) == list(range(1, 41))
    listed = json.loads(run("jobs", "list", "--json").stdout)
    assert [(job["name"], job["state"]) for job in listed] == [
        ("mini-two", "succeeded"),
        ("mini-one", "stopped"),
    ]


@pytest.mark.slow
def test_a_job_that_fails_says_where_it_was_said(cluster, tmp_path):
    address, environment, _ = cluster
    write_project(tmp_path)
    # A file that is on this machine's disk and not on the cluster's.
    words = ("data.data_files=[/no/such/data.jsonl]", "-t", "bad")
    failed = plugrl(
        *("launch", "mini.yaml", "--on", "ray", "--address", address, *words),
        env=environment,
        cwd=tmp_path,
    )
    assert failed.returncode == 1
    assert "no such file: /no/such/data.jsonl" in failed.stdout
    assert failed.stderr.splitlines()[-1].startswith("error: the job mini-bad is failed")
