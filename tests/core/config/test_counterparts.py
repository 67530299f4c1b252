"""Keys that people bring from other trainers: each means something here, or says what to write."""

# ruff: noqa: E501
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from plugrl.core.config.counterparts import OF_ANY_LOSS, REMEDIES
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.setup_script import exported

SECTIONS = """\
project_name: "Mine"
experiment_name: "mine-v1"
environment:
  setup_script: task.env.sh
data:
  type: "torch"
  data_files: [train.jsonl]
  shuffle: true
  seed: 42
  max_prompt_length: ${rollout_worker.max_prompt_length}
scenario: null
models:
  policy: {source: {config: {model_type: qwen3}, tokenizer: {characters: "01+="}}}
rollout_worker:
  type: "nexau"
  evaluator_module_path: "judge.py:Judge"
  max_prompt_length: 16
  max_response_length: 4
trajectory_pool:
  type: "default"
  batch_size: 32
  group_size: 4
  key_list: ["query"]
  check_batch_ready_function: "batch_size"
algorithm:
  type: "grpo"
  use_kl_in_reward: false
trainer:
  type: "self_hosted_grpo"
  total_train_steps: 10
  save_freq: 5
weight:
  type: "default"
  sync_mode: "sync"
  staleness_threshold: 2
validate:
  validate_before_train: true
  data:
    type: "torch"
    data_files: [test.jsonl]
    shuffle: false
  eval:
    type: "default"
    compute_interval: 500
service:
  train_service:
    backend: "nextrainer"
logger:
  backend: "tensorboard"
"""
JUDGE = """
from plugrl import EvaluationRunResult, Evaluator

class Judge(Evaluator):
    def evaluate(self, data, evaluation_target):
        return EvaluationRunResult(reward=1.0)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "task.env.sh").write_text("MINE='a b'\n")
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    (tmp_path / "a.yaml").write_text(SECTIONS)
    return tmp_path


def lines(*words: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        prepare("a.yaml", words)
    return list(caught.value.faults)


def test_a_configuration_in_the_spelling_of_the_guides(folder):
    tree = prepare("a.yaml").validated.tree
    assert tree["data"]["type"] == "files"
    assert tree["trajectory_pool"] == {
        "type": "default",
        "batch_size": 32,
        "group_size": 4,
        "key_list": ["query"],
        "check_batch_ready_function": "batch_size",
        "drop_equal_groups": False,
        "max_idle_batches": 20,
    }
    assert tree["rollout_worker"]["type"] == "agent"
    assert tree["rollout_worker"]["max_prompt_length"] == 16
    assert tree["trainer"]["algorithm"]["advantage"] == {"type": "grpo"} | {
        key: value
        for key, value in tree["trainer"]["algorithm"]["advantage"].items()
        if key != "type"
    }
    assert tree["settings"]["checkpoint_every"] == 5
    assert tree["validate"]["every"] == 500
    assert tree["validate"]["data"]["data_files"] == [str(folder / "test.jsonl")]
    assert tree["models"]["policy"]["train"]["type"] == "local"
    assert tree["trackers"][0]["type"] == "tensorboard"
    assert tree["environment"]["setup_script"] == str(folder / "task.env.sh")
    (folder / "again.yaml").write_text(yaml.safe_dump(tree))
    assert prepare("again.yaml").validated.tree == tree


def test_references_to_second_spellings(folder):
    tree = prepare(
        "a.yaml",
        [
            "runtime_monitor.max_skipped_steps=${trajectory_pool.batch_size}",
            "settings.keep_checkpoints=${trainer.save_freq}",
            "validate.data.limit=${validate.eval.compute_interval}",
        ],
    ).validated.tree
    assert tree["runtime_monitor"]["max_skipped_steps"] == 32
    assert tree["settings"]["keep_checkpoints"] == 5
    assert tree["validate"]["data"]["limit"] == 500


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (
            "algorithm.use_kl_in_reward=true",
            "algorithm.use_kl_in_reward (command line): unknown key: write algorithm.kl.reward with coefficient, kind, controller, target and horizon, and the reference as models.reference.source; leave it out for no penalty",
        ),
        (
            "validate.data.shuffle=true",
            "validate.data.shuffle (command line): unknown key: held-out problems keep their order; leave it out",
        ),
        (
            "weight.staleness_threshold=-1",
            "weight.staleness_threshold (command line): must not be negative",
        ),
        (
            "environment.setup_script=none.sh",
            "environment.setup_script (command line): no such file: none.sh",
        ),
    ],
)
def test_values_that_cannot_be_meant(folder, word, line):
    assert line in lines(word)


# Some keys are wrong only where a service takes its own losses by name.
OTHERS = {f"trainer.algorithm.{key}" for key in OF_ANY_LOSS}
KEYS = [key.replace("*", "policy") for key in REMEDIES if key not in OTHERS]


@pytest.mark.parametrize("key", KEYS)
def test_keys_without_a_counterpart_say_what_to_write(folder, key):
    # The configuration writes the train service in its second place.
    word = key.replace("models.policy.train.", "service.train_service.")
    (line,) = [line for line in lines(f"{word}=[1]") if line.startswith(f"{word} (command line)")]
    assert line.endswith(REMEDIES[key.replace("models.policy", "models.*")])


def test_a_component_that_has_such_a_key_keeps_it(folder):
    (folder / "worker.py").write_text(
        "from dataclasses import dataclass\n"
        "from plugrl.core.text.worker import RolloutWorkerConfig\n"
        "from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker\n"
        "@dataclass\nclass Options(RolloutWorkerConfig):\n    task_name: str = ''\n"
        "class Worker(SingleTurnRolloutWorker):\n    Config = Options\n"
    )
    words = [
        "rollout_worker.custom_rollout_worker_module_path=worker.py",
        "rollout_worker.custom_rollout_worker_class_name=Worker",
        "rollout_worker.task_name=mine",
    ]
    assert prepare("a.yaml", words).validated.tree["rollout_worker"]["task_name"] == "mine"


# The script of the environment.


def test_a_script_sets_variables(folder, monkeypatch, capfd):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("CHANGED", "1")
    script = folder / "b.sh"
    script.write_text(
        "echo hello\nPLAIN='a b'\nexport MANY='x\ny'\nCHANGED=2\nKEPT=1\nFROM=$KEPT$CHANGED\n"
    )
    assert exported(str(script)) == {
        "PLAIN": "a b",
        "MANY": "x\ny",
        "CHANGED": "2",
        "FROM": "12",
    }
    out, err = capfd.readouterr()
    assert (out, err) == ("", "hello\n")
    assert os.environ["CHANGED"] == "1"


@pytest.mark.parametrize("text", ["exit 3\n", "false\ntrue\n", "no_such_command_here\n"])
def test_a_script_that_fails(folder, text):
    (folder / "b.sh").write_text(text)
    with pytest.raises(ConfigError, match=r"setup_script b\.sh failed with exit code \d+; run it"):
        exported("b.sh")


def test_a_script_that_takes_too_long(folder, monkeypatch):
    monkeypatch.setattr("plugrl.core.setup_script.TIME_LIMIT", 0.2)
    (folder / "b.sh").write_text("sleep 5\n")
    with pytest.raises(ConfigError, match=r"b\.sh ran longer than 0\.2 seconds"):
        exported("b.sh")


def test_a_run_has_the_variables_of_its_script(tmp_path):
    (tmp_path / "b.sh").write_text("FIRST=script\nBOTH=script\n")
    (tmp_path / "seen.py").write_text(
        "import os\nfrom plugrl import Trainer\nclass Seen(Trainer):\n"
        "    sections = {}\n    def train(self):\n"
        "        print('SEEN', os.environ['FIRST'], os.environ['BOTH'])\n"
    )
    tree = {
        "environment": {"setup_script": "b.sh", "variables": {"BOTH": "variables"}},
        "trainer": {
            "custom_trainer_module_path": "seen.py",
            "custom_trainer_class_name": "Seen",
        },
    }
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(tree))
    words = [sys.executable, "-m", "plugrl", "train", "a.yaml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "SEEN script variables" in done.stdout
