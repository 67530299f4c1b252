"""Servers that a run starts from a command, watches over and ends."""

import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from documented_server import SOURCE, request
from waiting import DEADLINE, wait_until

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError, EngineLost, RunError
from plugrl.core.text.inference.services import ModelSpec
from plugrl.core.text.rollout.processes.messages import pack_error, unpack_error
from plugrl.plugins.openai.server_process import ServerProcess
from plugrl.plugins.openai.server_service import ServerInferenceService
from plugrl.plugins.openai.settings import command_fault
from plugrl.plugins.transformers.inference_service import TransformersInferenceService

STAND_IN = Path(__file__).with_name("stand_in.py")
VIEW = ConfigView(SOURCE, checked=True)


def command(kind="vllm", *words):
    """Starts the stand-in."""
    return shlex.join([sys.executable, str(STAND_IN), kind, "{port}", *words])


def runs(pid):
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[2] != "Z"
    except OSError:
        return False


def child(process):
    """What the server itself has started."""
    with urllib.request.urlopen(f"{process.root}/child", timeout=DEADLINE) as answer:
        return json.load(answer)["pid"]


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("", "is needed, such as vllm serve"),
        ("vllm serve m", r"has no \{port\}"),
        ("vllm 'serve --port {port}", "close its quotes"),
    ],
)
def test_a_command_that_starts_no_server_is_told_before_a_run(tmp_path, command, fault):
    from plugrl.core.experiment import prepare
    from plugrl.testing import tiny

    tree = tiny.config("self_hosted_grpo", tmp_path)
    tree["models"]["policy"]["inference"] = {"type": "server", "command": command}
    with pytest.raises(ConfigError, match=rf"inference\.command .*{fault}"):
        prepare(tree)
    tree["models"]["policy"]["inference"] = {
        "type": "ray",
        "engine": {"type": "server", "command": command},
    }
    with pytest.raises(ConfigError, match=rf"inference\.engine\.command .*{fault}"):
        prepare(tree)


def test_a_command_has_a_place_for_its_port():
    assert not command_fault("vllm serve m --config '{\"a\": 1}' --port {port}")


def test_a_lost_engine_says_how_wherever_it_is_raised():
    error = unpack_error(pack_error(EngineLost("the server ended", "lost its server")))
    assert (type(error), str(error), error.how) == (
        EngineLost, "the server ended", "lost its server",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sh", "-c", "echo loading; echo no memory >&2; exit 3 # {port}"],
         r"S ended with exit code 3 when it was started \(no memory\); see "),
        (["sh", "-c", "kill -9 $$ # {port}"], "S was ended by SIGKILL when it was started; see"),
        (["sleep", "600", "#{port}"], None),
    ],
)  # fmt: skip
def test_a_server_that_does_not_start_is_told_with_its_last_words(words, said):
    process = ServerProcess(shlex.join(words), "S")
    if said is None:
        said = r"S (ended with exit code 1|did not answer at http://127.0.0.1:\d+/health within)"
    with pytest.raises(RunError, match=said):
        process.start(0.1 if words[0] == "sleep" else DEADLINE)
    assert process.ended()
    os.unlink(process.log)


def test_a_program_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match=r"S cannot be started: 'no-such-server' No such file"):
        ServerProcess("no-such-server {port}", "S").start(1.0)


@pytest.fixture
def started():
    made = []

    def start(kind="vllm", *words, **options):
        service = ServerInferenceService({"command": command(kind, *words), **options})
        made.append(service)
        service.load(ModelSpec("policy", VIEW, 0, "cpu", trained=True))
        return service

    yield start
    for each in made:
        each.close()


def model(seed):
    engine = TransformersInferenceService({})
    engine.load(ModelSpec("policy", VIEW, seed, "cpu"))
    return engine


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("vllm", marks=pytest.mark.integration),
        pytest.param("sglang", marks=pytest.mark.slow),
    ],
)
def test_a_server_is_started_takes_weights_and_ends_with_what_it_started(started, kind):
    service = started(kind)
    trained = model(3)
    service.update_weights(trained._model.state_dict(), 4)
    probe = [[2, 3, 4, 5, 6]]
    assert service.score(probe)[0] == pytest.approx(trained.score(probe)[0], abs=1e-5)
    assert service.generate([request()])[0].version == 4
    process, below = service.process, child(service.process)
    assert runs(process.pid)
    service.close()
    assert not runs(process.pid)
    assert wait_until(lambda: not runs(below))
    assert not os.path.exists(process.log)
    if kind == "vllm":
        # Asked again, it is another process with the weights of before.
        assert service.score(probe)[0] == pytest.approx(trained.score(probe)[0], abs=1e-5)
        assert service.generate([request()])[0].version == 4


@pytest.mark.integration
def test_a_server_that_dies_or_is_silent_is_lost(started):
    service = started(patience=1.0)
    os.kill(service.process.pid, signal.SIGSTOP)
    with pytest.raises(EngineLost, match=r"model 'policy' gave no sign of life; see /\S+, then "):
        service.generate([request()])
    os.kill(service.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, service.process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(EngineLost, match="model 'policy' was ended by SIGKILL; see") as raised:
        service.generate([request()])
    assert raised.value.how.startswith("lost its server, which was ended by SIGKILL (see /")
    with pytest.raises(EngineLost, match="SIGKILL"):
        service.update_weights(model(3)._model.state_dict(), 1)


OWNER = """
import sys, time
from plugrl.plugins.openai.server_process import ServerProcess
process = ServerProcess(sys.argv[1], "S")
process.start(100)
print(process.pid, flush=True)
time.sleep(600)
"""
LISTENER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        data = b'{"pid": %d}' % child.pid
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.mark.integration
def test_nothing_is_left_when_the_owner_is_killed():
    listen = shlex.join([sys.executable, "-c", LISTENER, "{port}"])
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, listen], stdout=subprocess.PIPE, text=True
    ) as owner:
        server = int(owner.stdout.readline())
        mine = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/environ")
            if _session(path) and _session(path) == _session(Path(f"/proc/{server}/environ"))
        ]
        assert server in mine
        assert len(mine) == 2
        owner.kill()
    assert wait_until(lambda: not any(map(runs, mine)))


def _session(path):
    try:
        words = path.read_bytes().split(b"\0")
    except OSError:
        return None
    return next((word for word in words if word.startswith(b"PLUGRL_SESSION=")), None)
