"""Whole runs whose attempts are made by programs: equal, resumed, killed and interrupted."""

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import forking
import pytest
import yaml
from waiting import DEADLINE

import plugrl
from plugrl.cli import main
from plugrl.core.errors import ConfigError, RunTerminated
from plugrl.core.experiment import prepare, resume, start
from plugrl.testing import tiny
from plugrl.testing.comparison import assert_equal_states, comparable_metrics

pytestmark = pytest.mark.integration
PROGRAMS = Path(__file__).parent / "programs"


def config(folder, **section):
    worker = {"type": "external", "workspace": str(PROGRAMS), "max_response_length": 3, **section}
    return tiny.config("self_hosted_grpo", folder, {"rollout_worker": worker})


def metrics(folder):
    (file,) = Path(folder).rglob("metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: v for k, v in line.items() if "time" not in k} for line in lines]


@pytest.mark.parametrize("processes", [0, 2])
def test_equal_runs_have_equal_numbers(tmp_path, processes):
    found = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        tree = config(tmp_path / name, function="asking:plain", processes=processes)
        start(prepare(tree))
        found.append(metrics(tmp_path / name))
    assert found[0] == found[1]
    assert found[0][1]["rollout/turns"] == 2.0
    assert found[0][1]["rollout/invalid"] == 0.0


@pytest.mark.parametrize(
    "section", [{"command": "python asking.py last"}, {"function": "asking:awaiting"}]
)
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, section):
    class Terminated:
        @plugrl.hookimpl
        def plugrl_step_end(self, step):
            if step == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    (tmp_path / "straight").mkdir()
    whole = plugrl.train(config(tmp_path / "straight", **section))
    (tmp_path / "stopped").mkdir()
    with pytest.raises(RunTerminated):
        tiny.train(config(tmp_path / "stopped", **section), Terminated())
    (folder,) = (tmp_path / "stopped" / "runs").glob("*/[0-9]*")
    resumed = resume(folder)
    assert comparable_metrics(resumed) == comparable_metrics(whole)
    assert_equal_states(resumed.checkpoint()["trainer"], whole.checkpoint()["trainer"])


@pytest.mark.parametrize("mode", ["batch-async", "fully-async"])
@pytest.mark.parametrize(
    "section", [{"command": "python asking.py last", "processes": 2}, {"function": "asking:plain"}]
)
def test_programs_make_attempts_while_the_trainer_trains(tmp_path, mode, section):
    tree = config(tmp_path, **section)
    tree["weight"] = {"sync_mode": mode, "staleness_threshold": 1}
    if mode == "fully-async":
        rule = {"check_batch_ready_function": "batch_size_reached", "batch_size": 2}
        tree["trajectory_pool"] = rule
    run = plugrl.train(tree)
    steps = run.metrics[1:]
    assert [(m["rollout/turns"], m["rollout/invalid"]) for m in steps] == [(2.0, 0.0)] * 2


