"""A task and a model that are so small that training steps take milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugrl.core.experiment import TrainedRun, prepare, start

#: Prompts of two letters; the answer is the first one, and the label says whether it is an a.
PROBLEMS = [{"prompt": a + b, "answer": a, "label": int(a == "a")} for a in "ab" for b in "ab"]


def write_problems(folder: Path) -> Path:
    """Write the problems as JSONL and return the path."""
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS), encoding="utf-8")
    return path


def config(trainer: str, folder: Path, sections: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A complete configuration that trains ``trainer`` for two steps in ``folder``.

    Args:
        trainer: the value of ``trainer.type``.
        folder: the folder for data and runs.
        sections: sections that the trainer needs, merged over those below.
    """
    data = str(write_problems(folder))
    tree: dict[str, Any] = {
        "experiment_name": "conformance",
        "models": {
            "policy": {
                "source": {
                    "config": {
                        "model_type": "qwen3",
                        "hidden_size": 16,
                        "intermediate_size": 32,
                        "num_hidden_layers": 1,
                        "num_attention_heads": 2,
                        "num_key_value_heads": 1,
                        "head_dim": 8,
                        "max_position_embeddings": 16,
                    },
                    "tokenizer": {"characters": "ab"},
                },
                "train": {"type": "local", "learning_rate": 0.01},
            }
        },
        "data": {"data_files": [data], "batch_size": 2, "rollout_repeat_n": 4},
        "validate": {"data": {"data_files": [data]}, "every": 1},
        "rollout_worker": {"max_response_length": 3, "evaluator": "exact_match"},
        "trainer": {"type": trainer, "total_train_steps": 2},
        "settings": {
            "runs_folder": str(folder / "runs"),
            "checkpoint_every": 1,
            "keep_checkpoints": 10,
            "progress": "none",
        },
    }
    return merged(tree, sections or {})


def working_directory(tree: Mapping[str, Any]) -> Path:
    """An empty folder beside the runs of ``tree``, to train in."""
    folder = Path(tree["settings"]["runs_folder"]).parent / "cwd"
    folder.mkdir(exist_ok=True)
    return folder


def train(tree: Mapping[str, Any], plugin: object) -> TrainedRun:
    """Train the configuration ``tree`` with an additional hook plugin."""
    experiment = prepare(tree)
    experiment.plugins.manager.register(plugin)
    return start(experiment)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``over`` into a copy of ``base``; ``None`` removes a key.

    The result shares no list or mapping with either, so modifying it affects no other test.
    """
    out: dict[str, Any] = _own(base)
    for key, value in over.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = merged(out[key], value)
        else:
            out[key] = _own(value)
    return out


def _own(value: Any) -> Any:
    """A deep copy as plain dicts and lists, also of read-only mappings."""
    if isinstance(value, Mapping):
        return {key: _own(inner) for key, inner in value.items()}
    return [_own(inner) for inner in value] if isinstance(value, list) else value
