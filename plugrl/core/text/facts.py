"""``Facts``: the metadata of a batch, in which advantages can be written a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Facts(dict[str, Any]):
    """What is known of each row of a batch.

    Advantages that are written here, one a row or one a token, become a tensor and are at once in
    ``values["advantages"]`` too, times the loss mask; those that a trainer wrote there itself
    stay. What has another shape is kept as it is, for the trainer to refuse.

    Args:
        facts: what is known so far.
        values: the tensors of the batch.
    """

    def __init__(self, facts: Mapping[str, Any], values: dict[str, torch.Tensor]) -> None:
        super().__init__(facts)
        self._values = values
        self._mirrored: torch.Tensor | None = None

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, self._share_advantages(value) if key == "advantages" else value)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def _share_advantages(self, written: Any) -> Any:
        mask = self._values.get("loss_mask")
        held = self._values.get("advantages")
        try:
            advantages = torch.as_tensor(written, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError):
            return written
        if mask is None or advantages.shape not in (mask.shape[:1], mask.shape):
            return written
        if held is None or held is self._mirrored:
            each = advantages if advantages.dim() > 1 else advantages[:, None]
            self._mirrored = self._values["advantages"] = each * mask.to(torch.float32)
        return advantages
