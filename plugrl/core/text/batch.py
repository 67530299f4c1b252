"""``Batch``: trajectories as padded tensors, with per-sample facts beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from plugrl.core.text.trajectory import NOT_SAMPLED, Trajectory


class BatchMetadata(dict[str, Any]):
    """Metadata by name: one value for the batch, or a list or tensor with one value per row.

    Assigning ``"advantages"``, one per row or one per token, also sets ``values["advantages"]`` to
    them times the loss mask, unless a trainer has set that tensor itself. Advantages of any other
    shape are stored unchanged, and the trainer refuses them with its own message.

    Args:
        metadata: the initial entries.
        values: the tensors of the batch.
    """

    def __init__(self, metadata: Mapping[str, Any], values: dict[str, torch.Tensor]) -> None:
        super().__init__(metadata)
        self._values = values
        self._mirrored: torch.Tensor | None = None

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, self._share_advantages(value) if key == "advantages" else value)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def _share_advantages(self, written: Any) -> Any:
        mask = self._values.get("loss_mask")
        current = self._values.get("advantages")
        try:
            advantages = torch.as_tensor(written, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError):
            return written
        if mask is None or advantages.shape not in (mask.shape[:1], mask.shape):
            return written
        # A tensor that this class did not write is the trainer's own, and stays.
        if current is None or current is self._mirrored:
            each = advantages if advantages.dim() > 1 else advantages[:, None]
            self._mirrored = self._values["advantages"] = each * mask.to(torch.float32)
        return advantages


#: Per-token tensors of a batch made from trajectories, all [B, T]; ``old_log_probs`` and
#: ``token_rewards`` are there when the trajectories have them.
TOKEN_FIELDS = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "loss_mask",
    "old_log_probs",
    "versions",
    "token_rewards",
)


@dataclass
class Batch:
    """Rows of tokens for one training step.

    ``values`` holds tensors whose first dimension is the row; per-token ones are [B, T], right
    padded. ``metadata`` holds per-row facts: numbers as 1-D tensors of length B, anything else
    as lists, and a few scalars such as ``batch_size`` and ``temperature``. Advantages written to
    ``metadata`` are in ``values`` at once, times the loss mask.
    """

    values: dict[str, torch.Tensor]
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metadata = BatchMetadata(self.metadata, self.values)

    def __len__(self) -> int:
        if "batch_size" in self.metadata:
            return int(self.metadata["batch_size"])
        return len(next(iter(self.values.values()))) if self.values else 0

    def copy(self) -> Batch:
        """A copy whose tensors and lists can be changed without changing this one."""
        return Batch(
            {key: value.clone() for key, value in self.values.items()},
            {key: _copy_value(value) for key, value in self.metadata.items()},
        )

    def select(self, rows: Sequence[int] | torch.Tensor) -> Batch:
        """The given rows, in the given order, as a new batch."""
        index = torch.as_tensor(rows, dtype=torch.long)
        size = len(self)
        picked = index.tolist()
        metadata = {
            key: _select(value, index, picked) if _per_row(value, size) else value
            for key, value in self.metadata.items()
        }
        metadata["batch_size"] = len(picked)
        return Batch({key: value[index] for key, value in self.values.items()}, metadata)

    def reorder(self, permutation: Sequence[int] | torch.Tensor) -> Batch:
        """All rows in another order.

        Raises:
            ValueError: ``permutation`` is no permutation of the rows.
        """
        order = [int(i) for i in permutation]
        if sorted(order) != list(range(len(self))):
            raise ValueError(f"reorder needs a permutation of {len(self)} rows")
        return self.select(order)

    def to_dict(self) -> dict[str, Any]:
        """Values and metadata in one mapping; metadata wins a clash."""
        return {**self.values, **self.metadata}

    @classmethod
    def from_trajectories(
        cls,
        trajectories: Sequence[Trajectory],
        *,
        pad_token_id: int = 0,
        temperature: float = 1.0,
    ) -> Batch:
        """Pad trajectories on the right to the longest one.

        ``metadata["temperature"]`` is one number, or one a row ([B]) when they differ;
        ``temperature`` stands for trajectories that name none.

        Raises:
            ValueError: there is no trajectory, or they belong to several models.
        """
        if not trajectories:
            raise ValueError("a batch needs at least one trajectory")
        models = sorted({t.model for t in trajectories})
        if len(models) > 1:
            raise ValueError(f"one batch holds one model, not {', '.join(models)}")
        tokens = [t.tokens for t in trajectories]
        values = {
            "input_ids": pad_rows(tokens, np.int64, pad_token_id),
            "attention_mask": torch.from_numpy(
                _length_mask(list(map(len, tokens))).astype(np.int64)
            ),
            "loss_mask": pad_rows([t.loss_mask for t in trajectories], np.int64, 0),
            "versions": pad_rows(
                [t.versions or [NOT_SAMPLED] * len(t.tokens) for t in trajectories],
                np.int64,
                NOT_SAMPLED,
            ),
        }
        values["position_ids"] = compute_position_id_with_mask(values["attention_mask"])
        if all(t.logprobs is not None for t in trajectories):
            known = [t.logprobs or () for t in trajectories]
            values["old_log_probs"] = pad_rows(known, np.float32, 0.0)
        if any(t.token_rewards is not None for t in trajectories):
            each = [t.token_rewards or [0.0] * len(t.tokens) for t in trajectories]
            values["token_rewards"] = pad_rows(each, np.float32, 0.0)
        metadata = {
            "model": models[0],
            "temperature": _temperatures(trajectories, temperature),
            "pad_token_id": pad_token_id,
        }
        return cls(values, metadata | _row_metadata(trajectories))

    def to_trajectories(self) -> list[Trajectory]:
        """The rows as trajectories, padding removed."""
        lengths = self.values["attention_mask"].sum(1).tolist()
        rows = {key: self.values[key].tolist() for key in TOKEN_FIELDS if key in self.values}
        rewards = self.metadata["rewards"].tolist()
        valid, run_id = self.metadata["valid"].tolist(), self.metadata["run_id"].tolist()
        is_val = self.metadata["is_val"].tolist()
        return [
            Trajectory(
                tokens=rows["input_ids"][i][:n],
                loss_mask=rows["loss_mask"][i][:n],
                reward=rewards[i],
                logprobs=rows["old_log_probs"][i][:n] if "old_log_probs" in rows else None,
                versions=rows["versions"][i][:n],
                token_rewards=rows["token_rewards"][i][:n] if "token_rewards" in rows else None,
                model=self.metadata["model"],
                group_id=self.metadata["group_id"][i],
                run_id=run_id[i],
                valid=valid[i],
                finish_reason=self.metadata["finish_reason"][i],
                is_val=is_val[i],
            )
            for i, n in enumerate(lengths)
        ]

    def pad_to_world_size(self, world_size: int) -> Batch:
        """Repeat rows until their number divides by ``world_size``; copies train nothing.

        The loss mask of a copy is 0 and it is marked invalid, so that neither statistics nor
        gradients change.
        """
        size = len(self)
        missing = -size % world_size
        if missing == 0:
            return self
        padded = self.select([i % size for i in range(size + missing)])
        padded.values["loss_mask"] = padded.values["loss_mask"].clone()
        padded.values["loss_mask"][size:] = 0
        padded.metadata["valid"] = padded.metadata["valid"].clone()
        padded.metadata["valid"][size:] = False
        return padded

    @staticmethod
    def remove_redundant_left_padding(
        batch: Batch,
        pad_token_id: int | None = None,
        anchor_field: str = "input_ids",
        fields: Sequence[str] | None = None,
    ) -> Batch:
        """Drop the leading columns that are padding in every row."""
        return _strip(batch, pad_token_id, anchor_field, fields, left=True)

    @staticmethod
    def remove_redundant_right_padding(
        batch: Batch,
        pad_token_id: int | None = None,
        anchor_field: str = "input_ids",
        fields: Sequence[str] | None = None,
    ) -> Batch:
        """Drop the trailing columns that are padding in every row."""
        return _strip(batch, pad_token_id, anchor_field, fields, left=False)


def pad_rows(rows: Sequence[Sequence[float]], dtype: Any, fill: float) -> torch.Tensor:
    """Lists of numbers as rows, [B, T], filled up on the right to the longest."""
    places = _length_mask(list(map(len, rows)))
    out = np.full(places.shape, fill, dtype=dtype)
    # Once for all rows: each assignment costs as much as dozens of numbers.
    out[places] = np.fromiter(chain.from_iterable(rows), dtype)
    return torch.from_numpy(out)


def _length_mask(lengths: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Where rows of these lengths have numbers and no padding, [B, T]."""
    return np.arange(max(lengths)) < np.array(lengths)[:, None]


