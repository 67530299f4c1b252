"""What workers say of where trajectories come from: which prompt, attempt and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from plugrl.core.text.rollout.failures import add_location
from plugrl.core.text.rollout.validate_rollout import contract_error

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.rollout.worker import RolloutWorker
    from plugrl.core.text.trajectory import Trajectory

Name = TypeVar("Name")
Owner = TypeVar("Owner")
#: Names whose owners are remembered; those of groups that are long trained are forgotten.
_REMEMBERED = 20_000
_REMEDY = "give trajectories group_id=task.group_id and run_id=task.run_id, as trajectory_of does"


class Attribution:
    """Refuses trajectories of which one number makes comparisons of rewards wrong.

    No single attempt shows it: one group for several prompts, or one run for several attempts,
    compares what is not comparable, and nothing fails.

    Args:
        worker: whose trajectories they are.
        newest: the version that a model's weights have come to, by its name; None: unknown.
    """

    def __init__(self, worker: RolloutWorker, newest: Callable[[str], int | None]) -> None:
        self._worker = worker
        self._newest = newest
        self._prompts: dict[str, str] = {}
        self._attempts: dict[tuple[str, int], tuple[str, int]] = {}

    def check(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> None:
        """Check what one attempt at ``prompt`` came to.

        Raises:
            RunError: a group or run is that of another prompt or attempt, or a token was sampled
                by weights that are not there yet.
        """
        for trajectory in trajectories:
            fault = self._names_fault(prompt, trajectory) or self._version_fault(trajectory)
            if fault is not None:
                error = contract_error(self._worker, f"returned a trajectory {fault}")
                raise add_location(error, self._worker, prompt)

    def _names_fault(self, prompt: Prompt, trajectory: Trajectory) -> str | None:
        group, run = trajectory.group_id, trajectory.run_id
        for name, value, kind in (("group_id", group, str), ("run_id", run, int)):
            if type(value) is not kind:
                return f"with {name} {value!r:.40}, which is no {kind.__name__}; {_REMEDY}"
        own = (prompt.group_id, prompt.run_id)
        owner = _owner(self._prompts, group, prompt.group_id)
        if owner != prompt.group_id:
            return (
                f"of group {group!r} for prompt {prompt.group_id!r}, and one for prompt {owner!r} "
                f"is of it too, so that rewards of different prompts are compared; {_REMEDY}"
            )
        attempt = _owner(self._attempts, (group, run), own)
        if attempt != own:
            return (
                f"of run {run} for attempt {own[1]} at prompt {own[0]!r}, and one of attempt "
                f"{attempt[1]} is of it too, so that both count as one; {_REMEDY}"
            )
        return None

    def _version_fault(self, trajectory: Trajectory) -> str | None:
        newest = self._newest(trajectory.model)
        latest = max(trajectory.versions or (), default=-1)
        if newest is None or latest <= newest:
            return None
        return (
            f"with version {latest} of model {trajectory.model!r}, which has come to version "
            f"{newest}; take the versions of the answer, as trajectory_of does"
        )


def _owner(owners: dict[Name, Owner], name: Name, own: Owner) -> Owner:
    """Whose ``name`` is: that of the first who came with it."""
    owner = owners.setdefault(name, own)
    if len(owners) > _REMEMBERED:
        del owners[next(iter(owners))]
    return owner
