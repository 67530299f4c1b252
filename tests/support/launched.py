"""A project whose configuration names files of every sort that travels with a launched job."""

from __future__ import annotations

from pathlib import Path

EXPERIMENT = """\
defaults: [base, _self_]
experiment_name: mini
data: {data_files: ["data/*.jsonl"], batch_size: 2, rollout_repeat_n: 2}
validate: {enabled: false}
rollout_worker:
  max_response_length: 3
  evaluator:
    custom_evaluator_module_path: code/judge.py
    custom_evaluator_class_name: Judge
trainer: {type: self_hosted_grpo, total_train_steps: 8}
settings: {progress: none}
"""
BASE = """\
models:
  policy:
    source:
      config:
        {model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1,
         num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8, max_position_embeddings: 16}
      tokenizer: {characters: ab}
    train: {type: local, learning_rate: 0.01}
"""
#: Rewards the first letter; waits at every attempt while the file of HOLD is there.
JUDGE = """\
import os, time
from plugrl import EvaluationRunResult, Evaluator
from .grading import grade

class Judge(Evaluator):
    \"\"\"Rewards the right first letter.\"\"\"

    def evaluate(self, data, evaluation_target):
        if os.path.exists(os.environ.get("HOLD", "")):
            time.sleep(1)
        return EvaluationRunResult(reward=grade(evaluation_target.final_answer, data["answer"]))
"""
GRADING = "def grade(said, answer):\n    return float((said or '')[:1] == answer)\n"
PROBLEMS = '{"prompt": "ab", "answer": "a"}\n{"prompt": "ba", "answer": "b"}\n'
#: The files that travel, below the folder of the project.
FILES = ["base.yaml", "code/grading.py", "code/judge.py", "data/train.jsonl", "mini.yaml"]


def write_project(folder: Path) -> Path:
    """Write the project and return its configuration."""
    texts = {
        "mini.yaml": EXPERIMENT,
        "base.yaml": BASE,
        "code/judge.py": JUDGE,
        "code/grading.py": GRADING,
        "data/train.jsonl": PROBLEMS,
        # What nothing names.
        "notes.txt": "x",
        "code/.hidden.py": "x",
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "mini.yaml"