def row_temperatures(batch: Batch) -> list[float]:
    """The temperature of each row; 1 where the batch names none."""
    heat = batch.metadata.get("temperature", 1.0)
    return heat.tolist() if isinstance(heat, torch.Tensor) else [float(heat)] * len(batch)


def compute_position_id_with_mask(attention_mask: torch.Tensor) -> torch.Tensor:
    """Positions that count real tokens only: [B, T], 0 on padding."""
    return (attention_mask.cumsum(-1) - 1).clamp_min(0) * attention_mask


def padding_data(batch: Batch, pad_token_id: int) -> Batch:
    """``batch`` with every padded position of ``input_ids`` set to ``pad_token_id``."""
    padded = batch.copy()
    padded.values["input_ids"][padded.values["attention_mask"] == 0] = pad_token_id
    padded.metadata["pad_token_id"] = pad_token_id
    return padded


def _strip(
    batch: Batch, pad_token_id: int | None, anchor: str, fields: Sequence[str] | None, *, left: bool
) -> Batch:
    """Whether a column is padding is read from the attention mask: a real token may equal it."""
    mask = batch.values.get("attention_mask")
    if mask is None:
        if pad_token_id is None:
            raise ValueError("without an attention_mask, pad_token_id is needed to find padding")
        mask = batch.values[anchor] != pad_token_id
    used = mask.bool().any(0).nonzero().flatten()
    width = mask.shape[1]
    if used.numel() == 0:
        return batch
    first, last = (int(used[0]), width) if left else (0, int(used[-1]) + 1)
    names = fields if fields is not None else list(batch.values)
    values = {
        key: value[:, first:last] if key in names and value.shape[1:2] == (width,) else value
        for key, value in batch.values.items()
    }
    return Batch(values, dict(batch.metadata))


