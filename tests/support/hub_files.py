"""Small repositories in the shapes that the hub has: a model and a data set of word problems."""

from __future__ import annotations

import io
import json
import random
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

CARD = """---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: socratic/train-*
---
# Word problems
"""
#: As Qwen2.5's: a system message by default, and marks around each turn.
TEMPLATE = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def word_problems(number: int, seed: int) -> list[dict[str, str]]:
    """Rows as those of GSM8K: a question, and a solution that ends in #### and a number."""
    draw = random.Random(seed)
    rows = []
    for _ in range(number):
        a, b = draw.randint(1000, 4999), draw.randint(1, 9)
        question = f"Ann has {a} pens and finds {b}. How many pens has she?"
        rows.append(
            {"question": question, "answer": f"{a}+{b}=<<{a}+{b}={a + b}>>\n#### {a + b:,}"}
        )
    return rows


def data_set() -> dict[str, bytes]:
    """The files of a data set with two subsets."""
    return {
        "README.md": CARD.encode(),
        "main/train-00000-of-00001.parquet": parquet(word_problems(16, 0)),
        "main/test-00000-of-00001.parquet": parquet(word_problems(4, 1)),
        "socratic/train-00000-of-00001.parquet": parquet(word_problems(3, 2)),
    }


@cache
def _model() -> Mapping[str, bytes]:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {text: number for number, text in enumerate([*letters, *marks])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )  # fmt: skip
    wrapped.chat_template = TEMPLATE
    config = Qwen2Config(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
        tie_word_embeddings=True, eos_token_id=vocabulary["<|im_end|>"],
        pad_token_id=vocabulary["<|endoftext|>"], bos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(folder)
        wrapped.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def model(**config: Any) -> dict[str, bytes]:
    """The files of a tiny Qwen2 model with random weights and tokens of bytes.

    Args:
        config: changes of its ``config.json``.
    """
    files = dict(_model())
    held = json.loads(files["config.json"]) | config
    files["config.json"] = json.dumps(held).encode()
    return files
