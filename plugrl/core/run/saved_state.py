"""Saved states and the code of users that takes them back, or does not."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from plugrl.core.errors import PlugrlError, RunError, UsageError
from plugrl.core.plugins.user_code.error_location import location_suffix, one_line, raised_at

log = logging.getLogger(__name__)
_OWN = __name__.partition(".")[0]


class StateMismatchError(RunError):
    """A component did not take back a saved state."""


def restore_state(owner: Any, state: Any, what: str, of: str) -> None:
    """Have ``owner`` take back a ``state``.

    Args:
        owner: has ``load_state_dict``.
        state: what it gets.
        what: what messages call it, such as ``trainer``.
        of: where the state is from.

    Raises:
        StateMismatchError: its code failed, as when the state is of an earlier version of it.
    """
    try:
        owner.load_state_dict(state)
    except PlugrlError:
        raise
    except Exception as error:
        raise state_mismatch(owner, error, what, of) from error


def restore_weights(owner: Any, state: Any, what: str, of: str, *, root: type) -> None:
    """The same for those that need weights alone, which are in the state of plugrl's classes.

    What a subclass of users keeps besides is for training on, and may be of an earlier version of
    it: where its own code does not take the state, the nearest base of plugrl does, and a warning
    says so.

    Args:
        owner: has ``load_state_dict``.
        state: what it gets.
        what: what messages call it.
        of: where the state is from.
        root: the class that all such components have, which keeps no weights.

    Raises:
        StateMismatchError: no class of plugrl has that state.
    """
    try:
        restore_state(owner, state, what, of)
    except StateMismatchError as error:
        holders = [kind for kind in type(owner).__mro__ if "load_state_dict" in vars(kind)]
        own = [kind for kind in holders if kind.__module__.partition(".")[0] == _OWN]
        if not own or own[0] in (root, holders[0]):
            raise
        base: Any = own[0]
        try:
            base.load_state_dict(owner, state)
        except Exception:
            # It is in a form of the subclass.
            raise error from error.__cause__
        log.warning("%s; the weights are used without it", error)


def state_mismatch(owner: Any, error: Exception, what: str, of: str) -> StateMismatchError:
    """The error that :func:`restore_state` raises for an ``error`` of the owner's own code."""
    at = raised_at(error)
    place = f" ({at})" if at else location_suffix(type(owner).load_state_dict)
    return StateMismatchError(
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
