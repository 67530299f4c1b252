"""Whether films can be made of a task, found out before a run begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from plugrl.core.plugins.user_code.error_location import one_line

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.environment.vector_environment import VectorEnvironment


def film_faults(check: Preflight, make: Callable[[], VectorEnvironment]) -> Iterator[Finding]:
    """What is in the way of ``validate.film``, if that asks for films.

    Args:
        check: the configuration.
        make: builds the environment with frames.
    """
    film = (check.root.get("validate") or {}).get("film", "none")
    if film == "none":
        return
    from plugrl.core.tensordict.environment.film import missing

    fault = missing(film) or _undrawn(make)
    if fault is not None:
        yield "validate.film", fault


def _undrawn(make: Callable[[], VectorEnvironment]) -> str | None:
    try:
        with closing(make()) as environment:
            environment.reset(0)
            frame = environment.render()
    except Exception as error:
        return f"no frame can be drawn ({one_line(error)}); write validate.film: none"
    if frame is None or frame.ndim != 3:
        return "the environment draws no frames of colours; write validate.film: none"
    return None
