"""A staged training whose model is sampled and fine-tuned at a server of OpenAI's API."""

import json

import pytest
import text_agents
from jobs_server import JobsServer

import plugrl
from plugrl.core.errors import RunError
from plugrl.core.experiment import resume

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    made = JobsServer()
    made.otherwise = "y"
    yield made
    made.close()


@pytest.fixture
def tree(server, tmp_path):
    made = text_agents.config(
        "ei_pure_text",
        tmp_path,
        trainer={"reward_threshold": -1.0},
        rollout_worker={"protocol": "solo_verifier", "max_response_length": 8},
        text_rl={"num_iterations": 2, "test_scheme": "none"},
    )
    made["models"]["policy"] = {
        "source": {
            "tokenizer": {
                "characters": "yn0123456789+=<|im_start>_end\nuseraitlnm ",
                "chat_template": TEMPLATE,
            }
        },
        "inference": {
            "type": "openai", "base_url": server.base_url, "model": "base", "engine": "chat",
            "max_context": 400, "patience": 5.0,
        },
        "fine_tune": {"type": "openai", "poll_interval": 0.01, "min_examples": 4},
    }  # fmt: skip
    # Files of fewer than 10 examples are refused.
    (tmp_path / "claims.jsonl").write_text(
        "".join(json.dumps(claim) + "\n" for claim in text_agents.claims(10))
    )
    made["data"]["batch_size"] = 10
    return made


@pytest.mark.integration
def test_agents_learn_by_jobs_there(server, tree):
    run = plugrl.train(tree)
    assert run.last_metrics["fine_tuned/policy"] == 1.0
    first, second = server.jobs.values()
    assert (first["model"], second["model"]) == ("base", "base")
    assert {job["status"] for job in server.jobs.values()} == {"succeeded"}
    (_, content) = server.files[first["training_file"]]
    lines = [json.loads(line)["messages"] for line in content.decode().splitlines()]
    assert len(lines) == 10
    assert all(line[-1] == {"role": "assistant", "content": "y"} for line in lines)
    # The second iteration asks the model that the first one made.
    asked = {body["model"] for body in server.chats}
    assert first["fine_tuned_model"] in asked
    names = [job["metadata"]["plugrl_job"] for job in server.jobs.values()]
    assert names == [f"{run.folder.name}-iteration-{number}-policy" for number in (1, 2)]


@pytest.mark.integration
def test_a_failed_job_ends_the_run_and_a_resume_makes_it_again(server, tree, tmp_path):
    server.end = "failed"
    with pytest.raises(RunError, match=r"failed \(The job ran out of luck"):
        plugrl.train(tree)
    (folder,) = (tmp_path / "runs").glob("*/*")
    asked = len(server.chats)
    server.end = "succeeded"
    run = resume(folder)
    assert run.last_metrics["fine_tuned/policy"] == 1.0
    assert [job["status"] for job in server.jobs.values()] == ["failed", "succeeded", "succeeded"]
    again = list(server.jobs.values())[1]
    assert again["metadata"]["plugrl_job"] == f"{folder.name}-iteration-1-policy-r2"
    # 10 claims of the second iteration, and what is asked when a model is loaded.
    assert len(server.chats) - asked <= 11
