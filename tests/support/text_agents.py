"""A tiny run of agents that talk, as a configuration."""

import json
from pathlib import Path

from plugrl.testing import tiny

#: Few, so that models with random weights decide now and then.
CHARACTERS = "yn012345+= <>ua"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% if m.role == 'assistant' %}"
    "{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
PROMPTS = {
    "prover.txt": "[first]\n{{ question }}\n",
    "verifier.txt": "[first]\n{{ question }}{% for each in heard %} {{ each.text }}{% endfor %}\n",
}


def claims(number=4):
    """Right and wrong sums, in turn."""
    return [
        {"prompt": f"{a}+1={a + 1 + a % 2}", "answer": "", "label": int(a % 2 == 0)}
        for a in range(number)
    ]


def config(trainer, folder: Path, /, **sections):
    """A configuration of two iterations over four claims, with what ``sections`` changes."""
    (folder / "prompts").mkdir(exist_ok=True)
    for name, text in PROMPTS.items():
        (folder / "prompts" / name).write_text(text)
    data = folder / "claims.jsonl"
    data.write_text("".join(json.dumps(claim) + "\n" for claim in claims()))
    base = {
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
                        "max_position_embeddings": 128,
                    },
                    "tokenizer": {"characters": CHARACTERS, "chat_template": TEMPLATE},
                },
                "fine_tune": {
                    "type": "local",
                    "epochs": 2,
                    "train": {"type": "local", "learning_rate": 0.01},
                },
            }
        },
        "data": {"data_files": [str(data)], "batch_size": 4},
        "validate": {"data": {"data_files": [str(data)]}},
        "rollout_worker": {
            "type": "protocol",
            "protocol": "adp",
            "prompts": str(folder / "prompts"),
            "max_response_length": 2,
            "decision_form": "{}",
            "accept_word": "y",
            "reject_word": "n",
            "max_retries": 0,
        },
        "trainer": {"type": trainer},
        "text_rl": {"num_iterations": 2, "test_scheme": "first_and_last"},
        "settings": {"runs_folder": str(folder / "runs"), "progress": "none"},
    }
    return tiny.merged(base, sections)
