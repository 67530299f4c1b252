"""Advantages of TRL's GRPO and RLOO trainers for given rewards, as JSON.

It runs where TRL is installed: ``python trl_advantages.py FOLDER < rewards.json``. The folder holds
the model ``policy``; the rewards are those of two prompts, four answers each. Trainers draw the
answers and compute advantages themselves.
"""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

folder = Path(sys.argv[1])
rewards = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(folder / "policy")
PROMPTS = ["ab", "cde"]


def given(prompts, completions, **kwargs):
    return rewards


def outcome(kind, config, **options):
    trainer = kind(
        model=AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32),
        reward_funcs=given,
        args=config(
            output_dir=str(folder / "out"),
            use_cpu=True,
            bf16=False,
            report_to="none",
            gradient_checkpointing=False,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=3,
            beta=0.0,
            **options,
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
        processing_class=tokenizer,
    )
    rows = [{"prompt": prompt} for prompt in PROMPTS for _ in range(4)]
    return trainer._generate_and_score_completions(rows)["advantages"].tolist()


found = {
    "grpo": outcome(GRPOTrainer, GRPOConfig, scale_rewards="group"),
    "dr_grpo": outcome(GRPOTrainer, GRPOConfig, scale_rewards="none"),
    "rloo": outcome(RLOOTrainer, RLOOConfig, normalize_advantages=False),
}
print(json.dumps(found))
