"""A task of seconds."""

MODEL = {
    "model_type": "qwen3", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "max_position_embeddings": 16,
}  # fmt: skip
CONFIG = {
    "project_name": "demo",
    "experiment_name": "tracked",
    "scenario": {
        "type": "arithmetic", "digits": 1, "validation": 4, "development": 4, "demonstrations": 4,
    },
    "models": {
        "policy": {
            "source": {"config": MODEL, "tokenizer": {"characters": "0123456789+="}},
            "train": "local",
        }
    },
    "data": {"batch_size": 2, "rollout_repeat_n": 2},
    "rollout_worker": {
        "max_prompt_length": 4, "max_response_length": 3, "evaluator": "exact_match",
    },
    "trainer": {"type": "self_hosted_grpo", "total_train_steps": 2},
    "settings": {"progress": "none", "device": "cpu"},
}  # fmt: skip
