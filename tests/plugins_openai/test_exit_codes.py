"""How commands end when the server of a model fails: exit code, message and what to do."""

import os
import re
import signal
import subprocess
import time

import forking
import pytest
import yaml
from documented_server import DOWN
from waiting import DEADLINE

from plugrl.testing import tiny

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture
def train(tmp_path, server):
    """Begin `plugrl train` against a server, which may be made to fail before."""

    def make(prepare=lambda there: None, **options):
        tree = tiny.config("self_hosted_grpo", tmp_path)
        source = {"path": None, "dtype": "float32", **tree["models"]["policy"]["source"]}
        there = server("vllm", source, **options)
        asked = {"type": "openai", "base_url": there.base_url, "patience": 1.0, "api_key": "KEY"}
        tree["models"]["policy"]["inference"] = asked
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
        prepare(there)
        process = forking.Process(
            ["-m", "plugrl", "train", "run.yaml"],
            cwd=tmp_path,
            env=os.environ | {"KEY": "a-secret"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return there, process

    return make


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda there: there.stop(), DOWN),
        (lambda there: setattr(there, "key", "other"), r"refuses the key of KEY \(401\)"),
        (lambda there: setattr(there, "always", (500, "broken")), "answers 500: broken"),
        (lambda there: there.hidden.add("/collective_rpc"), "VLLM_SERVER_DEV_MODE=1"),
    ],
    ids=["down", "token", "errors", "no updates"],
)
def test_a_failing_server_ends_a_command_with_code_1_the_cause_and_the_way_on(train, fault, said):
    _, process = train(fault)
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1, output
    lines = output.strip().splitlines()
    about = [line for line in lines[-3:] if "http://127.0.0.1:" in line]
    assert any(re.search(said, line) for line in about), output
    assert lines[-1].startswith("plugrl resume ")
    assert "Traceback" not in output
    assert "a-secret" not in output


def test_ctrl_c_ends_a_command_that_waits_for_a_hanging_server(train):
    there, process = train()
    deadline = time.monotonic() + DEADLINE
    while not any(path == "/collective_rpc" for path, _ in there.calls):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    there.always = "hang"
    before = len(there.bodies)
    while len(there.bodies) == before:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    if process.poll() is None:
        # A second one ends it at once.
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, output
