"""Keys that people bring from other trainers: each means something here, or says what to write."""

# ruff: noqa: E501
from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from plugrl.core.config.aliases import KEYS, OF_ANY_LOSS
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare

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
            "weight.staleness_threshold (command line): must be at least 0, not -1",
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
# These mean something, except to code of one's own.
OTHERS |= {"rollout_worker.tokenizer", "trainer.algorithm.batch_size"}
# In the second place of a train service it means the machine of `plugrl launch`.
OTHERS |= {"trainer.train_service.world_size", "models.*.train.world_size"}
REMEDIES = {key.old: key.instead for key in KEYS if key.instead}
UNKNOWN = [key.replace("*", "policy") for key in REMEDIES if key not in OTHERS]


# Both of a pair have a counterpart, which is one list.
SECOND = [key for key in UNKNOWN if key.endswith(".beta2")]


@pytest.mark.parametrize("keys", [[k for k in UNKNOWN if k not in SECOND], SECOND], ids=len)
def test_keys_without_a_counterpart_say_what_to_write(folder, keys):
    # The configuration writes the train service in its second place.
    words = {key: key.replace("models.policy.train.", "service.train_service.") for key in keys}
    told = lines(*(f"{word}=[1]" for word in words.values()))
    for key, word in words.items():
        (line,) = [line for line in told if line.startswith(f"{word} (command line)")]
        assert line.endswith(REMEDIES[key.replace("models.policy", "models.*")])


def test_a_number_of_devices_is_that_of_the_machine_to_launch_on(folder):
    said = "write resource.training.gpu_count, for plugrl launch"
    key = "models.policy.train.world_size"
    assert any(line.startswith(key) and line.endswith(said) for line in lines(f"{key}=2"))
    tree = prepare("a.yaml", ["service.train_service.world_size=2"]).validated.tree
    assert tree["resource"]["training"]["gpu_count"] == 2


