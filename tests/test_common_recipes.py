"""The parts that recipes build on, in configurations written as the guides for recipes do."""

from __future__ import annotations

import json
from pathlib import Path

import forking
import pytest

from plugrl.core.config.sources.lookup import COMMON
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import load_run, prepare
from plugrl.core.plugins.registry import default_registry

NAMES = sorted(path.stem for path in COMMON.glob("*.yaml"))
HOSTED = ["base_nexau", "self_hosted_common", "self_hosted_nexau_common"]
REMOTE = [f"{vendor}{kind}_common" for vendor in ("tinker", "weaver") for kind in ("", "_nexau")]

EVALUATOR = """
from plugrl import BaseEvaluationTarget, EvaluationRunResult, Evaluator

class MyEvaluator(Evaluator):
    def evaluate(self, data, evaluation_target):
        reward = 1.0 if evaluation_target.final_answer == data["answer"] else 0.0
        mine = float(data["task_name"] == "my_task")
        return EvaluationRunResult(reward=reward, metrics={"mine": mine})
"""
AGENT = """
type: agent
name: my_task_agent
max_context_tokens: 100000
system_prompt: "You are a helpful assistant..."
system_prompt_type: string
llm_config:
  temperature: 0.7
  max_tokens: 8192
  api_type: openai_chat_completion

tracers:
  - import: nexau.archs.tracer.adapters.in_memory:InMemoryTracer
"""
WORKER = """
rollout_worker:
  type: "nexau"
  nexau_agent_config_path: "recipe/my_task/agent_workspace/agent_config.yaml"
  evaluator_module_path: "recipe/my_task/agent_workspace/evaluator.py:MyEvaluator"
  task_name: "my_task"
"""
MINIMAL = f"""
defaults:
  - self_hosted_nexau_common
  - _self_

project_name: "MyTask"
experiment_name: "my-task-training"

data:
  data_files:
    - "train.jsonl"
{WORKER}"""
FULL = f"""
defaults:
  - self_hosted_nexau_common  # or tinker_nexau_common, weaver_nexau_common
  - _self_

project_name: "MyTask"
experiment_name: "my-task-v1"

environment:
  setup_script: "recipe/my_task/my_task.env.sh"

data:
  type: "torch"
  data_files:
    - "${{env.MY_TASK_DATA_PATH}}/train.jsonl"
  shuffle: true
  seed: 42
  max_prompt_length: ${{rollout_worker.max_prompt_length}}
{WORKER}  nexau_agent_workspace: "recipe/my_task/agent_workspace"
  max_prompt_length: 16384
  tokenizer: "model"

trainer:
  type: "self_hosted_grpo"  # or "remote_api_grpo" for Tinker/Weaver
  total_train_steps: 1000
  save_freq: 100

algorithm:
  type: "grpo"
  batch_size: ${{trajectory_pool.batch_size}}
  do_old_log_prob_compute: true
  use_kl_in_reward: false

validate:
  validate_before_train: true
  data:
    data_files:
      - "${{env.MY_TASK_DATA_PATH}}/test.jsonl"
"""
SETUP = """#!/bin/bash
# Set task-specific environment variables
export MY_TASK_DATA_PATH="$PWD/recipe/my_task"
"""
RESOURCE = """
resource:
  inference:
    served_model_name: "my-task-model"
"""