def processes_of(word):
    """Pids of the processes with ``word`` in their command line or environment."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if word in (path / "cmdline").read_bytes() + (path / "environ").read_bytes():
                found.add(int(path.name))
        except OSError:
            continue
    return found - {os.getpid()}


def wait_for(condition, seconds=DEADLINE):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_ends_leaves_no_program_and_no_port(tmp_path, processes, number):
    note = tmp_path / "note"
    tree = config(tmp_path, command="python asking.py hangs", processes=processes, timeout=DEADLINE)
    problems = [{"prompt": "a", "answer": "a", "note": str(note)}] * 2
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(p) + "\n" for p in problems))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tree))
    mark = f"SERVE_TEST={tmp_path}"
    run = forking.Process(
        ["-m", "plugrl", "train", str(recipe)],
        env={**os.environ, "SERVE_TEST": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        wait_for(lambda: note.exists() and len(note.read_text().split()) >= 4)
        ports = {word.split(b":")[2][:5] for word in urls(mark.encode())}
        assert ports
        run.send_signal(number)
        if number == signal.SIGINT:
            time.sleep(0.5)
            run.send_signal(number)
        _, said = run.communicate(timeout=DEADLINE)
    finally:
        run.kill()
    assert run.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), said
    wait_for(lambda: not processes_of(mark.encode()))
    for port in ports:
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", int(port)), timeout=2)


def urls(mark):
    """The addresses that the programs of a run were given."""
    found = set()
    for pid in processes_of(mark):
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found |= {word for word in words if word.startswith(b"OPENAI_BASE_URL=http://127")}
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    start(prepare(tiny.config("self_hosted_grpo", folder)))
    return folder / "runs"


def serving(runs, *words, **variables):
    process = forking.Process(
        ["-m", "plugrl", "serve", "latest", "--runs-folder", str(runs), *words],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    lines = [process.stdout.readline() for _ in range(3)]
    said = dict(line.removeprefix("export ").strip().partition("=")[::2] for line in lines[1:])
    return process, said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_serve_answers_until_it_is_interrupted(trained, tmp_path, number, code):
    from openai import OpenAI

    record = tmp_path / "answers.jsonl"
    process, said = serving(trained, "--record", str(record))
    try:
        asking = OpenAI(base_url=said["OPENAI_BASE_URL"], api_key=said["OPENAI_API_KEY"])
        messages = [{"role": "user", "content": "ab"}]
        texts = {
            asking.chat.completions.create(model="policy", messages=messages, seed=4)
            .choices[0]
            .message.content
            for _ in range(3)
        }
        assert len(texts) == 1
        process.send_signal(number)
        _, error = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    assert process.returncode == code
    assert len(error.strip().splitlines()) == 1
    turns = [json.loads(line) for line in record.read_text().splitlines()]
    assert len(turns) == 3
    assert turns[0]["token_ids"] == turns[1]["token_ids"]
    assert turns[0]["weight_versions"] == [2] * len(turns[0]["token_ids"])


def test_serve_takes_its_token_from_the_environment_and_keeps_it_to_itself(trained):
    from openai import AuthenticationError, OpenAI

    process, said = serving(trained, PLUGRL_SERVE_TOKEN="of-the-environment")
    try:
        assert said["OPENAI_API_KEY"] == "$PLUGRL_SERVE_TOKEN"
        url = said["OPENAI_BASE_URL"]
        assert OpenAI(base_url=url, api_key="of-the-environment").models.list().data
        with pytest.raises(AuthenticationError):
            OpenAI(base_url=url, api_key="another").models.list()
    finally:
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=DEADLINE)
    assert "of-the-environment" not in out + error


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (["--host", "192.0.2.1"], {}, "cannot listen on 192.0.2.1"),
        (["--tool-parser", "hermse"], {}, "did you mean hermes"),
        ([], {"PLUGRL_SERVE_TOKEN": "two words"}, "PLUGRL_SERVE_TOKEN must be"),
        (["--record", "/nowhere/at/all"], {}, "/nowhere/at/all"),
        (["--checkpoint", "99"], {}, "has no checkpoint '99'"),
    ],
)
def test_what_serve_cannot_do_is_one_line(trained, words, variables, said):
    done = forking.run(
        ["-m", "plugrl", "serve", "latest", "--runs-folder", str(trained), *words],
        env={**os.environ, **variables},
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_port_in_use_is_one_line(trained):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = forking.run(
            ["-m", "plugrl", "serve", "latest", "--runs-folder", str(trained), "--port", port],
        )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: cannot listen on 127.0.0.1 port {port}")


def test_faults_of_the_section_are_found_before_the_run(tmp_path):
    for section, said in (
        ({"command": "no-such-program --flag"}, "there is no such program"),
        ({"function": "asking:nothing"}, "has no 'nothing'"),
        (
            {"function": "asking:plain", "model_names": {"gpt": "judge"}},
            "no model 'judge' in models",
        ),
        ({"function": "asking:plain", "reward": "evaluator", "evaluator": None}, "name one"),
        ({"command": "python asking.py 'x"}, "cannot be split"),
    ):
        with pytest.raises(ConfigError, match=said):
            prepare(config(tmp_path, **section))


def test_a_missing_extra_is_found_before_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "plugrl\[serve\]"'):
        prepare(config(tmp_path, function="asking:plain"))
    with pytest.raises(SystemExit) as caught:
        main(["serve", "latest", "--runs-folder", str(tmp_path)])
    assert caught.value.code == 3
    assert capsys.readouterr().err.count("\n") == 1
