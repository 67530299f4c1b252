"""The texts of ``plugrl new experiment``: a recipe, an evaluator and data."""

from __future__ import annotations

import json
import re
from string import Template

from plugrl.core.config.sources.lookup import recipes
from plugrl.core.errors import UsageError

RECIPE = """\
# $name: sums of two digits; no download, no GPU, a quarter of a minute on one CPU thread.
experiment_name: $name
seed: 0

# To begin with a model of the hub, write `source: {path: owner/name}` in place of config and
# tokenizer, and raise the lengths below.
models:
  policy:
    source:
      config:
        model_type: qwen3
        hidden_size: 32
        intermediate_size: 64
        num_hidden_layers: 1
        num_attention_heads: 2
        num_key_value_heads: 1
        head_dim: 16
        max_position_embeddings: 16
      tokenizer:
        characters: "0123456789+="
    train: {type: local, learning_rate: 0.003}

data:
  data_files: [train.jsonl]
  batch_size: 8
  rollout_repeat_n: 8

rollout_worker:
  type: single_turn
  max_response_length: 3
  evaluator_module_path: evaluator.py:evaluate

validate:
  every: 50
  data: {data_files: [held_out.jsonl]}

trainer:
  type: self_hosted_grpo
  total_train_steps: 300

settings: {checkpoint_every: 50}
"""

EVALUATOR = '''\
"""What an answer is worth."""

from plugrl import BaseEvaluationTarget, EvaluationRunResult


def evaluate(data: dict[str, str], target: BaseEvaluationTarget) -> EvaluationRunResult:
    """1 for the sum, and a little for each digit at its place and for the right length.

    Args:
        data: the problem, a line of the data.
        target: the answer; ``target.final_answer`` is its text.
    """
    truth, answer = data["answer"], target.final_answer
    right = sum(a == b for a, b in zip(truth, answer, strict=False)) / len(truth)
    length = float(len(truth) == len(answer))
    exact = float(truth == answer)
    reward = 0.6 * exact + 0.3 * right + 0.1 * length
    return EvaluationRunResult(reward=reward, ground_truth=truth, metrics={"exact": exact})
'''


def files(name: str) -> dict[str, str]:
    """The files of experiment ``name``, by relative path.

    Raises:
        UsageError: the name cannot be used, or a recipe of plugrl has it.
    """
    if not re.fullmatch(r"[a-z0-9]+([-_][a-z0-9]+)*", name):
        raise UsageError(
            f"{name!r} cannot name an experiment; use small letters, digits, dashes and "
            "underscores, such as sums"
        )
    if name in recipes():
        raise UsageError(f"{name!r} is a recipe of plugrl already; choose another name")
    problems = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in range(10)]
    held_out = problems[3::10]
    train = [problem for problem in problems if problem not in held_out]
    return {
        f"{name}.yaml": Template(RECIPE).substitute(name=name),
        "evaluator.py": EVALUATOR,
        "train.jsonl": _lines(train),
        "held_out.jsonl": _lines(held_out),
    }


def _lines(problems: list[dict[str, str]]) -> str:
    return "".join(json.dumps(problem) + "\n" for problem in problems)
