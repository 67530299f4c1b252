"""The recipe ``code_validation`` against a server that follows the documents of OpenAI's API."""

import json
import re
from pathlib import Path

import pytest
import yaml
from jobs_server import JobsServer

from plugrl.core.experiment import prepare, start

#: Programs run in processes of their own, twice for each claim.
pytestmark = pytest.mark.integration
PROBLEMS = Path(__file__).parents[1] / "scenarios" / "apps" / "problems.jsonl"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    made = JobsServer()
    yield made
    made.close()


def words(server, folder):
    services = [
        f"models.{model}.{service}.{value}"
        for model in ("prover", "verifier")
        for service, value in (
            ("inference", f"base_url={server.base_url}"),
            ("inference", "model=base"),
            ("inference", "patience=5.0"),
            ("fine_tune", "poll_interval=0.01"),
        )
    ]
    return [
        *services,
        f"scenario.data_files=[{PROBLEMS}]",
        "scenario.validation=2",
        "data.batch_size=24",
        "text_rl.num_iterations=1",
        "text_rl.transcript_format=yaml",
        f"settings.runs_folder={folder}",
        "settings.progress=none",
    ]


def test_programs_are_talked_about_and_who_spoke_learns(server, tmp_path):
    server.otherwise = "`print(a)` prints the first one. Decision: accept"
    run = start(prepare("code_validation", words(server, tmp_path)))
    assert run.status["state"] == "done"
    # What is accepted is right in half of the cases.
    assert run.last_metrics["test/accuracy"] == 0.5
    assert run.last_metrics["test/undecided"] == 0.0
    # Nobody asked the prover anything.
    assert run.last_metrics["fine_tuned/prover"] == 0.0
    assert run.last_metrics["fine_tuned/verifier"] == 1.0
    assert [job["suffix"] for job in server.jobs.values()] == ["verifier"]
    # The service tries the server with messages of its own first.
    chats = [chat["messages"] for chat in server.chats if len(chat["messages"]) > 1]
    assert all([m["role"] for m in chat] == ["system", "user"] for chat in chats)
    assert "question prover, who read" in chats[0][0]["content"]
    asked = {chat[1]["content"] for chat in chats}
    assert len(asked) >= 4
    assert all(re.search(r"```python\n.*\n```", text, re.DOTALL) for text in asked)
    (file,) = (run.folder / "rollouts").glob("iteration-0001.yaml")
    episodes = yaml.safe_load(file.read_text("utf-8"))
    assert {each["label"] for each in episodes} == {"accept", "reject"}
    assert {each["verdict"] for each in episodes} == {"accept"}
    right = [each for each in episodes if each["label"] == "accept"]
    assert all(each["rewards"]["verifier"] == 1.0 for each in right)


def test_provers_are_told_which_verdict_pays_them(server, tmp_path):
    server.otherwise = "Why? I cannot tell."
    changes = ["data.batch_size=4", "rollout_worker.max_retries=0", "text_rl.test_scheme=none"]
    run = start(prepare("code_validation", [*words(server, tmp_path), *changes]))
    # An episode without a decision is a wrong one; nobody earned enough to be learned from.
    assert run.last_metrics["rollout/undecided"] == 1.0
    assert run.last_metrics["rollout/accuracy"] == 0.0
    assert not server.jobs
    told = {
        json.dumps(chat["messages"][0])
        for chat in server.chats
        if "expert in Python" in chat["messages"][0]["content"]
    }
    assert any("convince the verifier that the program is right" in text for text in told)
    assert any("convince the verifier that the program has a bug" in text for text in told)
    last = [chat["messages"] for chat in server.chats if "Decide now." in json.dumps(chat)]
    assert last
    assert all("Why? I cannot tell." in json.dumps(chat) for chat in last)


def test_a_budget_ends_the_run_cleanly(server, tmp_path):
    server.otherwise = "Decision: reject"
    run = start(prepare("code_validation", [*words(server, tmp_path), "text_rl.max_cost=0.0003"]))
    assert run.status["state"] == "done"
    assert not server.jobs
