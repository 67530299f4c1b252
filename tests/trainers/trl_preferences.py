"""Losses and gradient norms of TRL's preference trainers on one batch, as JSON.

It runs where TRL is installed: ``python trl_preferences.py FOLDER``. The folder holds the models
``policy``, ``reference`` and ``reward``, and the rows ``pairs``, ``margins`` and ``labels``.
"""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer

folder = Path(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(folder / "policy")
COMMON = {
    "output_dir": str(folder / "out"),
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "gradient_checkpointing": False,
    "per_device_train_batch_size": 64,
}


def causal(name):
    return AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)


def rows(name):
    return Dataset.from_list(json.loads((folder / f"{name}.json").read_text()))


def outcome(trainer):
    (batch,) = list(trainer.get_train_dataloader())
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1e9)
    return [float(loss), float(norm)]


def preference(kind, config, data, **options):
    trainer = kind(
        model=causal("policy"),
        ref_model=causal("reference"),
        args=config(**COMMON, **options),
        train_dataset=rows(data),
        processing_class=tokenizer,
    )
    return outcome(trainer)


def reward(data, **options):
    model = AutoModelForSequenceClassification.from_pretrained(
        folder / "reward", num_labels=1, dtype=torch.float32
    )
    trainer = RewardTrainer(
        model=model,
        args=RewardConfig(**COMMON, **options),
        train_dataset=rows(data),
        processing_class=tokenizer,
    )
    return outcome(trainer)


found = {
    "dpo": preference(DPOTrainer, DPOConfig, "pairs", loss_type="sigmoid", beta=0.3),
    "ipo": preference(DPOTrainer, DPOConfig, "pairs", loss_type="ipo", beta=0.3),
    "kto": preference(
        KTOTrainer,
        KTOConfig,
        "labels",
        beta=0.3,
        desirable_weight=1.5,
        undesirable_weight=0.7,
    ),
    "bradley_terry": reward("pairs", center_rewards_coefficient=0.1),
    "bradley_terry with margins": reward("margins"),
}
print(json.dumps(found))
