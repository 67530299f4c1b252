"""Models that score texts: loaded from folders, batched by length, on a device of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import first_line
from plugrl.core.text.batch import pad_rows
from plugrl.plugins.transformers.loading import without_bars

Precision = Literal["auto", "float32", "bfloat16", "float16"]
#: Positions of these begin behind the padding token's number.
_SHIFTED = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "longformer")


def folder_of(path: str) -> Path:
    """The folder that a setting names."""
    return Path(os.path.expanduser(path))


def folder_fault(path: str, endings: str | tuple[str, ...], what: str) -> str:
    """What is wrong with a model folder, by its header; empty: nothing.

    Args:
        path: of the folder.
        endings: of the names of architectures that will do.
        what: how messages call such a model.
    """
    from transformers import AutoConfig

    folder = folder_of(path)
    if not folder.is_dir():
        return "there is no such folder; models are never downloaded"
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        return f"no usable model folder: {first_line(error)}"
    architectures = getattr(config, "architectures", None) or []
    if not any(name.endswith(endings) for name in architectures):
        return f"no {what} ({', '.join(architectures) or 'no architecture named'})"
    return ""


def load_model_and_tokenizer(
    auto: Any, path: str, device: str, dtype: Precision = "float32"
) -> tuple[Any, Any]:
    """A model of the class ``auto`` and its tokenizer.

    Raises:
        ConfigError: the folder cannot be used, lacks weights, or the device is not there.
    """
    from transformers import AutoTokenizer

    folder = folder_of(path)
    precision = "auto" if dtype == "auto" else getattr(torch, dtype)
    try:
        with without_bars():
            model, info = auto.from_pretrained(
                folder, local_files_only=True, output_loading_info=True, dtype=precision
            )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise ConfigError(f"model folder {path}: {first_line(error)}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise ConfigError(f"model folder {path}: it holds no weights {missing[0]}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return model.to(device).eval(), tokenizer
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device} cannot be used: {first_line(error)}") from error


def context_of(model: Any, tokenizer: Any) -> int:
    """How many tokens a model reads at most."""
    config = model.config.get_text_config()
    positions = int(getattr(config, "max_position_embeddings", None) or 2**31)
    if config.model_type in _SHIFTED:
        positions -= int(config.pad_token_id or 0) + 1
    return min(positions, int(tokenizer.model_max_length))


def in_batches(rows: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """The places of ``rows`` in batches of like lengths: padding costs as much as tokens."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def pad_with_mask(
    rows: Sequence[Sequence[int]], fill: int, device: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask of rows that are padded on the right, [B, T] each."""
    ids = pad_rows(rows, np.int64, fill)
    mask = pad_rows([[1] * len(row) for row in rows], np.int64, 0)
    return ids.to(device), mask.to(device)


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Whether ``function`` has a parameter of that name."""
    import inspect

    return name in inspect.signature(function).parameters
