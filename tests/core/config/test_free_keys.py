"""Free keys of trainers without a ``Config`` of their own, and the slips among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import plugrl
from plugrl.cli import main

TRAINER = """
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer

class Mine(SelfHostedGrpoTrainer):
    pass
"""

CONFIG = """\
experiment_name: free
scenario: {type: arithmetic, digits: 1, validation: 4, development: 4, demonstrations: 4}
models:
  policy:
    source:
      config: {model_type: qwen3, hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1,
        num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8, max_position_embeddings: 16}
      tokenizer: {characters: "0123456789+="}
    train: local
rollout_worker: {max_prompt_length: 4, max_response_length: 3, evaluator: exact_match}
data: {batch_size: 2, rollout_repeat_n: 2}
validate: {enabled: false}
settings: {torch_threads: 1, progress: none, device: cpu}
trainer:
  custom_trainer_module_path: mine.py
  custom_trainer_class_name: Mine
  total_train_steps: 1
  algorithm: {epoch: 2, gain: 3}
"""
EPOCH = "unchecked: trainer.algorithm.epoch (no schema describes it); did you mean epochs?"
GAIN = "unchecked: trainer.algorithm.gain (no schema describes it)"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("algorithm.epoch", "epochs"),
        ("algorithm.los", "loss"),
        ("algorithm.step", "trainer.steps"),
        ("algorithm.steps", "trainer.steps"),
        ("algorithm.hihg", "trainer.algorithm.loss.high"),
        ("algorithm.gain", None),
        ("algorithm.my_parameter", None),
    ],
)
def test_near_misses(files, check, key, meant):
    files(a=f"trainer: {{type: heir}}\n{key.partition('.')[0]}: {{{key.partition('.')[2]}: 1}}\n")
    validated = check("a.yaml")
    assert validated.unchecked == [f"trainer.{key}"]
    assert validated.meant == ({f"trainer.{key}": meant} if meant else {})


def test_near_misses_of_a_phase(files, check):
    phase = "{name: a, trainer: {type: heir, algorithm: {epoch: 2, stepps: 3}}}"
    files(a=f"trainer: {{type: phases, phases: [{phase}]}}\n")
    assert check("a.yaml").unchecked_lines == [
        "unchecked: trainer.phases[0].trainer.algorithm.epoch (no schema describes it);"
        " did you mean epochs?",
        "unchecked: trainer.phases[0].trainer.algorithm.stepps (no schema describes it);"
        " did you mean trainer.phases[0].trainer.steps?",
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TRAINER)
    (tmp_path / "a.yaml").write_text(CONFIG)
    return tmp_path


def plugrl_command(*words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code in (0, None)


def test_validate_lists_them(folder, capsys):
    plugrl_command("validate", "a.yaml")
    assert capsys.readouterr().out.splitlines()[:3] == ["ok", EPOCH, GAIN]
    plugrl_command("validate", "a.yaml", "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["unchecked"] == ["trainer.algorithm.epoch", "trainer.algorithm.gain"]
    assert report["did_you_mean"] == {"trainer.algorithm.epoch": "epochs"}


@pytest.mark.parametrize("words", [[], ["--seeds", "2"]])
def test_train_warns_once(folder, capsys, words):
    plugrl_command("train", "a.yaml", *words)
    lines = capsys.readouterr().err.splitlines()
    assert lines.count(f"warning: {EPOCH}") == lines.count(f"warning: {GAIN}") == 1
    assert lines.index(f"warning: {EPOCH}") < next(
        index for index, line in enumerate(lines) if "run folder" in line
    )


def test_train_from_python_warns_too(folder, caplog):
    plugrl.train("a.yaml")
    assert [r.getMessage() for r in caplog.records if "unchecked" in r.getMessage()] == [
        EPOCH,
        GAIN,
    ]
