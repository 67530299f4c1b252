"""What is said where a model of text does not fit into memory: the settings to lower."""

from __future__ import annotations

from typing import Any

from plugrl.core.config.plan import MICRO_BATCH_ROWS


def loading_shortage(name: str, device: str, dtype: str) -> str:
    """Say that there is no memory for the weights of model ``name``, and what takes less."""
    smaller = f", or set models.{name}.source.dtype=bfloat16" if dtype == "float32" else ""
    return f"model {name!r} does not fit into the memory of {device}: take a smaller model{smaller}"


def sampling_shortage(name: str, device: str) -> str:
    """Say that memory ran out while model ``name`` was sampled from, and what takes less."""
    return (
        f"model {name!r} ran out of the memory of {device} while it was sampled from: lower "
        f"models.{name}.inference.max_batch_size, or rollout_worker.max_prompt_length, or "
        "rollout_worker.max_response_length"
    )


def training_shortage(name: str, device: str, train: Any, tokens: int | None = None) -> str:
    """Say that memory ran out while model ``name`` was trained, and what takes less.

    The arguments are those of :func:`training_remedies`.
    """
    remedies = [*training_remedies(name, train, tokens), "lower rollout_worker.max_response_length"]
    return (
        f"model {name!r} ran out of the memory of {device} while it was trained: "
        f"{', or '.join(remedies)}"
    )


def training_remedies(name: str, train: Any, tokens: int | None = None) -> list[str]:
    """Which settings of its train service make a training pass of model ``name`` smaller.

    Args:
        name: of the model.
        train: the section of the service; options that only some services have may be missing.
        tokens: of a pass, where the service has chosen them.
    """
    path, remedies = f"models.{name}.train", []
    size = "micro_batch_tokens" if train.get("micro_batch_tokens") else "micro_batch_size"
    value = train.get(size)
    if isinstance(value, int) and value > 1:
        remedies.append(f"lower {path}.{size}={value}")
    elif value is None and size in train:
        some = f"size below {MICRO_BATCH_ROWS}" if tokens is None else f"tokens below {tokens}"
        remedies.append(f"set {path}.micro_batch_{some}")
    if train.get("gradient_checkpointing") is False:
        remedies.append(f"set {path}.gradient_checkpointing=true")
    return remedies
