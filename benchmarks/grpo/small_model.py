"""Writes what both sides of the benchmark read: a small random model and prompts.

The model has the shape of Qwen3, a tokenizer of bytes and 330,288 parameters; nothing is
downloaded, and the same versions write the same files.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

SHAPE = {
    "vocab_size": 264,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 256,
}


def write_model(folder: Path) -> int:
    """Write the model and its tokenizer; returns the number of parameters."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    vocabulary = {"<pad>": 0, "<eos>": 1, "<bos>": 2}
    for character in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[character] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    torch.manual_seed(0)
    config = Qwen3Config(
        **SHAPE, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=2
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
    ).save_pretrained(folder)
    return int(model.num_parameters())


def write_prompts(path: Path, count: int = 2000) -> None:
    """Write ``count`` short prompts as JSON lines."""
    draw = random.Random(0)
    lines = (
        json.dumps(
            {"prompt": f"{draw.randrange(10, 100)}+{draw.randrange(10, 100)}=", "answer": ""}
        )
        for _ in range(count)
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