@pytest.fixture(autouse=True)
def task(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MY_TASK_DATA_PATH", raising=False)
    folder = tmp_path / "recipe" / "my_task"
    (folder / "agent_workspace").mkdir(parents=True)
    (folder / "agent_workspace" / "agent_config.yaml").write_text(AGENT)
    (folder / "agent_workspace" / "evaluator.py").write_text(EVALUATOR)
    (folder / "my_task.env.sh").write_text(SETUP)
    for name, count in (("train", 16), ("test", 2)):
        rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def plugrl(*words: str) -> str:
    done = forking.run(["-m", "plugrl", *words])
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_what_there_is():
    assert (
        sorted(["adder", "arithmetic_claims", "tinker_adder", "weak_spot", *HOSTED, *REMOTE])
        == NAMES
    )


@pytest.mark.parametrize("folder", ["", "common/"])
@pytest.mark.parametrize("name", HOSTED)
def test_they_are_found_with_and_without_their_folder(task, name, folder):
    words = ["data.data_files=[recipe/my_task/train.jsonl]", "rollout_worker.evaluator=exact_match"]
    Path("mine.yaml").write_text(f"defaults: [{folder}{name}, _self_]\n", encoding="utf-8")
    tree = prepare("mine.yaml", words).validated.tree
    assert tree["rollout_worker"]["type"] == ("single_turn" if name[-8:] == "d_common" else "agent")
    assert tree["models"]["policy"]["train"]["type"] == "local"
    assert tree["validate"]["enabled"] is False
    assert prepare(name, words).validated.tree == tree


@pytest.mark.parametrize("name", REMOTE)
def test_those_behind_an_api(task, name, monkeypatch):
    kind = name.partition("_")[0]
    if kind not in {record.name for record in default_registry().records("train_service")}:
        pytest.skip(f"there is no service {kind}")
    monkeypatch.setenv(f"{kind.upper()}_API_KEY", "tml-key")
    words = ["data.data_files=[recipe/my_task/train.jsonl]", "rollout_worker.evaluator=exact_match"]
    with pytest.raises(ConfigError, match=r"base_model .*: is still \?\?\?; write a value"):
        prepare(name, words)
    words += [
        f"service.{kind}_service.lora_rank=4",
        "service.train_service.base_model=Qwen/Qwen3-8B",
    ]
    words += ["rollout_worker.tokenizer=model", "service.train_service.base_url=http://localhost:1"]
    tree = prepare(name, words, preflight=False).validated.tree
    model = tree["models"]["policy"]
    assert tree["trainer"]["type"] == "remote_api_grpo"
    for key in ("train", "inference"):
        assert model[key]["type"] == kind
        assert model[key]["base_model"] == "Qwen/Qwen3-8B"
        assert model[key]["base_url"] == "http://localhost:1"
        assert model[key]["api_key"] == f"{kind.upper()}_API_KEY"
    assert (model["train"]["lora_rank"], model["source"]["path"]) == (4, "model")


def test_a_task_is_what_is_its_own(task):
    (task / "my_task.yaml").write_text(MINIMAL)
    tree = prepare("recipe/my_task/my_task.yaml").validated.tree
    assert tree["data"]["data_files"] == [str(task / "train.jsonl")]
    assert tree["rollout_worker"]["type"] == "agent"
    assert tree["rollout_worker"]["task_name"] == "my_task"
    assert tree["settings"]["checkpoint_every"] == 20


def test_a_whole_task(task):
    (task / "my_task.yaml").write_text(FULL)
    words = ["rollout_worker.tokenizer=null"]
    tree = prepare("recipe/my_task/my_task.yaml", words, setup=True).validated.tree
    assert tree["validate"]["enabled"] is True
    assert tree["validate"]["data"]["data_files"] == [str(task / "test.jsonl")]
    assert tree["trainer"]["algorithm"]["sampler_correction"]["level"] == "token"
    (task / "my_task.yaml").write_text(FULL + RESOURCE)
    tree = prepare("recipe/my_task/my_task.yaml", words, setup=True).validated.tree
    assert tree["resource"]["inference"]["served_model_name"] == "my-task-model"


def test_all_that_is_wrong_comes_in_one_report(task):
    """What schemas, files, the agent and its tools, and the model have to say, at once."""
    (task / "my_task.yaml").write_text(FULL)
    agent = task / "agent_workspace" / "agent_config.yaml"
    agent.write_text(AGENT + "tools:\n  - {name: add, binding: 'custom_tools:add'}\n")
    words = {
        "seed": "seed=x",
        "data.data_files[0]": "data.data_files=[none.parquet]",
        "validate.data.data_files[0]": "validate.data.data_files=[none.jsonl]",
        "resource.inference.gpu_count": "resource.inference.gpu_count=x",
        "rollout_worker.tokenizer": "trainer.total_train_steps=1",  # "model" is no folder
        "rollout_worker.agent_config": "trainer.total_train_steps=1",  # nor is there a tool
        "settings.device": "settings.device=tpu",
    }
    with pytest.raises(ConfigError) as caught:
        prepare("recipe/my_task/my_task.yaml", list(words.values()), setup=True)
    assert {line.partition(" (")[0] for line in caught.value.faults} == {
        name.replace("agent_config", "nexau_agent_config_path") for name in words
    }


def test_what_may_follow_from_a_known_fault_is_not_told(task):
    """A misspelt key is no missing one, and what a wrong value decides is not asked."""
    (task / "my_task.yaml").write_text(MINIMAL.replace("data_files", "data_fles"))
    with pytest.raises(ConfigError) as caught:
        prepare("recipe/my_task/my_task.yaml")
    assert len(caught.value.faults) == 1
    (task / "my_task.yaml").write_text(MINIMAL.replace("data:", "dta:"))
    with pytest.raises(ConfigError) as caught:
        prepare("recipe/my_task/my_task.yaml")
    assert len(caught.value.faults) == 1


def test_the_own_base_of_a_project_comes_before_ours(task):
    (task.parent / "common").mkdir()
    base = "rollout_worker: {max_prompt_length: 77}\ntrainer: {type: self_hosted_grpo}\n"
    (task.parent / "common" / "base_nexau.yaml").write_text(f"defaults: adder\n{base}")
    text = "defaults: [common/base_nexau, _self_]\nmodels: {policy: {train: local}}\n"
    (task / "my_task.yaml").write_text(text + "trainer: {total_train_steps: 1}\n")
    tree = prepare("recipe/my_task/my_task.yaml").validated.tree
    assert tree["rollout_worker"]["max_prompt_length"] == 77


@pytest.mark.integration
@pytest.mark.parametrize("name", HOSTED)
def test_two_steps_of_a_task(task, name):
    (task / "my_task.yaml").write_text(MINIMAL.replace("self_hosted_nexau_common", name))
    if name == "self_hosted_common":
        text = (task / "my_task.yaml").read_text()
        kept = [line for line in text.splitlines() if "nexau" not in line]
        (task / "my_task.yaml").write_text(
            "\n".join(kept).replace("defaults:\n", f"defaults:\n  - {name}\n")
        )
    plugrl("train", "recipe=my_task/my_task", "trainer.total_train_steps=2")
    (folder,) = Path("runs/my-task-training").iterdir()
    run = load_run(folder)
    assert run.status["state"] == "done"
    assert [line["step"] for line in run.metrics][-1] == 2
    assert run.last_metrics["rollout/mine"] == 1


@pytest.mark.integration
def test_two_steps_of_a_whole_task_with_a_model_of_its_own(task):
    plugrl("train", "sft", "trainer.total_train_steps=1", "validate.enabled=false")
    plugrl("export", "latest", "model")
    (task / "my_task.yaml").write_text(
        FULL.replace("16384", "6").replace('"model"', f'"{Path.cwd()}/model"')
    )
    (task / "agent_workspace" / "agent_config.yaml").write_text("type: agent\nname: mine\n")
    words = ["trainer.total_train_steps=2", "rollout_worker.max_response_length=4"]
    plugrl("train", "recipe=my_task/my_task", *words)
    (folder,) = Path("runs/my-task-v1").iterdir()
    run = load_run(folder)
    assert run.config.models.policy.source.path == str(Path("model").absolute())
    assert "train/sampler_ratio" in run.last_metrics
    assert any(key.startswith("validation/") for line in run.metrics for key in line)
