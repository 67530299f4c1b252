"""The value head: one number for each last hidden state, trained beside the model."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def make_value_head(width: int, device: str) -> torch.nn.Linear:
    """A linear head in float32 that gives 0 at first.

    From 0, the first advantages are those without a baseline, and no random numbers are drawn.
    """
    # Numbers that are drawn on no device leave the generators of the others as they are.
    head = torch.nn.Linear(width, 1, device="meta", dtype=torch.float32).to_empty(device=device)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


@torch.no_grad()
def load_value_head(head: torch.nn.Linear, state: Mapping[str, torch.Tensor]) -> None:
    """Take back the head's ``state_dict``.

    Raises:
        RuntimeError: it is that of another model.
    """
    head.load_state_dict(dict(state))
