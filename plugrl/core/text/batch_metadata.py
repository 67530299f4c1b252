"""The metadata of a batch; advantages that are written into it reach the tensors of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


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
