"""The map ``gsm8k``: word problems of the data set GSM8K, and of others in its form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: As the authors of Qwen2.5 ask their models for mathematics.
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
_MARK = "####"


def gsm8k(row: Mapping[str, Any]) -> dict[str, Any]:
    """The question with an instruction as chat message ``prompt``, and the number as ``answer``.

    A row has a ``question`` and an ``answer``, which is a solution that ends in ``####`` and the
    number (Cobbe et al. 2021, arXiv 2110.14168); it becomes the column ``solution``.

    Raises:
        ValueError: the answer holds no ``####``.
    """
    solution, mark, number = row["answer"].rpartition(_MARK)
    if not mark:
        raise ValueError(f"its answer holds no {_MARK}: {row['answer']!r:.60}")
    content = f"{row['question']}\n{INSTRUCTION}"
    return {
        **row,
        "prompt": [{"role": "user", "content": content}],
        "solution": solution.strip(),
        "answer": number.strip().replace(",", ""),
    }
