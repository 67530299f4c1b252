"""What Ray raises, in a few words: its own messages are pages long."""

from __future__ import annotations

import re

from plugrl.core.errors import EngineLost, PlugrlError
from plugrl.core.plugins.user_code.error_location import one_line

#: Words of Ray's messages about an actor that died, with what they mean; the first that fits.
_DEATHS = (
    (r"low on memory|memory (usage )?threshold", "was ended because its node ran low on memory"),
    (r"its node has died|[Nn]ode \S+ (was|is) (marked )?dead", "was lost with its node"),
    (r"killed by `?ray\.kill", "was ended by this run"),
    (r"[Oo]wner .{0,40}(died|dead|exited)", "ended with the program that made it"),
    (r"exit_actor|INTENDED_USER_EXIT", "left by itself"),
    (r"SIGKILL|connection error code 2|SYSTEM_ERROR", "was killed (out of memory?)"),
)
#: What other errors of Ray mean, by the name of the class.
_OTHERS = {
    "OutOfMemoryError": "was ended because its node ran low on memory",
    "GetTimeoutError": "did not answer in time",
    "ActorUnavailableError": "cannot be reached",
    "NodeDiedError": "was lost with its node",
    "LocalRayletDiedError": "was lost: Ray's own process on its node has died",
    "WorkerCrashedError": "was killed (out of memory?)",
    "ObjectStoreFullError": "found Ray's object store full",
    "OutOfDiskError": "found the disk of its node full",
    "TaskCancelledError": "was cancelled",
}


def reason(error: BaseException) -> str:
    """How an actor or task of Ray failed, as a predicate of one line: ``was lost with its node``.

    What the code in it has raised is told as such, with its type.
    """
    if isinstance(error, EngineLost):
        return error.how
    if isinstance(error, PlugrlError):
        return str(error)
    names = [cls.__name__ for cls in type(error).__mro__]
    if "RayTaskError" in names:
        cause = getattr(error, "cause", None) or error
        return f"raised {one_line(cause)}"
    text = str(error)
    for name in names:
        if name in _OTHERS:
            return _OTHERS[name]
    if "RayActorError" in names:
        for pattern, meaning in _DEATHS:
            if re.search(pattern, text):
                return meaning
        return f"died: {one_line(error)}"
    return one_line(error)


def failure(
    error: BaseException, *, actor: str, node: str = "", task: str = "", step: int | None = None
) -> str:
    """One line about a failure: who, where, how, while doing what, in which step.

    Args:
        error: what Ray raised.
        actor: what messages call the actor.
        node: the address of its machine.
        task: what it did, such as ``attempted problem 7``.
        step: of the run.
    """
    where = f" on node {node}" if node else ""
    doing = f" while it {task}" if task else ""
    when = "" if step is None else f" in step {step}"
    return f"{actor}{where} {reason(error)}{doing}{when}"
