"""``plugrl launch`` and ``plugrl jobs``: words, places, modes and what is printed."""

from __future__ import annotations

import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml
from launched import EXPERIMENT, write_project

import plugrl
from plugrl import Launcher, LaunchStatus
from plugrl.core.plugins.registry import default_registry


@pytest.fixture
def project(tmp_path, monkeypatch):
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def run(call, project):
    def run(*words):
        code, out, err = call(*words)
        return code, out, err

    return run


class Here(Launcher):
    """Keeps what it gets, and ends it as its class says."""

    follows = True
    sent: list = []
    state = "succeeded"
    interrupted = False

    def preview(self, job):
        return f"{job.name}\n"

    def start(self, job):
        self.sent.append(job)
        return job.name

    def status(self, name):
        return LaunchStatus(name, self.state, "said so")

    def logs(self, name, *, follow):
        yield "step 1\n"
        if self.interrupted:
            raise KeyboardInterrupt
        yield "step 2\n"


@pytest.fixture
def here(monkeypatch):
    cls = type("Here", (Here,), {"sent": [], "__doc__": Here.__doc__})
    registry = default_registry()
    snapshot = registry.snapshot()
    plugrl.register_launcher("here")(cls)
    yield cls
    registry.restore(snapshot)


def test_a_launcher_of_a_plugin_is_a_place(run, here):
    code, out, err = run("launch", "mini.yaml", "seed=7", "--on", "here", "-t", "a")
    assert code == 0, err
    assert out == "job mini-a on here\nstep 1\nstep 2\n"
    (job,) = here.sent
    assert job.words == ("train", "mini.yaml", "seed=7")


def test_a_dry_run_sends_nothing(run, here):
    assert run("launch", "mini.yaml", "--on", "here", "-t", "a", "--dry-run")[:2] == (0, "mini-a\n")
    assert not here.sent


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_the_end_of_the_job_is_that_of_the_command(run, here, state):
    here.state = state
    code, _, err = run("launch", "mini.yaml", "--on", "here", "-t", "a")
    assert code == 1
    assert err.startswith(f"error: the job mini-a is {state}: said so; ")
    assert run("jobs", "logs", "mini-a", "--on", "here", "--follow")[0] == 1
    assert run("jobs", "status", "mini-a", "--on", "here")[1] == f"{state}: said so\n"


def test_ctrl_c_leaves_the_job_and_says_how_to_go_on(run, here):
    here.interrupted = True
    code, out, err = run("launch", "mini.yaml", "--on", "here", "-t", "a")
    assert code == 130
    assert out.endswith("step 1\n")
    assert err.splitlines()[-2:] == [
        "plugrl jobs logs mini-a --on here",
        "plugrl jobs stop mini-a --on here",
    ]


def test_a_detached_job_is_not_followed(run, here):
    code, out, err = run("launch", "mini.yaml", "--on", "here", "-t", "a", "-d")
    assert (code, out) == (0, "job mini-a on here\n")
    assert "plugrl jobs logs mini-a --on here" in err


def test_the_words_of_the_guides(run, here):
    words = ["-m", "self-hosted", "-c", "mini.yaml", "-r", "-t", "v2", "--on", "here"]
    assert run(*words, "--inference-url", "server:8000")[0] == 2  # A self-hosted engine is needed.
    assert run(*words, "seed=3")[0] == 0
    (job,) = here.sent
    assert (job.name, job.words) == ("mini-v2", ("train", "mini.yaml", "seed=3"))


def test_the_mode_has_to_be_that_of_the_trainer(run, here):
    code, _, err = run("launch", "mini.yaml", "-m", "training-service", "--on", "here")
    assert code == 2
    assert "is self-hosted, not training-service; write -m self-hosted" in err


def test_the_mode_of_the_guides_is_for_kubernetes(run):
    code, out, _ = run(
        "launch", "mini.yaml", "-m", "self-hosted", "-t", "a", "--dry-run",
        "resource.image=x/y:1", "resource.volumes=[{source: claim/runs, path: /runs}]",
    )  # fmt: skip
    assert code == 0
    assert [each["kind"] for each in yaml.safe_load_all(out)] == ["ConfigMap", "RayJob"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mini.yaml"], "say where: --on kubernetes, --on local, --on ray, --on slurm"),
        (["--on", "ray"], "name a configuration"),
        (["mini.yaml", "--on", "rya"], "did you mean"),
        (["mini.yaml", "--on", "local", "--address", "x"], "address"),
        (["mini.yaml", "--on", "ray", "seed=x"], "seed (command line)"),
        (["mini.yaml", "--on", "ray", "resource.gpus=1"], "resource.gpus"),
        (["mini.yaml", "--on", "kubernetes"], "resource.image is not set"),
        (["mini.yaml", "--on", "ray", "-t", "'"], "makes no name of a job"),
        (["mini.yaml", "--on", "ray", "--inference-url", "a b"], "is no address"),
    ],
)
def test_what_cannot_be_launched_is_one_line(run, words, said):
    code, out, err = run("launch", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_cluster_that_is_not_there_is_named(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, _, err = run("launch", "mini.yaml", "--on", "ray", "--address", address)
    assert code == 2
    assert f"no Ray cluster answers at {address}: Connection refused" in err
    assert len(err.splitlines()) == 1


def test_a_server_that_is_no_cluster_is_named(run):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        code, _, err = run("jobs", "list", "--on", "ray", "--address", address)
        server.shutdown()
    assert code == 2
    assert f"no Ray cluster answers at {address}: it answers 404" in err


def test_ray_gets_no_text_of_a_user_on_its_command_line(run):
    word = 'project_name=a\'b "c" $(touch broken)'
    code, out, err = run("launch", "mini.yaml", word, "--on", "ray", "-t", "a", "--dry-run")
    assert code == 0, err
    sent = yaml.safe_load(out)
    assert sent["entrypoint"] == "python launch.py"
    assert sent["submission_id"] == "mini-a"
    assert sent["files"] == ["base.yaml", "code/grading.py", "code/judge.py", "data/train.jsonl",
                             "mini.yaml"]  # fmt: skip
    assert sent["folder"].startswith(os.path.join(os.getcwd(), "runs", ".launched"))


def test_a_gpu_of_the_driver_is_asked_of_ray(run):
    words = ["resource.training.gpu_count=2", "--on", "ray", "--dry-run"]
    assert yaml.safe_load(run("launch", "mini.yaml", *words)[1])["entrypoint_num_gpus"] == 2


def test_a_server_that_is_up_takes_the_place_of_engines(run, here, project):
    text = EXPERIMENT.replace(
        "trainer: {type", "resource: {inference: {gpu_count: 1}}\ntrainer: {type"
    )
    (project / "mini.yaml").write_text(text)
    code, _, err = run("launch", "mini.yaml", "--on", "here", "-t", "a")
    assert code == 0, err
    assert here.sent[0].engines


def test_a_place_without_a_list_says_where_runs_are(run):
    code, _, err = run("jobs", "list", "--on", "local")
    assert code == 2
    assert err == "error: this place keeps no list of jobs; plugrl runs list shows the runs\n"
