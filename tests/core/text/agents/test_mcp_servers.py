"""Tools of MCP servers, by command and by address."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from installed_frameworks import installed
from waiting import DEADLINE

from plugrl.core.errors import ConfigError
from plugrl.core.text.agents.agent_config import load_agent

HERE = Path(__file__).parent
SERVER = HERE / "letters_server.py"
EXPECTED = [
    "3",
    "4",
    "error: count was called wrongly: missing a required argument: 'text'",
    "error: fail failed: McpError: Error executing tool fail",
    "error: leave failed: MCPError: Connection closed",
    "2",
]


def write(folder, **section):
    path = folder / "agent_config.yaml"
    path.write_text(yaml.safe_dump({"mcp_servers": [section]}))
    return path


def environment(packages):
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(Path.cwd())])}


def asked(path, packages):
    """What the tools of a file give, in a process that has the kit."""
    command = [sys.executable, str(HERE / "ask_mcp_tools.py"), str(path)]
    return subprocess.run(
        command, env=environment(packages), capture_output=True, text=True, timeout=DEADLINE,
        check=False,
    )  # fmt: skip


@pytest.fixture
def without_kit(monkeypatch):
    from plugrl.core.text.agents import mcp_servers

    monkeypatch.setattr(mcp_servers.importlib.util, "find_spec", lambda name: None)


def test_the_extra_is_named_where_it_is_missing(tmp_path, without_kit):
    with pytest.raises(ConfigError, match=r"pip install \"plugrl\[mcp\]\""):
        load_agent(write(tmp_path, url="http://127.0.0.1:1/mcp"))


@pytest.mark.server
def test_tools_of_a_program(tmp_path):
    packages = installed()
    command = [sys.executable, str(SERVER)]
    done = asked(write(tmp_path, command=command, env={"PYTHONPATH": str(packages)}), packages)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [EXPECTED] * 2, done.stderr
    # What the server logs is no part of the output, and it has ended.
    assert done.stderr == ""


@pytest.mark.server
def test_tools_of_an_address(tmp_path):
    packages = installed()
    command = [sys.executable, str(SERVER), "streamable-http"]
    served = subprocess.Popen(command, env=environment(packages), stderr=subprocess.PIPE, text=True)
    try:
        words = (word for line in served.stderr for word in line.split())
        address = next(word for word in words if word.startswith("http://"))
        done = asked(write(tmp_path, url=f"{address}/mcp", tools=["count", "fail"]), packages)
    finally:
        served.kill()
        served.wait()
    first, _ = [json.loads(line) for line in done.stdout.splitlines()]
    assert first[:4] == EXPECTED[:4]
    assert first[4] == "error: there is no tool 'leave'; tools are: count, fail"


@pytest.mark.server
@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ({"command": [sys.executable, "-c", "raise SystemExit('no licence')"]}, "no licence"),
        ({"command": ["no-such-program"]}, "No such file or directory"),
        ({"url": "http://127.0.0.1:1/mcp"}, "cannot be asked for its tools"),
        ({"command": [sys.executable, str(SERVER)], "tools": ["cuont"]}, "has no tool 'cuont'"),
    ],
)
def test_a_server_that_cannot_be_asked_is_one_line(tmp_path, section, fault):
    packages = installed()
    done = asked(write(tmp_path, env={"PYTHONPATH": str(packages)}, **section), packages)
    assert done.returncode == 1
    assert fault in done.stderr
    assert "mcp_servers[0] (agent_config.yaml:" in done.stderr or "agent_config.yaml" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.server
def test_an_agent_with_a_tool_of_a_server_is_trained(tmp_path):
    packages = installed()
    command = [sys.executable, str(SERVER)]
    path = write(tmp_path, command=command, tools=["count"], env={"PYTHONPATH": str(packages)})
    (tmp_path / "words.jsonl").write_text(json.dumps({"prompt": "abc", "answer": "3"}))
    config = {
        "experiment_name": "counting",
        "models": {
            "policy": {
                "source": {
                    "config": {
                        "model_type": "qwen3",
                        "hidden_size": 32,
                        "intermediate_size": 64,
                        "num_hidden_layers": 1,
                        "num_attention_heads": 2,
                        "num_key_value_heads": 1,
                        "head_dim": 16,
                        "max_position_embeddings": 64,
                    },
                    "tokenizer": {"characters": "abc123[]"},
                },
                "train": {"type": "local"},
            }
        },
        "data": {"data_files": ["words.jsonl"], "batch_size": 1, "rollout_repeat_n": 64},
        "rollout_worker": {
            "type": "agent",
            "agent_config": str(path),
            "tool_parser": "brackets",
            "error_message": "c",
            "max_prompt_length": 16,
            "max_response_length": 40,
            "evaluator": "exact_match",
        },
        "validate": {"enabled": False},
        "trainer": {"type": "self_hosted_grpo", "total_train_steps": 1},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    words = [sys.executable, "-m", "plugrl", "train", "run.yaml"]
    env = environment(packages)
    done = subprocess.run(
        words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.rglob("metrics.jsonl")
    line = [json.loads(each) for each in file.read_text().splitlines()][-1]
    assert line["rollout/tool_calls"] > 0
    assert line["rollout/tool_errors"] == 0.0
    assert line["rollout/invalid"] == 0.0
