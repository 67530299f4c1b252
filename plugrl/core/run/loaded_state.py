"""Restoring saved states through user code, and the errors when that fails."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from plugrl.core.errors import PlugrlError, RunError, UsageError
from plugrl.core.plugins.user_code.error_location import location_suffix, one_line, raised_at

log = logging.getLogger(__name__)
_OWN = __name__.partition(".")[0]


class StateMismatchError(RunError):
    """A component failed to load a saved state."""


def restore_state(owner: Any, state: Any, what: str, of: str) -> None:
    """Load a ``state`` into ``owner``.

    Args:
        owner: an object with ``load_state_dict``.
        state: the argument of that method.
        what: the kind of ``owner`` in messages, such as ``trainer``.
        of: where the state comes from, in messages.

    Raises:
        StateMismatchError: its code failed, for instance on the state of an earlier version.
    """
    try:
        owner.load_state_dict(state)
    except PlugrlError:
        raise
    except Exception as error:
        raise state_mismatch(owner, error, what, of) from error


def restore_weights(owner: Any, state: Any, what: str, of: str, *, root: type) -> None:
    """Load a ``state`` into ``owner`` for inference, where only the weights matter.

    The weights are in the state of plugrl's base classes. What a user's subclass saves besides is
    only needed to go on training, and may come from an earlier version of it: if the subclass fails
    to load the state, the nearest base class of plugrl loads it instead, with a warning.

    Args:
        owner: an object with ``load_state_dict``.
        state: the argument of that method.
        what: the kind of ``owner`` in messages.
        of: where the state comes from, in messages.
        root: the base class of all such components, which saves no weights.

    Raises:
        StateMismatchError: no base class of plugrl loads that state.
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
            # The subclass saves the weights in a form of its own.
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
    """Refuse a non-empty ``state`` for an ``owner`` without a ``load_state_dict`` of its own.

    Args:
        owner: the object that was to load the state.
        state: the state.
        otherwise: an alternative to writing that method, which follows "write it" in the message.

    Raises:
        UsageError: the state is not empty.
    """
    if state:
        raise UsageError(
            f"{type(owner).__name__} has state_dict() but no load_state_dict(state); "
            f"write it{otherwise}"
        )
