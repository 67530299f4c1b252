"""Writes what both sides of the benchmark read: a random model and prompts.

The model has the shape of Qwen3 and a tokenizer of bytes, and 330,288 parameters unless a larger
shape is asked for; nothing is downloaded, and the same versions write the same files.
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

_LARGE = {"vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128}
_LARGE |= {"max_position_embeddings": 40_960}
#: As Qwen3 has them.
LARGE = {
    "0.6B": {**_LARGE, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
             "num_attention_heads": 16},
    "1.7B": {**_LARGE, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
             "num_attention_heads": 16},
    "4B": {**_LARGE, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
           "num_attention_heads": 32},
}  # fmt: skip


def write_model(folder: Path, size: str | None = None, device: str = "cpu") -> int:
    """Write the model and its tokenizer; returns the number of parameters.

    Args:
        folder: gets them.
        size: one of ``LARGE``, in bfloat16; None: the small shape, in float32.
        device: where random weights are made.
    """
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
        **(LARGE[size] if size else SHAPE),
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
        dtype="bfloat16" if size else "float32",
    )
    with torch.device(device):
        model = Qwen3ForCausalLM(config).to(config.dtype)
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
