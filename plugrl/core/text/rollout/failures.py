"""What is said about attempts that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plugrl.core.errors import ConfigError, PlugrlError, RunError, UsageError
from plugrl.core.plugins.user_code.error_location import location_suffix, one_line, raised_at
from plugrl.core.run.atomic_writes import is_disk_full
from plugrl.core.text.data.files import place_of_problem
from plugrl.core.text.inference.completions import EngineError
from plugrl.core.text.rollout.function_worker import FunctionWorker
from plugrl.core.text.trajectory import Trajectory

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.rollout.worker import RolloutWorker


class UnfitTrajectoryError(ValueError):
    """A worker returned a trajectory whose parts do not fit; the text says what it returned."""


def worker_label(worker: RolloutWorker) -> str:
    """What messages call the code that makes an attempt: ``Class.rollout``, or the function."""
    name = type(worker).__name__
    return name if isinstance(worker, FunctionWorker) else f"{name}.rollout"


def place_of(worker: RolloutWorker) -> str:
    """`` (file:line)`` of that code; "" when unknown."""
    return location_suffix(
        worker.function if isinstance(worker, FunctionWorker) else type(worker).rollout
    )


def failed_trajectory(
    worker: RolloutWorker, prompt: Prompt, reason: str, *, is_val: bool = False
) -> Trajectory:
    """An attempt without a result: counted, out of all statistics, never a reward of 0."""
    # It waits in the pool of the model that was asked, with as many fields as its group.
    return Trajectory(
        tokens=[0],
        loss_mask=[0],
        logprobs=[0.0],
        model=worker.config.get("model", "policy"),
        group_id=prompt.group_id,
        run_id=prompt.run_id,
        valid=False,
        finish_reason="error",
        failure=reason,
        is_val=is_val,
    )


def describe_exception(worker: RolloutWorker, error: BaseException) -> str:
    """What a failure says whose attempt ended with an exception: who raised what, and where."""
    if isinstance(error, EngineError):
        return str(error)
    if isinstance(error, UnfitTrajectoryError):
        return f"{worker_label(worker)} {error}{place_of(worker)}"
    at = raised_at(error)
    return f"{worker_label(worker)} raised {one_line(error)}" + (
        f" ({at})" if at else place_of(worker)
    )


def overrun(
    worker: RolloutWorker, seconds: float | None, *, abandoned: bool = False, code: str = ""
) -> str:
    """What a failure says whose attempt passed the limit; ``abandoned``: its code still runs.

    ``code`` names what took the time, with its place, where that is not the worker.
    """
    limit = f"rollout_worker.timeout={seconds or 0:g} seconds"
    still = " and swallowed its cancellation, so it is left behind" if abandoned else ""
    if code:
        return f"{code} passed {limit}"
    return f"{worker_label(worker)} passed {limit}{still}{place_of(worker)}"


def add_location(error: PlugrlError, worker: RolloutWorker, prompt: Prompt) -> PlugrlError:
    """``error`` of an attempt with the problem and the worker that it came from.

    What a worker returned names the worker already, and gets the problem's place in its file. A
    full disk is neither's fault.
    """
    if is_disk_full(error.__cause__):
        return error
    place = place_of_problem(prompt.data, prompt.index)
    if isinstance(error, RunError):
        known = hasattr(prompt.data, "place")
        return RunError(f"{error}; the problem is {place}") if known else error
    if type(error) not in (ConfigError, UsageError):
        return error
    if str(error).startswith(place):
        place = ""
    code = worker_label(worker) + (place_of(worker) if _is_foreign(worker) else "")
    return type(error)(f"{error} ({'; '.join(filter(None, [place, f'worker {code}']))})")


def _is_foreign(worker: RolloutWorker) -> bool:
    return type(worker).__module__.partition(".")[0] != __name__.partition(".")[0]
