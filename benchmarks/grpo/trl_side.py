"""TRL's side of the benchmark; it runs in an environment of its own, without plugrl."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import task


def main() -> None:
    given = task.arguments()
    import torch

    torch.set_num_threads(given.threads)
    from datasets import Dataset
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        LogitsProcessor,
        LogitsProcessorList,
        TrainerCallback,
    )
    from trl import GRPOConfig, GRPOTrainer

    rows = given.prompts * given.samples
    on_device = given.device == "cuda"
    micro = given.micro or rows
    adapter = None
    if given.lora:
        from peft import LoraConfig

        adapter = LoraConfig(
            r=given.lora, lora_alpha=given.lora, target_modules="all-linear", task_type="CAUSAL_LM"
        )
    config = GRPOConfig(
        output_dir=str(given.folder / "trl"),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=rows // micro,
        num_generations=given.samples,
        max_completion_length=given.tokens,
        max_steps=given.warm_up + given.steps,
        learning_rate=task.LEARNING_RATE,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        weight_decay=0.0,
        max_grad_norm=1.0,
        temperature=1.0,
        beta=0.0,
        loss_type="dapo",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        bf16=on_device,
        use_cpu=not on_device,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        generation_kwargs={"min_new_tokens": given.tokens},
    )
    steps = task.Steps(given)

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            steps.end()

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [task.reward(text) for text in completions]

    class Ends(LogitsProcessor):
        """Ends each answer after as many tokens as were drawn for it."""

        def __init__(self, rows: int) -> None:
            self._lengths = torch.tensor([next(lengths) for _ in range(rows)], device=given.device)
            self._prompt: int | None = None

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            if self._prompt is None:
                self._prompt = input_ids.shape[1]
            last = self._lengths == input_ids.shape[1] - self._prompt + 1
            scores[last] = -torch.inf
            scores[last, model.config.eos_token_id] = 0
            return scores

    folder = given.folder / "model"
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16 if on_device else torch.float32
    )
    if given.shortest < given.tokens:
        lengths, generate = task.lengths(given), model.generate

        def generate_drawn(*args: Any, **options: Any) -> Any:
            ends = LogitsProcessorList([Ends(rows)])
            return generate(*args, logits_processor=ends, **options)

        model.generate = generate_drawn
    lines = (given.folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        peft_config=adapter,
        callbacks=[Clock()],
    )
    trainer.train()
    logged = [line for line in trainer.state.log_history if "loss" in line]
    steps.report([line["completions/mean_length"] for line in logged])


if __name__ == "__main__":
    main()