def _row_metadata(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What is known of each row."""
    return {
        "batch_size": len(trajectories),
        "rewards": torch.tensor([t.reward for t in trajectories], dtype=torch.float32),
        "valid": torch.tensor([t.valid for t in trajectories], dtype=torch.bool),
        "run_id": torch.tensor([t.run_id for t in trajectories], dtype=torch.long),
        "group_id": [t.group_id for t in trajectories],
        "finish_reason": [t.finish_reason for t in trajectories],
        "is_val": torch.tensor([t.is_val for t in trajectories], dtype=torch.bool),
        **_extra_fields(trajectories),
    }


def _temperatures(trajectories: Sequence[Trajectory], default: float) -> float | torch.Tensor:
    each = [default if t.temperature is None else t.temperature for t in trajectories]
    return each[0] if len(set(each)) == 1 else torch.tensor(each)


def _extra_fields(trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
    """Extra fields as per-row metadata: numbers as a tensor, the rest as a list.

    Raises:
        ValueError: only some of the valid trajectories have the field.
    """
    names = {name for t in trajectories for name in t.extra_fields}
    out: dict[str, Any] = {}
    for name in sorted(names):
        known = [t.extra_fields[name] for t in trajectories if name in t.extra_fields]
        if any(t.valid and name not in t.extra_fields for t in trajectories):
            raise ValueError(f"extra field {name!r} is missing in some trajectories of the batch")
        numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in known)
        # An attempt that failed has no value, and is not trained on.
        column = [t.extra_fields.get(name, float("nan") if numeric else None) for t in trajectories]
        out[name] = torch.tensor(column) if numeric else column
    return out


def _per_row(value: Any, size: int) -> bool:
    return isinstance(value, (list, torch.Tensor)) and len(value) == size


def _select(value: Any, index: torch.Tensor, picked: Sequence[int]) -> Any:
    return value[index] if isinstance(value, torch.Tensor) else [value[i] for i in picked]


def _copy_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return list(value) if isinstance(value, list) else value
