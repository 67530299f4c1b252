"""Sections with which the conformance kit trains trainers that need more than its task has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A model that has a service of named losses.
NAMED_LOSSES: Mapping[str, Any] = {"train": {"type": "in_process"}}
#: A frozen model with the kit's tokens and other weights than those of the policy.
FROZEN: Mapping[str, Any] = {
    "source": {
        "config": {
            "model_type": "llama",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": 16,
            "initializer_range": 0.5,
        },
        "tokenizer": {"characters": "ab"},
    }
}
#: Judged answers: the prompt itself is the worse one.
JUDGED: Mapping[str, Any] = {
    "data": {"rollout_repeat_n": 1},
    "rollout_worker": {
        "type": "preference",
        "evaluator": None,
        "chosen_key": "answer",
        "rejected_key": "prompt",
    },
}

_TALKER: Mapping[str, Any] = {
    "config": {"max_position_embeddings": 1024},
    "tokenizer": {
        "characters": "".join(map(chr, range(32, 127))) + "\n",
        "chat_template": (
            "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}"
            "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}a:{% endif %}"
        ),
    },
}
_TALK: Mapping[str, Any] = {"type": "protocol", "protocol": "adp", "evaluator": None}
#: Agents that talk about the kit's problems, and are trained as they talk.
TALKING_ON: Mapping[str, Any] = {
    "models": {"policy": {"source": _TALKER}},
    "rollout_worker": _TALK,
}
#: Agents that talk about the kit's problems, and are fine-tuned here.
TALKING: Mapping[str, Any] = {
    "models": {
        "policy": {
            "source": _TALKER,
            "train": None,
            "fine_tune": {"type": "local", "train": {"type": "local", "learning_rate": 0.01}},
        }
    },
    "validate": {"every": None},
    "rollout_worker": _TALK,
    "trainer": {"total_train_steps": None},
    "text_rl": {"num_iterations": 2, "test_scheme": "first_and_last"},
}

_LETTERS: Mapping[str, Any] = {"characters": "".join(map(chr, range(32, 127)))}
#: Red-teaming of a frozen model about harmless words, for trainers of rollout trees.
RED_TEAM: Mapping[str, Any] = {
    "models": {
        "policy": None,
        "tester": {
            "source": {
                "config": {**FROZEN["source"]["config"], "max_position_embeddings": 128},
                "tokenizer": _LETTERS,
            },
            "train": {"type": "local", "value_head": True},
        },
        "target": {
            "source": {
                "config": {**FROZEN["source"]["config"], "max_position_embeddings": 128},
                "tokenizer": _LETTERS,
            }
        },
    },
    "data": None,
    "rollout_worker": None,
    "validate": None,
    "scenario": {"type": "red_team", "categories": ["tree"]},
    "red_team": {
        "tester": {"max_new_tokens": 4},
        "target": {"max_new_tokens": 4},
        "tree_depth": 2,
        "eval_attempts": 1,
        "scorer": {"type": "regex", "patterns": ["[aeiou]"], "reads": "probe"},
    },
    "trainer": {
        "total_train_steps": None,
        "training_steps": 2,
        "num_episodes_per_experience": 2,
        "algorithm": "grpo",
    },
}
