"""Agent frameworks from PyPI train a model: each makes the attempts of one step.

The weights are random, so that an answer of a form shows that the form is enforced.
"""

import os
import sys
from pathlib import Path

import pytest
from installed_frameworks import installed

sys.path.insert(0, str(Path(__file__).parent))
from framework_runs import assert_trained, train_step

OPENAI = "json_schema json_object required named options responses responses_call"
MODES = {
    "pydantic_ai": "chat_tool chat_native chat_prompted responses_tool responses_native",
    "langchain": "function_calling json_schema json_mode",
    "openai_agents": "responses_output responses_tools chat_output chat_tools",
    "smolagents": "tools code json",
}


@pytest.mark.integration
def test_the_client_of_openai(tmp_path):
    line = train_step(tmp_path, ["with_openai.py", *OPENAI.split()])
    assert_trained(line)
    assert line["rollout/turns"] == len(OPENAI.split())
    assert line["rollout/unenforced"] == 0.0


@pytest.mark.integration
def test_the_trainer_weighs_tokens_by_the_mass_that_their_form_allowed(tmp_path):
    algorithm = {"sampler_correction": {"level": "token"}}
    line = train_step(tmp_path, ["with_openai.py", "json_schema"], algorithm)
    assert_trained(line)
    # The sampler's distribution is that of the policy over fewer tokens: p / q is their mass in p.
    assert 0 < line["train/sampler_ratio"] <= line["train/sampler_ratio_max"] <= 1.0 + 1e-4
    assert line["train/clip_fraction"] == 0.0


@pytest.mark.server
@pytest.mark.parametrize("framework", MODES)
def test_a_framework(tmp_path, monkeypatch, framework):
    # Before the environment of the tests, which has another version of some of it.
    monkeypatch.setenv("PYTHONPATH", str(installed()))
    line = train_step(tmp_path, [f"with_{framework}.py", *MODES[framework].split()])
    assert_trained(line)
    assert line["rollout/turns"] >= len(MODES[framework].split())


@pytest.mark.server
def test_verifiers(tmp_path, monkeypatch):
    folder = installed("verifiers")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    line = train_step(tmp_path, ["with_verifiers.py"])
    assert_trained(line)
    assert line["rollout/turns"] == 1.0
