"""Saved states and the code of users that takes them back, or does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugrl.core.blame import one_line, raised_at, where
from plugrl.core.errors import PlugrlError, RunError, UsageError


class UnfitStateError(RunError):
    """A component did not take back a saved state."""


def take_state(owner: Any, state: Any, what: str, of: str) -> None:
    """Have ``owner`` take back a ``state``.

    Args:
        owner: has ``load_state_dict``.
        state: what it gets.
        what: what messages call it, such as ``trainer``.
        of: where the state is from.

    Raises:
        UnfitStateError: its code failed, as when the state is of an earlier version of it.
    """
    try:
        owner.load_state_dict(state)
    except PlugrlError:
        raise
    except Exception as error:
        raise unfit_state(owner, error, what, of) from error


def unfit_state(owner: Any, error: Exception, what: str, of: str) -> UnfitStateError:
    """What :func:`take_state` raises when the ``load_state_dict`` of ``owner`` raised ``error``."""
    at = raised_at(error)
    place = f" ({at})" if at else where(type(owner).load_state_dict)
    return UnfitStateError(
        f"{what} {type(owner).__name__} does not take back its state of {of}: load_state_dict "
        f"raised {one_line(error)}{place}; let it take what an earlier version saved, such as "
        "with state.get, or start a new run"
    )


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
