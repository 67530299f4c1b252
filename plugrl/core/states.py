"""What bases say of saved states that a subclass gives and does not take back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugrl.core.errors import UsageError


def refuse_state(owner: object, state: Mapping[str, Any], *, otherwise: str = "") -> None:
    """Refuse a ``state`` that is not empty, on behalf of an owner that has no use for one.

    Args:
        owner: whose ``load_state_dict`` was called.
        state: what it got.
        otherwise: what may be done instead of writing that method, to follow "write it".

    Raises:
        UsageError: there is a state.
    """
    if state:
        raise UsageError(
            f"{type(owner).__name__} has state_dict() but no load_state_dict(state); "
            f"write it{otherwise}"
        )