def test_a_component_that_has_such_a_key_keeps_it(folder):
    (folder / "worker.py").write_text(
        "from dataclasses import dataclass\n"
        "from plugrl.core.text.rollout.worker import RolloutWorkerConfig\n"
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


def test_a_component_from_a_file_that_lacks_such_a_key_is_as_ours(folder):
    worker = (
        "from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker\n"
        "class Worker(SingleTurnRolloutWorker): ...\n"
    )
    (folder / "worker.py").write_text(worker)
    words = [
        "rollout_worker.custom_rollout_worker_module_path=worker.py",
        "rollout_worker.custom_rollout_worker_class_name=Worker",
    ]
    words.append("rollout_worker.tokenizer=model")
    moved = prepare("a.yaml", words, preflight=False).validated.tree
    assert moved["models"]["policy"]["source"]["path"].endswith("model")
    options = (
        "from dataclasses import dataclass\n"
        "from plugrl.core.text.rollout.worker import RolloutWorkerConfig\n"
        "@dataclass\nclass Options(RolloutWorkerConfig):\n    tokenizer: str = ''\n"
    )
    (folder / "own.py").write_text(options + worker.replace("...", "Config = Options"))
    words[0] = words[0].replace("worker.py", "own.py")
    kept = prepare("a.yaml", words, preflight=False).validated.tree
    assert kept["rollout_worker"]["tokenizer"] == "model"


@pytest.mark.parametrize(
    ("config", "moves"), [("    Config = Options\n", True), ("    ...\n", False)]
)
def test_a_trainer_from_a_file_takes_the_batch_of_the_algorithm(folder, config, moves):
    (folder / "trainer.py").write_text(
        "from dataclasses import dataclass\n"
        "from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer\n"
        "@dataclass\nclass Options(SelfHostedGrpoTrainer.Config):\n    mine: int = 1\n"
        f"class Mine(SelfHostedGrpoTrainer):\n{config}"
    )
    words = [
        "trainer.custom_trainer_module_path=trainer.py",
        "trainer.custom_trainer_class_name=Mine",
    ]
    validated = prepare("a.yaml", [*words, "algorithm.batch_size=32"]).validated
    assert ("batch_size" in validated.tree["trainer"]["algorithm"]) != moves
    # Without a schema of its own a subclass may have any key below `algorithm`.
    assert validated.unchecked == ([] if moves else ["trainer.algorithm.batch_size"])


# Keys that say again what another one says.


def test_the_batch_of_the_algorithm_is_that_of_the_pool(folder):
    assert prepare("a.yaml", ["algorithm.batch_size=32"]).validated.tree["trainer"]
    assert lines("algorithm.batch_size=16") == [
        "algorithm.batch_size (command line): differs from trajectory_pool.batch_size, 32 "
        "(a.yaml:21); write it once, there"
    ]
    words = ["trajectory_pool={}", "algorithm.batch_size=8"]
    (folder / "b.yaml").write_text(
        SECTIONS.replace("  batch_size: 32\n", "").replace(
            '  check_batch_ready_function: "batch_size"\n', ""
        )
    )
    assert prepare("b.yaml", words).validated.tree["trajectory_pool"]["batch_size"] == 8


TOKENIZER = "rollout_worker.tokenizer"
INNER = "algorithm.inference_service"


def test_names_of_the_model_are_its_source(folder):
    for words in ([f"{TOKENIZER}=model"], [f"{INNER}.model=model", f"{INNER}.tokenizer=model"]):
        tree = prepare("a.yaml", words, preflight=False).validated.tree
        source = tree["models"]["policy"]["source"]
        assert (source["path"], source["config"]) == ("model", {})
    assert lines(f"{TOKENIZER}=one", f"{INNER}.model=two") == [
        f"{INNER}.model (command line): differs from models.policy.source.path, one (command "
        "line); write it once, there",
        f"{TOKENIZER} (command line): one: there is no such folder; a model of the hub is written owner/name",
    ]
    assert lines(f"{TOKENIZER}=3") == [f"{TOKENIZER} (command line): must be text, not 3"]
    line = lines(f"{TOKENIZER}=one", "models.judge.source.path=two")[0]
    assert line.startswith(f"{TOKENIZER} (command line): fits one model only (policy, judge)")


def test_a_service_in_both_places_is_one_where_layers_differ(folder):
    (folder / "base.yaml").write_text(
        "models: {policy: {train: {type: local, learning_rate: 0.5, micro_batch_size: 3}}}\n"
    )
    (folder / "b.yaml").write_text(f"defaults: [base, _self_]\n{SECTIONS}")
    words = ["service.train_service.micro_batch_size=4"]
    train = prepare("b.yaml", words).validated.tree["models"]["policy"]["train"]
    assert (train["type"], train["learning_rate"], train["micro_batch_size"]) == ("local", 0.5, 4)
    words += ["models.policy.train.micro_batch_size=5"]
    with pytest.raises(ConfigError) as caught:
        prepare("b.yaml", words)
    assert list(caught.value.faults) == [
        "service.train_service.micro_batch_size (command line): is the same as "
        "models.policy.train.micro_batch_size (command line); write it in one place only"
    ]


def test_of_a_key_of_a_service_in_two_places_the_later_layer_counts(folder):
    text = SECTIONS.replace("  train_service:\n", "  train_service:\n    learning_rate: 0.5\n")
    (folder / "a.yaml").write_text(text)
    validated = prepare("a.yaml", ["models.policy.train.learning_rate=0.25"]).validated
    train = validated.tree["models"]["policy"]["train"]
    assert (train["type"], train["learning_rate"]) == ("local", 0.25)
    # The value that does not count is no origin of the one that does.
    origin = validated.origins["models", "policy", "train", "learning_rate"]
    assert (str(origin), origin.key) == ("command line", None)


def test_two_numbers_of_an_optimizer_are_one_list(folder):
    numbers = [f"service.train_service.config.beta{n}={value}" for n, value in ((1, 0.8), (2, 0.7))]
    validated = prepare("a.yaml", numbers).validated
    train = validated.tree["models"]["policy"]["train"]
    assert train["betas"] == [0.8, 0.7]
    assert not {"beta1", "beta2"} & train.keys()
    keys = [validated.origins["models", "policy", "train", "betas", n].key for n in (0, 1)]
    assert keys == [word.partition("=")[0] for word in numbers]
    (line,) = lines(numbers[0])
    assert line.endswith("unknown key: write betas, a list of two numbers")
    assert len(lines(*numbers, "models.policy.train.betas=[0.9,0.99]")) == 2


def test_whether_the_trainer_computes_log_probabilities_of_its_own(folder):
    for written, level in (("true", "token"), ("false", "none")):
        tree = prepare("a.yaml", [f"algorithm.do_old_log_prob_compute={written}"]).validated.tree
        assert tree["trainer"]["algorithm"]["sampler_correction"]["level"] == level
    (line,) = lines("algorithm.do_old_log_prob_compute=3")
    assert line.endswith("must be true or false, not 3")
